"""The kernel form: a skeleton (a loop nest) with holes that statements fill.

A kernel walks a space of `outer` x `inner` elements: the outer index r counts all leading axes in
one, the inner index c all trailing ones. An operand says how its elements lie over that space;
bytes, legality and who writes what derive from it. Targets render skeletons; the form knows none.

skeleton   r counts                    c counts                  body
flat       -                           elements, at run time     statements
rows       rows                        a row                     reductions over c, statements
chunks     chunks of 4096 elements     the chunk's elements      one reduction over c
columns    outer x reduced             columns kept              sum over the reduced part of r
scalar     -                           -                         scalars in order
gemm       rows of the result          columns of the result     epilogue on the accumulator
conv2d*    image, channel, line        position in the line      epilogue on the accumulator
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bpc.errors import Span
from bpc.expr import Expr, render_formula
from bpc.ir import Attrs
from bpc.types import DType, Rows, Shape, elements, extent, multiply

CHUNK = 4096
"""Elements that one chunk of a whole-tensor reduction takes: a part of the sum's definition."""

ACCUMULATOR = "acc"
"""The label of a product's finished sum inside its epilogue."""

RESERVED = frozenset(
    (
        "r", "c", "q", "o", "j", "c0", "rows", "slice", "arena", "offsets", "value", "first",
        "last", "all", "count", "total", "part", "block", "blocks", "unit", "start", "end", "tile",
        "shape", "units", "image", "channel", "line", "finished", "out", "in", "tap_row", "sum",
        "main", "part_length", "f16", "bf16", "float", "double", "int", "bool", "char", "long",
        "void", "int32_t", "int64_t", "uint8_t", "uint32_t", "uint64_t",
    )
)
"""Names that the text around a kernel's statements uses itself: no label or function has one."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a kernel sees it.

    `value` names the storage; `dims` and `strides` (in elements, 0 where all positions share one)
    describe the axes of the space it is read under, the last `inner` of which are counted by c.
    """

    value: str
    label: str
    dtype: DType
    dims: Shape
    strides: tuple[int, ...]
    inner: int

    @property
    def is_scalar(self) -> bool:
        """Whether every position reads the same element."""
        return not any(self.strides)

    @property
    def is_flat(self) -> bool:
        """Whether element e of the space is element e of the tensor."""
        return self.strides == contiguous(self.dims)

    @property
    def follows_inner(self) -> bool:
        """Whether the element depends on c."""
        return any(self.strides[len(self.dims) - self.inner :])

    @property
    def level(self) -> str:
        """How often it is loaded: once (`scalar`), per `row`, or per `inner` element."""
        if self.is_scalar:
            return "scalar"
        return "inner" if self.follows_inner else "row"


@dataclass(frozen=True, slots=True)
class Statement:
    """`label = expr`, computed in `compute`, rounded to `dtype`; `names` maps variables to labels.

    `level` is scalar, row or inner, as for operands.
    """

    label: str
    expr: Expr
    names: tuple[tuple[str, str], ...]
    dtype: DType
    compute: DType
    level: str
    node: str
    op: str
    span: Span

    def formula(self) -> str:
        """The statement as a person writes it."""
        return f"{self.label} = {render_formula(self.expr, dict(self.names))}"


@dataclass(frozen=True, slots=True)
class Index:
    """`label` = a number that comes from the position: an axis position or an element number."""

    label: str
    axis: int | None
    dims: Shape
    inner: int
    first: str | None  # label of the operand that holds the first row's number
    level: str


@dataclass(frozen=True, slots=True)
class Extent:
    """`label` = an extent that may grow with the batch."""

    label: str
    dim: int | Rows
    level: str = "scalar"


@dataclass(frozen=True, slots=True)
class Reduction:
    """`label` = sum or max of `source` over c; in a scalar kernel, over `count` partial sums."""

    label: str
    kind: str
    source: str
    accumulate: DType
    dtype: DType
    node: str
    span: Span
    level: str = "row"
    count: int = 0


Item = Statement | Index | Extent | Reduction


@dataclass(frozen=True, slots=True)
class Store:
    """Write `label` to an operand of the kernel."""

    label: str
    operand: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated function, applied to given tensors.

    `space` is the full loop space with `inner` trailing axes counted by c. `reads` and `writes`
    are what crosses memory, each storage once; `sources` are the factors of a product (in order),
    a part of `reads`. `attrs` are a skeleton's further facts (transposes, strides, padding).
    """

    name: str
    skeleton: str
    space: Shape
    inner: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    body: tuple[Item, ...]
    stores: tuple[Store, ...]
    nodes: tuple[str, ...]
    spans: tuple[Span, ...]
    flops: int
    slices: int
    sources: tuple[str, ...] = ()
    attrs: Attrs = ()

    def attr(self, name: str) -> Any:
        """A fact of the skeleton."""
        return dict(self.attrs)[name]

    @property
    def outer_dim(self) -> int | Rows:
        """How many values r takes."""
        return multiply(self.space[: len(self.space) - self.inner])

    @property
    def inner_dim(self) -> int | Rows:
        """How many values c takes."""
        return multiply(self.space[len(self.space) - self.inner :])

    def operand(self, label: str) -> Operand:
        """A tensor by its label."""
        return next(item for item in (*self.reads, *self.writes) if item.label == label)


def contiguous(dims: Shape) -> tuple[int, ...]:
    """Strides in elements of a dense tensor; axes of length 1 have stride 0."""
    strides: list[int] = []
    step = 1
    for dim in reversed(dims):
        strides.append(0 if dim == 1 else step)
        step *= dim.factor if isinstance(dim, Rows) else dim
    return tuple(reversed(strides))


def broadcast_strides(own: tuple[int, ...], shape: Shape, space: Shape) -> tuple[int, ...]:
    """Strides over `space` of a tensor of `shape` with strides `own`, by NumPy's broadcasting."""
    lead = len(space) - len(shape)
    padded = (0,) * lead + own
    sizes = (1,) * lead + shape
    return tuple(
        0 if size == 1 else stride for size, stride in zip(sizes, padded, strict=True)
    )


def operand_bytes(operand: Operand, rows: int) -> int:
    """Distinct bytes that a kernel touches of an operand."""
    count = 1
    for dim, stride in zip(operand.dims, operand.strides, strict=True):
        count *= extent(dim, rows) if stride else 1
    return (count * operand.dtype.bits + 7) // 8


def kernel_bytes(kernel: Kernel, rows: int) -> tuple[int, int]:
    """(read, written) bytes, each storage counted once."""
    read = {item.value: operand_bytes(item, rows) for item in kernel.reads}
    written = {item.value: operand_bytes(item, rows) for item in kernel.writes}
    return sum(read.values()), sum(written.values())


def space_elements(kernel: Kernel, rows: int) -> int:
    """Elements of the loop space."""
    return elements(kernel.space, rows)
