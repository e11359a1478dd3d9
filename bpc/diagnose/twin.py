"""What the C++ kernels of the CPU make of the memory that a CUDA launch finds.

Numbers are defined alike on every target (docs/conventions.md), so a launch is wrong wherever its
bits differ from those of its C++ twin: an order of additions, a comparison at equal values and
other defects that no bound on rounding can see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bpc.plan.program import Program
from bpc.runtime.cpu.build import write_source
from bpc.runtime.cpu.device import Library, make_tables
from bpc.runtime.cpu.toolchain import build_library
from bpc.runtime.host_arena import HostArena


class Twin:
    """The same program compiled for the CPU, run a few kernels at a time in memory of its own.

    Raises:
        ToolError: no compiler, or it refuses the text.
    """

    def __init__(self, program: Program):
        source = write_source(program, "network")
        self._library = Library(build_library(source.text))
        self._tables = make_tables(program, source)
        self._memory = HostArena(program)

    def run(
        self, arena: NDArray[np.uint8], entry: str, kernels: Sequence[int], rows: int
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Each of these kernels of an entry with the arena's bytes after it ran.

        A later kernel may put its result where an earlier one's lay: look before going on.
        """
        self._memory.arena[...] = arena
        for at in kernels:
            self._library.run(self._memory.address, self._tables[entry], at, at + 1, rows, 1)
            yield at, self._memory.arena
