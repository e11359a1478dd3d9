"""From groups of nodes to kernels: operands, statements, stores, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bpc.errors import Span
from bpc.expr import Var, simplify, walk
from bpc.ir import Graph, Node, Value
from bpc.kernel import (
    ACCUMULATOR,
    RESERVED,
    Extent,
    Index,
    Item,
    Kernel,
    Operand,
    Reduction,
    Statement,
    Store,
    broadcast_strides,
    contiguous,
)
from bpc.ops import OPS, compute_dtype, is_elementwise, scalar_form
from bpc.passes.layout import Layout, assign_layouts, plain_layout
from bpc.plan.groups import PRODUCTS, Group, Grouping, form_groups
from bpc.plan.naming import describe_statement, distinguish, identifier, name_kernel
from bpc.types import BIT, Shape, compute_type, elements, extent, multiply

FLAT_PER_SLICE = 1 << 14
"""Elements of a flat kernel that one slice takes, at most MOST_SLICES of them."""
MOST_SLICES = 16
_DERIVED = re.compile(r"_(in|flags|t\d+)$")


@dataclass(frozen=True, slots=True)
class Fused:
    """Kernels in execution order, and the storage that every value name refers to."""

    kernels: tuple[Kernel, ...]
    roots: dict[str, str]
    values: dict[str, Value]
    layouts: Mapping[str, Layout]


def fuse(graph: Graph, rows: int, joined: bool = True) -> Fused:
    """Group the nodes of a graph of primitives and describe each group as a kernel.

    Args:
        graph: a graph of primitives, in an order that can be executed.
        rows: the planned number of rows; slices are fixed from it.
        joined: False for one kernel per node, to compare with.
    """
    grouping = form_groups(graph, joined)
    stored = _find_stored(grouping)
    layouts = assign_layouts(graph)
    made = [_Maker(grouping, group, stored, layouts, rows).make() for group in grouping.groups]
    kernels = _name_apart(grouping, made)
    return Fused(kernels, grouping.roots, grouping.values, layouts)


def _find_stored(grouping: Grouping) -> set[str]:
    """Values that must lie in memory: read by another group, or kept after the last node."""
    stored = {grouping.root(name) for name in grouping.graph.kept()}
    for group in grouping.groups:
        stored.update(leaf for leaf in group.reads if not group.makes(leaf))
        for node in group.nodes:
            if node.op in PRODUCTS:
                stored.update(grouping.root(name) for name in node.inputs)
    return stored


def _name_apart(grouping: Grouping, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels under names that differ."""
    taken: dict[str, None] = {}
    for group, kernel in zip(grouping.groups, kernels, strict=True):
        taken[distinguish(kernel.name, group.nodes[-1], taken)] = None
    return tuple(replace(kernel, name=name) for kernel, name in zip(kernels, taken, strict=True))


@dataclass(slots=True)
class _Maker:
    """Turns one group into a kernel."""

    grouping: Grouping
    group: Group
    stored: set[str]
    layouts: Mapping[str, Layout]
    rows: int
    reads: list[Operand] = field(default_factory=list)
    writes: list[Operand] = field(default_factory=list)
    body: list[Item] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)

    def make(self) -> Kernel:
        """The kernel of the group."""
        self.taken |= {ACCUMULATOR, *RESERVED}
        for node in self.group.nodes:
            self._add(node)
        for node in self.group.nodes:
            self._store(node)
        attrs = self._attrs()
        skeleton, inner = self._shape()
        nodes = tuple(node.name for node in self.group.nodes)
        kernel = Kernel(
            self._name(skeleton),
            skeleton,
            self.group.space,
            inner,
            tuple(self.reads),
            tuple(self.writes),
            tuple(self.body),
            tuple(self.stores),
            nodes,
            tuple(dict.fromkeys(node.span for node in self.group.nodes)),
            self._flops(),
            self._slices(skeleton, inner),
            tuple(self.sources),
            attrs,
        )
        return kernel if inner == self.group.inner else _resplit(kernel, inner)

    # -- body ---------------------------------------------------------------------------------

    def _add(self, node: Node) -> None:
        if node.op in PRODUCTS:
            self._add_product(node)
        elif is_elementwise(node):
            self._add_statement(node)
        else:
            self._add_reduction(node)

    def _add_product(self, node: Node) -> None:
        """The factors are read by the skeleton; a bias is the first step of the epilogue."""
        for name in node.inputs[:2]:
            shape = self.grouping.values[name].shape
            root = self.grouping.root(name)
            label = self._unique(identifier(root))
            dtype = self.grouping.values[root].dtype
            strides = self._strides(root, shape)
            self.reads.append(Operand(root, label, dtype, shape, strides, 1))
            self.sources.append(label)
        value = node.output
        compute = compute_type(*(self.grouping.values[name].dtype for name in node.inputs))
        expr, names = Var("acc"), [("acc", ACCUMULATOR)]
        if len(node.inputs) == 3:
            bias = self._bias(node)
            expr, names = Var("acc") + Var("bias"), [*names, ("bias", bias)]  # type: ignore[assignment]
        label = self._label(value)
        self.body.append(
            Statement(
                label,
                expr,
                tuple(names),
                value.dtype,
                compute,
                "inner",
                node.name,
                describe_statement(node),
                node.span,
            )
        )

    def _bias(self, node: Node) -> str:
        """The bias of a matrix product lies along its columns, of a convolution its channels."""
        name = node.inputs[2]
        shape = self.grouping.values[name].shape
        aligned = shape if node.op == "gemm" else (*shape, 1, 1)
        return self._operand(name, aligned, self.group.space)

    def _add_statement(self, node: Node) -> None:
        expr, arguments = scalar_form(node)
        expr = simplify(expr)
        used = {leaf.name for leaf in walk(expr) if isinstance(leaf, Var)}
        frame = self._frame(node)
        names = tuple(
            (argument, self._read(name, frame))
            for argument, name in zip(arguments, node.inputs, strict=True)
            if argument in used
        )
        value = node.output
        operands = [self.grouping.values[name] for name in node.inputs]
        self.body.append(
            Statement(
                self._label(value),
                expr,
                names,
                value.dtype,
                compute_dtype(node, operands),
                self._level_of(names),
                node.name,
                describe_statement(node),
                node.span,
            )
        )

    def _add_reduction(self, node: Node) -> None:
        """Sums and maxima; their source is a statement's label or a loaded operand's."""
        value = node.output
        frame = self._frame(node)
        count = 0
        if node.op == "combine":
            shape = self.grouping.values[node.inputs[0]].shape
            count = elements(shape, 1)
            source = self._operand(node.inputs[0], shape, shape)
        else:
            source = self._read(node.inputs[0], frame)
        level = "scalar" if node.op == "combine" else "row"
        self.body.append(
            Reduction(
                self._label(value),
                node.attr("kind", "sum"),
                source,
                compute_type(value.dtype, self.grouping.values[node.inputs[0]].dtype),
                value.dtype,
                node.name,
                node.span,
                level,
                count,
            )
        )

    def _read(self, name: str, frame: Shape) -> str:
        """The label of a value: made here, made from the position, or loaded."""
        root = self.grouping.root(name)
        maker = self.grouping.makers.get(root)
        if maker is not None and maker.op == "index":
            return self._index(maker, frame)
        if maker is not None and maker.op == "extent":
            return self._extent(maker)
        if root in self.labels:
            return self.labels[root]
        return self._operand(name, self.grouping.values[name].shape, frame)

    def _index(self, node: Node, frame: Shape) -> str:
        if node.output.name in self.labels:
            return self.labels[node.output.name]
        known = self._same_index(node, frame)
        if known is not None:
            return known
        axis, first = node.attr("axis"), None
        if node.inputs:
            first = self._operand(node.inputs[0], (), frame)
        inner = self.group.inner
        level = "inner" if axis is None or axis >= len(frame) - inner else "row"
        label = self._label(node.output)
        self.body.append(Index(label, axis, frame, inner, first, level))
        return label

    def _same_index(self, node: Node, frame: Shape) -> str | None:
        """The label of an index with the same meaning."""
        first = self.grouping.root(node.inputs[0]) if node.inputs else None
        for item in self.body:
            if isinstance(item, Index) and (item.axis, item.dims) == (node.attr("axis"), frame):
                theirs = next((o.value for o in self.reads if o.label == item.first), None)
                if theirs == first:
                    return item.label
        return None

    def _extent(self, node: Node) -> str:
        if node.output.name not in self.labels:
            self.body.append(Extent(self._label(node.output), node.attr("dim")))
        return self.labels[node.output.name]

    def _operand(self, name: str, shape: Shape, frame: Shape) -> str:
        """Declare a tensor that is read over the frame; one declaration per way of reading."""
        root = self.grouping.root(name)
        strides = broadcast_strides(self._strides(root, shape), shape, frame)
        for known in self.reads:
            same = (known.value, known.dims, known.strides) == (root, frame, strides)
            if same and known.label not in self.sources:  # a factor is read by the skeleton alone
                return known.label
        label = self._unique(identifier(root))
        dtype = self.grouping.values[root].dtype
        self.reads.append(Operand(root, label, dtype, frame, strides, self.group.inner))
        return label

    def _strides(self, root: str, shape: Shape) -> tuple[int, ...]:
        """Strides of a stored value, or of a view of it in another shape."""
        value = self.grouping.values[root]
        if value.shape == shape:
            return self.layouts[root].strides(shape)
        return plain_layout(Value(root, value.dtype, shape)).strides(shape)

    def _frame(self, node: Node) -> Shape:
        """The axes over which the node's operands are read."""
        shape, space = node.output.shape, self.group.space
        if is_elementwise(node) and elements(shape, 2) == elements(space, 2):
            return shape
        return space

    def _level_of(self, names: Iterable[tuple[str, str]]) -> str:
        """How often a statement is computed: as often as its most frequent operand."""
        return highest(self._level_of_label(label) for _, label in names)

    def _level_of_label(self, label: str) -> str:
        if label == ACCUMULATOR:
            return "inner"
        for item in self.body:
            if item.label == label:
                return item.level
        return next(item.level for item in self.reads if item.label == label)

    def _label(self, value: Value) -> str:
        label = self._unique(identifier(value.name))
        self.labels[value.name] = label
        return label

    def _unique(self, stem: str) -> str:
        """A label that is free. Targets derive `x_in`, `x_flags` and `x_t0` from x themselves."""
        stem = f"v{stem}" if stem.startswith("bpc_") else stem
        stem = f"{stem}_" if _DERIVED.search(stem) else stem
        label, count = stem, 1
        while label in self.taken:
            count += 1
            label = f"{stem}_{count}"
        self.taken.add(label)
        return label

    # -- results ------------------------------------------------------------------------------

    def _store(self, node: Node) -> None:
        value = node.output
        if value.name not in self.stored or self._is_pulled(value.name):
            return
        space, inner = self.group.space, self.group.inner
        if self.group.skeleton == "columns":
            dims, strides = value.shape, self._strides(value.name, value.shape)
        elif self.group.skeleton == "chunks":
            dims, strides, inner = value.shape, self._strides(value.name, value.shape), 0
        else:
            dims = value.shape if elements(value.shape, 2) == elements(space, 2) else space
            own = self._strides(value.name, value.shape)
            strides = broadcast_strides(own, value.shape, dims)
        label = self._unique(f"{self.labels[value.name]}_out")
        self.writes.append(Operand(value.name, label, value.dtype, dims, strides, inner))
        self.stores.append(Store(self.labels[value.name], label))

    def _is_pulled(self, name: str) -> bool:
        """Whether the node is only a copy that the group pulled in for itself."""
        return self.grouping.home.get(name) is not self.group

    # -- facts --------------------------------------------------------------------------------

    def _shape(self) -> tuple[str, int]:
        """Skeleton and inner axes; a flat group that broadcasts becomes rows."""
        group = self.group
        if group.skeleton != "flat":
            return group.skeleton, group.inner
        operands = [*self.reads, *self.writes]
        plain = all(item.is_flat or item.is_scalar for item in operands)
        positional = any(isinstance(item, Index) and (item.axis is not None) for item in self.body)
        if plain and not positional:
            return "flat", len(group.space)
        rank = len(group.space)
        for inner in range(rank, 0, -1):
            if inner < rank and all(_is_regular(item, inner) for item in operands):
                return "rows", inner
        return "rows", 1

    def _name(self, skeleton: str) -> str:
        """What a reader would call it, by its nodes without copies of other kernels' values."""
        home = self.grouping.home
        own = [node for node in self.group.nodes if home.get(node.name, self.group) is self.group]
        return name_kernel(own, skeleton)

    def _flops(self) -> int:
        total = 0
        for node in self.group.nodes:
            operands = [self.grouping.values[name] for name in node.inputs]
            total += OPS[node.op].flops(node, operands, self.rows)
        return total

    def _slices(self, skeleton: str, inner: int) -> int:
        space, rows = self.group.space, self.rows
        count = elements(space, rows)
        if skeleton == "scalar":
            return 1
        if skeleton == "flat":
            return max(1, min(MOST_SLICES, count // FLAT_PER_SLICE))
        if skeleton == "gemm":
            across, along = gemm_slices(extent(space[0], rows), extent(space[1], rows))
            return across * along
        outer = extent(multiply(space[: len(space) - inner]), rows)
        if skeleton == "chunks":
            return elements(self.group.nodes[-1].output.shape, 1)
        if skeleton == "columns":
            return self._column_slices()
        if skeleton.startswith("conv2d"):
            return max(1, min(MOST_SLICES, extent(multiply(space[:2]), rows)))
        return max(1, min(MOST_SLICES, outer, count // 1024))

    def _column_slices(self) -> int:
        result = self.group.nodes[-1].output
        width = extent(multiply(result.shape), self.rows)
        return max(1, min(MOST_SLICES, width // 64))

    def _attrs(self) -> tuple[tuple[str, Any], ...]:
        first = next((n for n in self.group.nodes if n.op in PRODUCTS or "reduce" in n.op), None)
        if first is None:
            return ()
        kept = ("ta", "tb", "first", "count", "stride", "padding", "kind")
        attrs = [(key, value) for key, value in first.attrs if key in kept]
        if first.op == "gemm":
            attrs += [(key, False) for key in ("ta", "tb") if first.attr(key) is None]
            rows = extent(self.group.space[0], self.rows)
            columns = extent(self.group.space[1], self.rows)
            attrs.append(("slices", gemm_slices(rows, columns)))
        if first.op in PRODUCTS:
            shapes = tuple(self.grouping.values[name].shape for name in first.inputs[:2])
            attrs.append(("shapes", shapes))
        return tuple(attrs)


def _is_regular(operand: Operand, inner: int) -> bool:
    """Whether the operand's trailing axes are one run of elements, or one element."""
    trailing = operand.strides[len(operand.strides) - inner :]
    dims = operand.dims[len(operand.dims) - inner :]
    return trailing == contiguous(dims) or not any(trailing)


def _resplit(kernel: Kernel, inner: int) -> Kernel:
    """The same kernel with `inner` trailing axes counted by c, and levels to match."""
    reads = tuple(replace(item, inner=inner) for item in kernel.reads)
    levels = {item.label: item.level for item in reads} | {ACCUMULATOR: "inner"}
    body: list[Item] = []
    for item in kernel.body:
        if isinstance(item, Index):
            near = item.axis is None or item.axis >= len(item.dims) - inner
            item = replace(item, inner=inner, level="inner" if near else "row")
        elif isinstance(item, Statement):
            item = replace(item, level=highest(levels[label] for _, label in item.names))
        levels[item.label] = item.level
        body.append(item)
    writes = tuple(replace(item, inner=inner) for item in kernel.writes)
    return replace(kernel, inner=inner, reads=reads, writes=writes, body=tuple(body))


def highest(levels: Iterable[str]) -> str:
    """The most frequent of several levels; scalar if there is none."""
    found = set(levels)
    return next((level for level in ("inner", "row") if level in found), "scalar")


def gemm_slices(m: int, n: int) -> tuple[int, int]:
    """Parts of the rows and of the columns of a product: about eight, whole tiles each.

    Columns are cut first (a part packs its own panel of the right factor once); rows are cut when
    there are too few columns to keep two threads evenly busy.
    """
    panels = -(-n // 32)
    along = next((parts for parts in (8, 6, 4, 2) if panels % parts == 0), 1)
    if panels > 8 and along < 4:
        along = 8
    across = 1
    while along * across < 8 and across * 2 * 16 <= m:
        across *= 2
    return across, along


def spans_of(kernel: Kernel) -> Iterator[Span]:
    """Places in the spec that caused the kernel."""
    yield from kernel.spans


__all__ = ["BIT", "Fused", "fuse", "gemm_slices", "identifier"]
