"""Lines of C++ from the statements of a kernel. Shared by every target that speaks C++."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bpc.expr import (
    Call,
    Const,
    Expr,
    Names,
    Var,
    is_whole,
    render_c,
    render_whole,
    split_common,
    walk,
)
from bpc.kernel import (
    ACCUMULATOR,
    Extent,
    Index,
    Item,
    Kernel,
    Operand,
    Reduction,
    Statement,
    Store,
)
from bpc.types import BIT, F64, I32, I64, DType, Rows, Shape

_POINTEES = {"f64": "double", "f32": "float", "f16": "f16", "bf16": "bf16", "i64": "int64_t"}
_POINTEES |= {"i32": "int32_t", "bit": "uint8_t"}
_REGISTERS = {"f64": "double", "i64": "int64_t", "i32": "int32_t", "bit": "bool"}


def pointee(dtype: DType) -> str:
    """The C++ type of an element in memory."""
    return _POINTEES[dtype.name]


def register(dtype: DType) -> str:
    """The C++ type of a value in a register: float for every float narrower than double."""
    return _REGISTERS.get(dtype.name, "float")


def render_dim(dim: int | Rows) -> str:
    """An extent as C++: a number, or a multiple of the run-time `rows`."""
    if not isinstance(dim, Rows):
        return str(dim)
    return "rows" if dim.factor == 1 else f"{dim.factor} * rows"


def position(dims: Shape, strides: tuple[int, ...], counter: str) -> list[str]:
    """Terms of the element offset along axes that one counter runs over.

    The counter is taken apart only where axes differ in a way that one stride cannot express.
    """
    groups: list[tuple[int | Rows, int]] = []
    for dim, stride in zip(dims, strides, strict=True):
        if dim == 1:
            continue
        if groups and isinstance(dim, int) and groups[-1][1] == stride * dim:
            size = groups[-1][0]
            merged = Rows(size.factor * dim) if isinstance(size, Rows) else size * dim
            groups[-1] = (merged, stride)
        else:
            groups.append((dim, stride))
    terms = []
    for at, (_, stride) in enumerate(groups):
        if stride:
            below = _product(size for size, _ in groups[at + 1 :])
            digit = counter if below == 1 else f"{counter} / {below}"
            size = groups[at][0]
            if at:
                digit = f"{digit} % {size}" if below == 1 else f"({digit}) % {size}"
            wrapped = digit if digit == counter else f"({digit})"
            terms.append(wrapped if stride == 1 else f"{wrapped} * {stride}")
    return terms


def _product(sizes: Iterable[int | Rows]) -> int:
    total = 1
    for size in sizes:
        assert isinstance(size, int), "the batch is the outermost axis"
        total *= size
    return total


def offset(operand: Operand, row: str, column: str) -> str:
    """The element offset of an operand at row counter and column counter."""
    split = len(operand.dims) - operand.inner
    terms = position(operand.dims[:split], operand.strides[:split], row)
    terms += position(operand.dims[split:], operand.strides[split:], column)
    return " + ".join(terms) or "0"


@dataclass(frozen=True, slots=True)
class Counters:
    """The names of the loop counters inside a skeleton."""

    row: str = "r"
    column: str = "c"


@dataclass(slots=True)
class Lines:
    """Renders the items of one kernel, each once per block that asks for it."""

    kernel: Kernel
    counters: Counters = Counters()
    items: dict[str, Item] = field(init=False)
    operands: dict[str, Operand] = field(init=False)

    def __post_init__(self) -> None:
        self.items = {item.label: item for item in self.kernel.body}
        self.operands = {item.label: item for item in self.kernel.reads}

    # -- blocks -------------------------------------------------------------------------------

    def block(self, wanted: Iterable[str], level: str) -> list[str]:
        """Loads and statements of one level that the wanted labels need, in order."""
        needed = self.closure(wanted)
        lines = [
            self.load(operand)
            for label, operand in self.operands.items()
            if label in needed and operand.level == level and label not in self.kernel.sources
        ]
        for item in self.kernel.body:
            if item.label in needed and item.level == level and not isinstance(item, Reduction):
                lines.extend(self.item(item))
        return lines

    def closure(self, wanted: Iterable[str]) -> set[str]:
        """The labels and everything they are computed from."""
        found: set[str] = set()
        pending = list(wanted)
        while pending:
            label = pending.pop()
            if label in found:
                continue
            found.add(label)
            pending.extend(self._uses(label))
        return found

    def _uses(self, label: str) -> list[str]:
        item = self.items.get(label)
        if isinstance(item, Statement):
            return [name for _, name in item.names]
        if isinstance(item, Index):
            return [item.first] if item.first else []
        return []  # a reduction is finished before the block that reads it begins

    def level_of(self, label: str) -> str:
        """How often a label is computed."""
        if label == ACCUMULATOR:
            return "inner"
        item = self.items.get(label)
        return item.level if item is not None else self.operands[label].level

    # -- single lines -------------------------------------------------------------------------

    def load(self, operand: Operand) -> str:
        """Read one element."""
        where = offset(operand, self.counters.row, self.counters.column)
        function = "bpc_bit_load" if operand.dtype == BIT else "bpc_load"
        kind = register(operand.dtype)
        return f"const {kind} {operand.label} = {function}({operand.label}_in, {where});"

    def item(self, item: Item) -> list[str]:
        """One statement, index or extent as C++."""
        if isinstance(item, Statement):
            return self._statement(item)
        if isinstance(item, Index):
            return [f"const int64_t {item.label} = {self._index(item)};"]
        assert isinstance(item, Extent)
        return [f"const int64_t {item.label} = {render_dim(item.dim)};"]

    def _index(self, item: Index) -> str:
        split = len(item.dims) - item.inner
        row, column = self.counters.row, self.counters.column
        if item.axis is not None:
            axes = item.dims[:split] if item.axis < split else item.dims[split:]
            axis = item.axis if item.axis < split else item.axis - split
            strides = tuple(int(k == axis) for k in range(len(axes)))
            return " + ".join(position(axes, strides, row if item.axis < split else column)) or "0"
        terms = [column]
        if split:
            width = _product(item.dims[split:])
            terms.insert(0, f"{row} * {width}" if width != 1 else row)
        if item.first:
            per_row = _product(item.dims[1:])
            terms.append(f"{item.first} * {per_row}")
        return " + ".join(terms)

    def _statement(self, item: Statement) -> list[str]:
        parts, expr = split_common(item.expr, prefix=f"{item.label}_t")
        common = {name: name for name, _ in parts}
        numbers = self._names(item, [expr, *(part for _, part in parts)])
        kind = register(I64)
        whole = {name for name, label in item.names if self._kind(label, item) == kind}
        names = Names(numbers | common, dict(item.names) | common, whole)
        compute = item.compute.name
        lines = [
            f"const {register(item.compute)} {name} = {render_c(part, compute, names)};"
            for name, part in parts
        ]
        if register(item.dtype) == kind and is_whole(expr, whole):
            text = render_whole(expr, compute, names)
        else:
            text = self._rounded(item, render_c(expr, compute, names))
        comment = f"  // {item.op}, {item.span.file}:{item.span.line}"
        return [*lines, f"const {register(item.dtype)} {item.label} = {text};{comment}"]

    def _rounded(self, item: Statement, text: str) -> str:
        """The value as its declared type holds it."""
        if item.dtype == BIT:
            return text
        if item.dtype.bits == 16:
            return f"bpc_round<{pointee(item.dtype)}>({text})"
        if register(item.dtype) != register(item.compute):
            return f"{register(item.dtype)}({text})"
        return text

    def _names(self, item: Statement, exprs: list[Expr]) -> dict[str, str]:
        """Variables as C++: labels, converted where their type is not the computing one."""
        whole = set().union(*(_whole_numbers(expr) for expr in exprs))
        compute = register(item.compute)
        names: dict[str, str] = {}
        for variable, label in item.names:
            kind = self._kind(label, item)
            same = kind in (compute, "bool") or variable in whole
            names[variable] = label if same else f"{compute}({label})"
        return names

    def _kind(self, label: str, reader: Statement) -> str:
        if label == ACCUMULATOR:
            return register(reader.compute)
        item = self.items.get(label)
        if isinstance(item, Index | Extent):
            return register(I64)
        if item is not None:
            return register(item.dtype)
        return register(self.operands[label].dtype)

    def store(self, store: Store) -> str:
        """Write one element."""
        operand = self.kernel.operand(store.operand)
        where = offset(operand, self.counters.row, self.counters.column)
        if operand.dtype == BIT:  # one condition a row: a line, and so a byte, of its own
            return f"{operand.label}[({where}) / 8] = {store.label};"
        return f"bpc_store({operand.label}, {where}, {store.label});"


def _whole_numbers(expr: Expr) -> set[str]:
    """Variables that are arguments of a draw, and stay whole numbers."""
    found: set[str] = set()
    for part in walk(expr):
        if isinstance(part, Call) and part.function == "uniform":
            for argument in part.arguments:
                found.update(leaf.name for leaf in walk(argument) if isinstance(leaf, Var))
    return found


def structure(kernel: Kernel) -> tuple[object, ...]:
    """What two kernels must share to be one function: everything but names and places."""
    number: dict[str, str] = {ACCUMULATOR: ACCUMULATOR}
    for label in (*(o.label for o in kernel.reads), *(item.label for item in kernel.body)):
        number[label] = f"n{len(number)}"
    for operand in kernel.writes:
        number[operand.label] = f"n{len(number)}"
    sized = kernel.skeleton not in ("flat", "chunks")
    return (
        kernel.skeleton,
        kernel.space if sized else None,
        kernel.inner if sized else None,
        tuple(_shape_of(item, sized) for item in kernel.reads),
        # A chunk's sum has one place whether there is one chunk or many.
        tuple(_shape_of(item, sized) for item in kernel.writes if kernel.skeleton != "chunks"),
        tuple(item.dtype for item in kernel.writes),
        tuple(_item_key(item, number) for item in kernel.body),
        tuple((number[store.label], number[store.operand]) for store in kernel.stores),
        tuple(number[label] for label in kernel.sources),
        kernel.attrs if sized else None,
    )


def _shape_of(operand: Operand, sized: bool) -> tuple[object, ...]:
    if not sized:
        return operand.dtype, operand.is_scalar
    return operand.dtype, operand.dims, operand.strides


def _item_key(item: Item, number: Mapping[str, str]) -> tuple[object, ...]:
    label = number[item.label]
    if isinstance(item, Statement):
        names = tuple((name, number[used]) for name, used in item.names)
        return label, item.expr, names, item.dtype, item.compute, item.level
    if isinstance(item, Index):
        return label, item.axis, item.dims, item.first and number[item.first]
    if isinstance(item, Extent):
        return label, item.dim
    return label, item.kind, number[item.source], item.accumulate, item.dtype, item.count


__all__ = ["F64", "I32", "Const", "Counters", "Lines", "offset", "pointee", "register"]
