"""How tensors lie in memory: decided before planning, so that the arena counts every padded byte.

Only plain layouts are chosen so far: axes in logical order, conditions line by line in whole bytes.
Kernels, plans and the runtime ask a `Layout` for strides and bytes and assume nothing else, so
that padded strides, halos, packed weights and other axis orders can be decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from bpc.ir import Graph, Value
from bpc.types import BIT, DType, Rows, Shape, elements


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes from the slowest to the fastest, and the extent that each takes up in memory.

    `padded` is in logical order; an extent is never smaller than the logical one.
    """

    order: tuple[int, ...]
    padded: Shape

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Elements between neighbours along each logical axis; 0 for axes of length 1."""
        found = [0] * len(shape)
        step = 1
        for axis in reversed(self.order):
            found[axis] = 0 if shape[axis] == 1 else step
            dim = self.padded[axis]
            step *= dim.factor if isinstance(dim, Rows) else dim
        return tuple(found)

    def nbytes(self, dtype: DType, rows: int) -> int:
        """Bytes for a batch of `rows` rows."""
        return (elements(self.padded, rows) * dtype.bits + 7) // 8


def plain_layout(value: Value) -> Layout:
    """Logical order without padding; lines of one-bit elements begin with a byte of their own."""
    shape = value.shape
    if value.dtype == BIT and shape and not isinstance(shape[-1], Rows):
        shape = (*shape[:-1], -(-shape[-1] // 8) * 8)
    return Layout(tuple(range(len(shape))), shape)


def assign_layouts(graph: Graph) -> dict[str, Layout]:
    """A layout for every value of the graph. Views share the layout rule of what they show."""
    return {name: plain_layout(value) for name, value in graph.values().items()}
