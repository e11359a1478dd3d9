"""Windows in order, on a device that may get one before the values of the last one are read.

A device that works while the host goes on (a GPU) would stand still if the host waited for each
window to learn whether it was finite. So the next one is issued first. Nothing is lost where the
last one turns out not to be finite: with `control.late` no weight, moment or counter moves from
then on, and that window is run again with the host watching. Every result is that of a run that
waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpc.errors import DataError, ToolError
from bpc.runtime.device import Device, Scalars
from bpc.train.stepper import Stepper
from bpc.train.windows import Window, Windows


class Settled(NamedTuple):
    """A window of which the host knows how it ended.

    `moved`: it changed the weights. `rests`: nothing was issued after it, so that the device has
    what it left; otherwise only `values` are its own. `seconds` that it took. While the device was
    at work on the next one, what was done between two windows counts as time of that next one.
    """

    window: Window
    values: Scalars
    moved: bool
    rests: bool
    seconds: float


class _Issued(NamedTuple):
    window: Window
    values: Scalars


class Pipeline:
    """Issues windows, one ahead where the device has use for that."""

    def __init__(self, stepper: Stepper, device: Device, windows: Windows, foretold: Windows):
        """`foretold`: the same windows, whose row numbers a reader may draw at its own pace."""
        self._stepper = stepper
        self._ahead = device.works_ahead
        self._windows = windows
        self._foretold = foretold
        self._late = False
        self._moved = True

    def run(self, first: int, pauses: Callable[[Window], bool]) -> Generator[Settled]:
        """The windows from index `first` on, each as soon as it is settled.

        To be closed by whoever does not go to its end, so that the device waits for nobody.

        Args:
            first: index of the first window, from 0.
            pauses: whether the device has to rest after a window. Asked before it is settled.

        Raises:
            DataError: a row cannot be used; all windows before it are settled.
        """
        self._stepper.follow(self._batches_from(first))
        try:
            yield from self._run(first, pauses)
        finally:
            with suppress(ToolError):  # a device that failed has said so
                self._turn(late=False)

    def _run(self, first: int, pauses: Callable[[Window], bool]) -> Iterator[Settled]:
        following: _Issued | None = None
        began: float | None = None
        for index in range(first, len(self._windows)):
            began = began or time.perf_counter()
            window = following.window if following else self._windows[index]
            goes_on = self._may_go_on(window, pauses)
            issued = following or self._issue(window, late=goes_on)
            following = self._issue_early(index + 1) if goes_on else None
            if self._late and _is_bad(issued):
                issued, following = self._repeat(window, index), None
            self._moved = not _is_bad(issued)
            now = time.perf_counter()
            yield Settled(window, issued.values, self._moved, following is None, now - began)
            began = now if following else None  # the device is at work meanwhile

    def _may_go_on(self, window: Window, pauses: Callable[[Window], bool]) -> bool:
        """Whether to issue another window before this one is settled.

        After one that did not move the weights the next may well not, either: that one is watched.
        """
        last = window.number == len(self._windows)
        return self._ahead and self._moved and not last and not pauses(window)

    def _issue(self, window: Window, late: bool) -> _Issued:
        self._turn(late)
        return _Issued(window, self._stepper.issue(window.batches))

    def _issue_early(self, index: int) -> _Issued | None:
        try:
            return self._issue(self._windows[index], late=True)
        except DataError:
            return None  # which comes again when it is this window's turn

    def _repeat(self, window: Window, index: int) -> _Issued:
        """Run a window that is not finite again, so that it leaves what it leaves."""
        self._stepper.follow(self._batches_from(index))
        return self._issue(window, late=False)

    def _turn(self, late: bool) -> None:
        if late != self._late:
            self._stepper.set_late(late)
            self._late = late

    def _batches_from(self, index: int) -> Iterator[NDArray[np.int64]]:
        steps = range(index, len(self._foretold))
        return (rows for step in steps for rows in self._foretold[step].batches)


def _is_bad(issued: _Issued) -> bool:
    return bool(issued.values.read_scalar("control.found_inf"))
