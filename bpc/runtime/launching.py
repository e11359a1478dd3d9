"""From a list of CUDA launches to addresses: shared by the simulator and by CuPy.

Beside the arena a device holds one small *launch block*: the number of rows of the batch at hand,
the ticket that finds a launch's last block, and the tables of launches that serve many tensors.
Nothing in it depends on the batch but the rows, so that a captured graph can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpc.codegen.cuda import CudaLaunch, CudaSource
from bpc.plan.program import Entry, Program

ROWS_AT, TICKET_AT, TABLES_AT = 0, 8, 64
"""Where the row count (int64), the ticket (uint32) and the first table lie in the launch block."""


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """A launch with everything resolved.

    `arguments` are addresses (64-bit) and, where `is_address` is false, 32-bit integers.
    """

    function: str
    grid: int
    threads: int
    arguments: tuple[int, ...]
    is_address: tuple[bool, ...]

    def typed(self) -> list[int | np.int32]:
        """The arguments with their widths: addresses as Python integers, counts as int32."""
        pairs = zip(self.arguments, self.is_address, strict=True)
        return [value if address else np.int32(value) for value, address in pairs]


@dataclass(frozen=True, slots=True)
class Packed:
    """The launches of every entry point, and the launch block's bytes as they are uploaded."""

    launches: Mapping[str, tuple[PackedLaunch, ...]]
    block: NDArray[np.uint8]


def block_bytes(source: CudaSource) -> int:
    """The size of the launch block."""
    cells = sum(
        len(names) + len(numbers)
        for launches in source.launches.values()
        for launch in launches
        for names, numbers in launch.table
    )
    return TABLES_AT + 8 * cells


def pack_launches(
    program: Program, source: CudaSource, arena_address: int, block_address: int
) -> Packed:
    """Resolve all launches for an arena and a launch block at these addresses."""
    block = np.zeros(block_bytes(source), np.uint8)
    cells = block.view(np.int64)
    packed: dict[str, tuple[PackedLaunch, ...]] = {}
    at = TABLES_AT // 8
    for name, launches in source.launches.items():
        entry, done = program.entries[name], []
        for launch in launches:
            table = block_address + 8 * at
            for names, numbers in launch.table:
                row = [arena_address + _offset(entry, value) for value in names] + list(numbers)
                cells[at : at + len(row)] = row
                at += len(row)
            done.append(_pack(launch, entry, arena_address, block_address, table))
        packed[name] = tuple(done)
    return Packed(packed, block)


def _pack(
    launch: CudaLaunch, entry: Entry, arena_address: int, block_address: int, table: int
) -> PackedLaunch:
    fixed = {
        "rows": block_address + ROWS_AT,
        "ticket": block_address + TICKET_AT,
        "table": table,
        "parts": len(launch.table),
    }
    arguments = tuple(
        arena_address + _offset(entry, item.value) if item.kind == "tensor" else fixed[item.kind]
        for item in launch.arguments
    )
    addresses = tuple(item.kind != "parts" for item in launch.arguments)
    return PackedLaunch(launch.function, launch.grid, launch.threads, arguments, addresses)


def _offset(entry: Entry, value: str) -> int:
    return entry.offsets[entry.storage[value]]
