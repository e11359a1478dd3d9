"""Zeroed memory of this process, refused before the system has to end the process for it."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from bpc.errors import ToolError
from bpc.types import format_bytes

TOO_LARGE = "BPC0613"


def check_fits(nbytes: int) -> None:
    """Refuse what is larger than all memory of the machine.

    The system promises more than it has, and ends a process that takes it at its word.

    Raises:
        ToolError: the machine has less memory.
    """
    total = machine_bytes()
    if nbytes > total:
        raise _too_large(nbytes, f"the machine has {format_bytes(total)}")


def zeroed(nbytes: int) -> NDArray[np.uint8]:
    """So many bytes of 0.

    Raises:
        ToolError: the machine has less memory, or does not give it.
    """
    check_fits(nbytes)
    try:
        return np.zeros(nbytes, np.uint8)
    except MemoryError as error:
        raise _too_large(nbytes, "the system does not give it") from error


def machine_bytes() -> int:
    """All memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _too_large(nbytes: int, why: str) -> ToolError:
    help = "`bpc plan-memory` shows what takes it; --memory SIZE plans under a budget"
    message = f"the program takes {format_bytes(nbytes)} of memory, and {why}"
    error = ToolError.at(TOO_LARGE, message, None, help=help)
    assert isinstance(error, ToolError)
    return error
