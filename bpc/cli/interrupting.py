"""SIGTERM interrupts a command as Ctrl-C does; the training loop has its own way, inside this."""

from __future__ import annotations

import signal
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Inside `with`, SIGTERM raises KeyboardInterrupt, unless whoever called does something else
    with it, such as ignoring it. Only the main thread receives signals."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignore_signals() -> None:
    """From now on nothing interrupts: for the few lines that say that something did."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def forget_interruption() -> None:
    """Let Python end with the exit code that it is told.

    It remembers an interruption inside code that was text a moment ago, such as the methods of a
    dataclass, though it was caught, and would end as if killed by SIGINT. The next such code, of
    which a named tuple has a line, makes it forget.
    """
    namedtuple("Forgotten", ())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
