"""What lies beside the arena on a GPU: launch blocks, and further slots for input batches.

The program plans one slot per input, inside the arena. A device that fills the next batch while
the last one is being read has further copies of these slots beside the arena; for each of them
all launches are packed once more, with the inputs' addresses moved there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bpc.codegen.cuda import CudaSource
from bpc.ir import Value
from bpc.plan.program import ALIGNMENT, Program
from bpc.runtime.launching import block_bytes
from bpc.runtime.reference import storage_type
from bpc.types import shape_at


@dataclass(frozen=True, slots=True)
class Side:
    """Offsets in the memory beside the arena: of each slot's launch block, and of its inputs.

    The first slot's inputs lie in the arena: its entry of `inputs` is empty.
    """

    blocks: tuple[int, ...]
    inputs: tuple[Mapping[str, int], ...]
    nbytes: int


def tensor_bytes(value: Value, rows: int) -> int:
    """Bytes of a plain tensor of `rows` rows."""
    count = int(np.prod(shape_at(value.shape, rows), dtype=np.int64))
    return count * storage_type(value.dtype).itemsize


def inputs_of(program: Program) -> dict[str, Value]:
    """The inputs of a program by name."""
    return {name: v for name, v in program.persistent.items() if program.kinds[name] == "input"}


def plan_side(program: Program, source: CudaSource, slots: int) -> Side:
    """Where everything beside the arena lies.

    Args:
        program: what is run.
        source: its launches.
        slots: places for a batch, at least 1; the first is the arena's own.
    """
    assert slots >= 1, slots
    end, blocks, inputs = 0, [], []
    for slot in range(slots):
        blocks.append(end)
        end = _align(end + block_bytes(source))
        places: dict[str, int] = {}
        for name, value in inputs_of(program).items() if slot else ():
            places[name] = end
            end = _align(end + tensor_bytes(value, program.rows))
        inputs.append(places)
    return Side(tuple(blocks), tuple(inputs), end)


def move_inputs(program: Program, moved: Mapping[str, int]) -> Program:
    """The program with these inputs at other offsets from the arena's start, even outside it."""
    entries = {
        name: replace(entry, offsets={**entry.offsets, **moved})
        for name, entry in program.entries.items()
    }
    return replace(program, entries=entries, offsets={**program.offsets, **moved})


def _align(end: int) -> int:
    return -(-end // ALIGNMENT) * ALIGNMENT
