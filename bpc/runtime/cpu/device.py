"""The compiled device: one arena, one library, one call per entry point."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.codegen.cpu import Source, arguments, extents
from bpc.errors import ToolError
from bpc.ir import Value
from bpc.plan.program import ALIGNMENT, Entry, Program
from bpc.runtime.cpu.toolchain import vector_name
from bpc.runtime.device import Array
from bpc.runtime.reference import storage_type
from bpc.types import BF16, F16, shape_at

CANNOT_LOAD = "BPC0612"
LAUNCH = np.dtype(
    [("kernel", "i4"), ("slices", "i4"), ("barrier_after", "i4"), ("first_offset", "i4")]
)


@dataclass(frozen=True, slots=True)
class Table:
    """The launches of an entry point as the library reads them."""

    launches: NDArray[np.void]
    offsets: NDArray[np.int64]


def make_table(entry: Entry, program: Program, source: Source, first: int) -> Table:
    """The launch table of an entry whose kernels start at index `first` of the source's list."""
    launches = np.zeros(len(entry.kernels), LAUNCH)
    offsets: list[int] = []
    for at, kernel in enumerate(entry.kernels):
        barrier = int(entry.barriers[at])
        launches[at] = (source.index[first + at], kernel.slices, barrier, len(offsets))
        offsets += [entry.offset_of(operand) for operand in arguments(kernel)]
        offsets += extents(kernel, program.rows)
    return Table(launches, np.asarray(offsets, np.int64))


def make_tables(program: Program, source: Source) -> dict[str, Table]:
    """The launch tables of all entry points."""
    tables, first = {}, 0
    for name, entry in program.entries.items():
        tables[name] = make_table(entry, program, source, first)
        first += len(entry.kernels)
    return tables


class Library:
    """A loaded shared library of kernels.

    Raises:
        ToolError: the system refuses to load it.
    """

    def __init__(self, path: Path):
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolError.at(
                CANNOT_LOAD,
                f"the compiled library does not load: {error}",
                None,
                help="is its folder mounted without the right to execute? BPC_CACHE names another",
            ) from None
        self._run = self._library.bpc_run_range
        self._run.restype = ctypes.c_int
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._run.argtypes = [pointer, pointer, i32, i32, pointer, i64, i32]

    def run(
        self, arena: int, table: Table, first: int, last: int, rows: int, threads: int
    ) -> None:
        """Run launches [first, last) of a table."""
        launches, offsets = table.launches.ctypes.data, table.offsets.ctypes.data
        status = self._run(arena, launches, first, last, offsets, rows, threads)
        assert status == 0, f"bpc_run_range returned {status}"


class CpuDevice:
    """Runs a program in one arena of exactly the planned size."""

    name = "cpu"

    def __init__(self, program: Program, source: Source, library: Path, threads: int):
        self.program = program
        self.threads = threads
        self.rows = program.rows
        self.planned_peak_bytes = program.arena_bytes
        self.arena_bytes = program.arena_bytes
        self._library = Library(library)
        self._tables = make_tables(program, source)
        self._memory = np.zeros(program.arena_bytes + ALIGNMENT, np.uint8)
        start = -self._memory.ctypes.data % ALIGNMENT
        self.arena: NDArray[np.uint8] = self._memory[start : start + program.arena_bytes]
        self._base = self.arena.ctypes.data
        self._calls = {
            name: (table.launches.ctypes.data, len(table.launches), table.offsets.ctypes.data)
            for name, table in self._tables.items()
        }
        self._views = {name: self.view(value) for name, value in program.persistent.items()}

    @property
    def summary(self) -> str:
        """What runs the program, for people."""
        plural = "thread" if self.threads == 1 else "threads"
        return f"cpu ({self.threads} {plural}, {vector_name()})"

    def view(self, value: Value, offset: int | None = None, rows: int | None = None) -> Array:
        """A tensor in the arena as an array that shares its memory."""
        start = self.program.offsets[value.name] if offset is None else offset
        shape = shape_at(value.shape, self.rows if rows is None else rows)
        kind = storage_type(value.dtype)
        count = int(np.prod(shape, dtype=np.int64))
        return self.arena[start : start + count * kind.itemsize].view(kind).reshape(shape)

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

    def write_scalar(self, name: str, value: float | int) -> None:
        """Replace a state without axes."""
        self._views[name][...] = value

    def run(self, entry: str, rows: int) -> None:
        """Run an entry point on the first `rows` rows of its input slots."""
        launches, count, offsets = self._calls[entry]
        status = self._library._run(self._base, launches, 0, count, offsets, rows, self.threads)
        assert status == 0, f"{entry} returned {status}"

    def run_one_by_one(self, entry: str, rows: int) -> Iterator[int]:
        """Run an entry point launch by launch; yields the index of each launch that is done."""
        table = self._tables[entry]
        for at in range(len(table.launches)):
            self._library.run(self._base, table, at, at + 1, rows, self.threads)
            yield at

    def read_output(self, entry: str, role: str, rows: int) -> Array:
        """A copy of a result of the last call."""
        placed = self.program.entries[entry]
        _, offset = placed.output_of(role)
        shown = placed.graph.values()[placed.graph.output(role)]
        return self._readable(self.view(shown, offset, rows), shown)

    def _readable(self, array: Array, value: Value) -> Array:
        return array.astype(np.float32) if value.dtype in (F16, BF16) else array.copy()

    def close(self) -> None:
        """Let go of the arena; the library stays loaded."""
        self._views = {}
        self.arena = self._memory = np.zeros(0, np.uint8)

