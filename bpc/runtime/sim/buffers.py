"""Buffers that notice: each ends on a guard page, starts as NaN, and knows what was written."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Sequence
from math import prod
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from bpc.errors import UsageError
from bpc.runtime.sim.native import runtime

TOO_LARGE = "BPC0622"

Array = npt.NDArray[Any]

_live: weakref.WeakValueDictionary[int, GuardedBuffer] = weakref.WeakValueDictionary()


class GuardedBuffer:
    """One tensor of a checked launch, in memory of its own.

    The byte after the last is on a page that faults, or less than `alignment` bytes before it.
    A buffer made by `of` counts as written; a fresh one holds NaN bits, and checked kernels that
    read a byte of it before writing it are reported. Memory is given back by `free`, at the end
    of a `with` block, or when neither the object nor a view of `array` is left.

    Args:
        shape: the extents of `array`, the NumPy view of the memory.
        dtype: the element type; reports count in elements.
        name: what reports call the buffer.
        read_only: whether a kernel that writes to it is reported.
        alignment: of the first byte; 16 is what the widest access needs.

    Raises:
        UsageError: larger than a slot (about 62 MiB), or the process has no address space left.
    """

    def __init__(
        self,
        shape: Sequence[int] | int,
        dtype: npt.DTypeLike,
        name: str = "buffer",
        read_only: bool = False,
        alignment: int = 16,
    ):
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.name = name
        self.nbytes = prod(extents) * self.dtype.itemsize
        cell_shift = {1: 0, 2: 1}.get(self.dtype.itemsize, 2)
        low = c.c_uint64()
        self._library = runtime()
        self.slot: int = self._library.sim_buffer_new(
            self.nbytes, alignment, cell_shift, 1, c.byref(low)
        )
        if self.slot < 0:
            raise UsageError.at(TOO_LARGE, f"no room for a buffer of {self.nbytes} bytes", None)
        self.pointer: int = low.value
        raw = (c.c_uint8 * max(self.nbytes, 1)).from_address(self.pointer)
        flat = np.ctypeslib.as_array(raw)[: self.nbytes]
        self.array: Array = flat.view(self.dtype).reshape(extents)
        self.set_read_only(read_only)
        # Tied to the memory's own object, so that a view outlives the buffer safely.
        self._release = weakref.finalize(raw, self._library.sim_buffer_free, self.slot)
        _live[self.slot] = self

    @classmethod
    def of(
        cls,
        values: npt.ArrayLike,
        name: str = "buffer",
        read_only: bool = False,
        alignment: int = 16,
    ) -> GuardedBuffer:
        """A buffer that holds a copy of these values."""
        given = np.asarray(values)
        made = cls(given.shape, given.dtype, name, read_only, alignment)
        made.array[...] = given
        made.mark_written()
        return made

    def set_read_only(self, read_only: bool) -> None:
        """Whether a kernel's write is reported."""
        self._library.sim_buffer_set_read_only(self.slot, int(read_only))

    def mark_written(self, start: int = 0, nbytes: int | None = None) -> None:
        """Counts bytes as written, for a host that filled `array`."""
        self._mark(start, nbytes, 1)

    def mark_unwritten(self, start: int = 0, nbytes: int | None = None) -> None:
        """Counts bytes as never written, as at the start."""
        self._mark(start, nbytes, 0)

    def _mark(self, start: int, nbytes: int | None, written: int) -> None:
        count = self.nbytes - start if nbytes is None else nbytes
        assert start >= 0 and start + count <= self.nbytes, "a range within the buffer"
        self._library.sim_buffer_mark(self.slot, start, count, written)

    def written(self) -> npt.NDArray[np.bool_]:
        """For each byte whether the host or a checked kernel wrote it. A copy."""
        if not self.nbytes:
            return np.zeros(0, np.bool_)
        address = self._library.sim_buffer_written(self.slot)
        flags = np.ctypeslib.as_array((c.c_uint8 * self.nbytes).from_address(address))
        return flags.astype(np.bool_)

    def unwritten(self) -> int:
        """The number of bytes that nobody wrote."""
        return int(self.nbytes - np.count_nonzero(self.written()))

    def first_unwritten(self) -> int | None:
        """The flat index of the first element with a byte that nobody wrote."""
        missing = np.flatnonzero(~self.written())
        return int(missing[0]) // self.dtype.itemsize if missing.size else None

    def free(self) -> None:
        """Gives the memory back; `array` must not be used any more."""
        self._release()
        _live.pop(self.slot, None)

    def __enter__(self) -> GuardedBuffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free()


def buffer_in_slot(slot: int) -> GuardedBuffer | None:
    """The live buffer with this slot number."""
    return _live.get(slot)
