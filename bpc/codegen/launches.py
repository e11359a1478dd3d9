"""Kernels that share one CUDA launch: parts of one function, and tails of the last block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bpc.codegen.lines import structure
from bpc.kernel import Kernel
from bpc.types import Rows, elements

TABLE = ("flat", "chunks")
"""Skeletons that find their tensors in a table, so that one launch serves many of them."""

_TAIL_ELEMENTS = 1 << 14  # what one block may still do alone


@dataclass(frozen=True, slots=True)
class Launch:
    """`parts` are kernels of one function, side by side; `tails` follow in the last block."""

    parts: tuple[int, ...]
    tails: tuple[int, ...] = ()


def group_launches(
    kernels: Sequence[Kernel], barriers: Sequence[bool], rows: int
) -> tuple[Launch, ...]:
    """The launches of an entry point, in order; kernels are named by their index.

    Args:
        kernels: in execution order.
        barriers: whether something after kernel i depends on what ran since the last barrier.
        rows: planned rows.
    """
    launches: list[Launch] = []
    for at, kernel in enumerate(kernels):
        last = launches[-1] if launches else None
        if last and _is_part(kernels, barriers, last, at):
            launches[-1] = replace(last, parts=(*last.parts, at))
        elif last and _is_tail(kernel, rows):
            launches[-1] = replace(last, tails=(*last.tails, at))
        else:
            launches.append(Launch((at,)))
    return tuple(launches)


def _is_part(kernels: Sequence[Kernel], barriers: Sequence[bool], last: Launch, at: int) -> bool:
    first = kernels[last.parts[0]]
    return (
        not last.tails
        and kernels[at].skeleton in TABLE
        and not any(barriers[last.parts[0] : at])
        and structure(first) == structure(kernels[at])
    )


def _is_tail(kernel: Kernel, rows: int) -> bool:
    """Work for a single warp or thread that waits for everything before it."""
    if kernel.skeleton == "scalar":
        return True
    single = kernel.outer_dim == 1 and not isinstance(kernel.outer_dim, Rows)
    return kernel.skeleton == "rows" and single and elements(kernel.space, rows) <= _TAIL_ELEMENTS
