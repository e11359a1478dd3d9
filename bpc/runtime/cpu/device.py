"""The compiled device: one arena, one library, one call per entry point."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpc.codegen.cpu import Source, arguments, extents
from bpc.errors import ToolError
from bpc.plan.program import Entry, Program
from bpc.runtime.cpu.toolchain import vector_name
from bpc.runtime.host_arena import HostArena

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


class CpuDevice(HostArena):
    """Runs a program in one arena of exactly the planned size; closing keeps the library loaded."""

    name = "cpu"

    def __init__(self, program: Program, source: Source, library: Path, threads: int):
        super().__init__(program)
        self._library = Library(library)
        self._tables = make_tables(program, source)
        # A thread without a slice would only be waited for, long where other programs run too.
        most = max(int(table.launches["slices"].max()) for table in self._tables.values())
        self.threads = min(threads, most)
        self._base = self.address
        self._calls = {
            name: (table.launches.ctypes.data, len(table.launches), table.offsets.ctypes.data)
            for name, table in self._tables.items()
        }

    @property
    def summary(self) -> str:
        """What runs the program, for people."""
        plural = "thread" if self.threads == 1 else "threads"
        return f"cpu ({self.threads} {plural}, {vector_name()})"

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
