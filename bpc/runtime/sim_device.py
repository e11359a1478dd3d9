"""The device that runs the CUDA text on the CPU: slow, and the same text as a GPU gets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bpc.codegen.amalgamate import single_file
from bpc.codegen.cuda import CudaSource, generate
from bpc.entries import Entries
from bpc.errors import Note, ToolError
from bpc.plan.program import ALIGNMENT, Program
from bpc.resources import template_root
from bpc.runtime.cpu.build import plan
from bpc.runtime.host_arena import HostArena
from bpc.runtime.host_memory import zeroed
from bpc.runtime.launching import ROWS_AT, block_bytes, pack_launches
from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import BoundLaunch, load_cuda

SIMULATED_FAULT = "BPC0630"


def self_contained(source: CudaSource, name: str) -> str:
    """The CUDA text with its headers in it."""
    folders = [template_root() / target / "include" for target in ("cuda", "cpu")]
    return single_file(source.text, name, folders)


class SimDevice(HostArena):
    """Runs a program's CUDA kernels in the planned arena, without checks."""

    name = "sim"
    summary = "sim (CUDA text on the CPU, unchecked)"

    def __init__(self, program: Program, source: CudaSource):
        super().__init__(program)
        self._block = _aligned(block_bytes(source))
        packed = pack_launches(program, source, self.address, self._block.ctypes.data)
        self._block[:] = packed.block
        self._rows_cell = self._block[ROWS_AT : ROWS_AT + 8].view(np.int64)
        module = load_cuda(self_contained(source, "network.cu"), "source")
        options = LaunchOptions(seconds=0)
        self._launches: dict[str, list[BoundLaunch]] = {
            entry: [
                module.bind(item.function, item.grid, item.threads, 0, item.typed(), options)
                for item in launches
            ]
            for entry, launches in packed.launches.items()
        }

    def run(self, entry: str, rows: int) -> None:
        """Run an entry point on the first `rows` rows of its input slots."""
        for _ in self.run_one_by_one(entry, rows):
            pass

    def run_one_by_one(self, entry: str, rows: int) -> Iterator[int]:
        """Run an entry point launch by launch; yields the index of each launch that is done."""
        self._rows_cell[0] = rows
        for at, launch in enumerate(self._launches[entry]):
            found = launch.run()
            if found:
                raise ToolError.at(
                    SIMULATED_FAULT,
                    f"the simulator stopped in {launch.kernel}",
                    None,
                    notes=[Note(str(report)) for report in found[:5]],
                )
            yield at


def _aligned(size: int) -> NDArray[np.uint8]:
    """Zeroed bytes that begin on the alignment of tensors."""
    memory = zeroed(size + ALIGNMENT)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def make_sim(entries: Entries, memory_bytes: int | None = None) -> SimDevice:
    """A simulated device.

    Raises:
        ToolError: the machine has no C++ compiler.
        BudgetError: no plan fits.
    """
    program = plan(entries, memory_bytes).program
    return SimDevice(program, generate("network", program))
