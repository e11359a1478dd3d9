"""A program's memory on the host: one arena of the planned size, and arrays that look into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.ir import Value
from bpc.plan.program import ALIGNMENT, Program
from bpc.runtime.device import Array, Scalars
from bpc.runtime.host_memory import zeroed
from bpc.runtime.reference import storage_type
from bpc.types import BF16, F16, shape_at


class HostArena:
    """States, input slots and results of a program in memory of this process."""

    works_ahead = False

    def __init__(self, program: Program):
        self.program = program
        self.rows = program.rows
        self.planned_peak_bytes = program.arena_bytes
        self.arena_bytes = program.arena_bytes
        self._memory = zeroed(program.arena_bytes + ALIGNMENT)
        start = -self._memory.ctypes.data % ALIGNMENT
        self.arena: NDArray[np.uint8] = self._memory[start : start + program.arena_bytes]
        self._views = {name: self.view(value) for name, value in program.persistent.items()}

    @property
    def address(self) -> int:
        """Where the arena begins."""
        return self.arena.ctypes.data

    def view(self, value: Value, offset: int | None = None, rows: int | None = None) -> Array:
        """A tensor in the arena as an array that shares its memory."""
        start = self.program.offsets[value.name] if offset is None else offset
        shape = shape_at(value.shape, self.rows if rows is None else rows)
        kind = storage_type(value.dtype)
        count = int(np.prod(shape, dtype=np.int64))
        return self.arena[start : start + count * kind.itemsize].view(kind).reshape(shape)

    @property
    def companions(self) -> Mapping[str, str]:
        """Nothing beside the text of the program decides bits here."""
        return {}

    def write_input(self, name: str, array: Array) -> None:
        """Fill the first rows of an input slot."""
        slot = self._views[name]
        assert array.shape[1:] == slot.shape[1:], f"{name}: {array.shape} into {slot.shape}"
        with np.errstate(over="ignore"):  # training itself names what became inf
            np.copyto(slot[: len(array)], array, casting="unsafe")

    def write_rows(self, name: str, array: Array, rows: NDArray[np.integer[Any]]) -> None:
        """Gather the rows with these numbers, all of which exist, in the first rows of a slot."""
        slot = self._views[name]
        if array.dtype != slot.dtype or array.shape[1:] != slot.shape[1:]:
            self.write_input(name, array[rows])
        else:  # with "raise", NumPy gathers into a copy of its own first
            array.take(rows, 0, slot[: len(rows)], "clip")

    def read_state(self, name: str) -> Array:
        """A copy of a state, 16-bit floats as float32."""
        return self._readable(self._views[name], self.program.persistent[name])

    def write_state(self, name: str, array: Array) -> None:
        """Replace a state by an array of its shape."""
        slot = self._views[name]
        assert array.shape == slot.shape, f"{name}: {array.shape} into {slot.shape}"
        with np.errstate(over="ignore"):
            slot[...] = array.astype(slot.dtype)

    def read_scalar(self, name: str) -> float | int:
        """A state without axes."""
        value: float | int = self._views[name].item()
        return value

    def snapshot(self) -> Scalars:
        """Metrics and control values; nothing runs that could change them."""
        return self

    def write_scalar(self, name: str, value: float | int) -> None:
        """Replace a state without axes."""
        self._views[name][...] = value

    def read_output(self, entry: str, role: str, rows: int) -> Array:
        """A copy of a result of the last call."""
        placed = self.program.entries[entry]
        _, offset = placed.output_of(role)
        shown = placed.graph.values()[placed.graph.output(role)]
        return self._readable(self.view(shown, offset, rows), shown)

    def _readable(self, array: Array, value: Value) -> Array:
        return array.astype(np.float32) if value.dtype in (F16, BF16) else array.copy()

    def close(self) -> None:
        """Let go of the arena."""
        self._views = {}
        self.arena = self._memory = np.zeros(0, np.uint8)

