"""Which nodes share a kernel: greedy groups over a graph of primitives.

Nodes are taken in order. Products, convolutions and reductions open groups; an element-wise node
joins the group that made its latest operand when it walks the same space, and so becomes an
epilogue. An element-wise value that only other element-wise nodes and reductions of the same phase
read is *deferred*: it has no group of its own and is computed inside each reader, so that it never
crosses memory. What the backward pass reads of the forward pass is always stored: what is kept is
the plan's decision, not an accident of grouping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bpc.expr import flops
from bpc.ir import Graph, Node, Value
from bpc.ops import is_elementwise
from bpc.ops.base import scalar_form
from bpc.types import Rows, Shape, elements, multiply

VIRTUAL = ("index", "extent", "reshape")
"""Ops that never make a kernel: numbers from positions, and views."""

PRODUCTS = ("gemm", "conv2d", "conv2d_input", "conv2d_weight")
_COSTLY_FLOPS = 30  # an element-wise value above this is computed once, not in every reader


@dataclass(slots=True)
class Group:
    """Nodes of one kernel, in an order that can be executed; `inner` trailing axes belong to c."""

    skeleton: str
    space: Shape
    inner: int
    phase: str
    nodes: list[Node] = field(default_factory=list)

    def makes(self, value: str) -> bool:
        """Whether one of the nodes makes the value."""
        return any(value == made.name for node in self.nodes for made in node.outputs)

    def row_shape(self) -> Shape:
        """The shape of one number per row."""
        return (*self.space[: len(self.space) - self.inner], *(1,) * self.inner)


@dataclass(slots=True)
class Grouping:
    """Groups in execution order, and what every value name stands for."""

    graph: Graph
    groups: list[Group] = field(default_factory=list)
    home: dict[str, Group] = field(default_factory=dict)
    roots: dict[str, str] = field(init=False)
    values: dict[str, Value] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    deferred: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.values = self.graph.values()
        self.makers = self.graph.producers()
        self.roots = {}
        for node in self.graph.nodes:
            if node.op == "reshape":
                source = node.inputs[0]
                self.roots[node.output.name] = self.roots.get(source, source)
        self.deferred = _find_deferred(self.graph)

    def root(self, value: str) -> str:
        """The value whose storage a (view of a) value shows."""
        return self.roots.get(value, value)

    def leaves(self, node: Node) -> Iterator[str]:
        """Values that must lie in memory (or in the group) for the node to be computed."""
        for name in node.inputs:
            yield from self._leaves_of(name)

    def _leaves_of(self, name: str) -> Iterator[str]:
        root = self.root(name)
        maker = self.makers.get(root)
        if maker is None:
            yield root
        elif maker.op in VIRTUAL or root in self.deferred:
            yield from self.leaves(maker)
        else:
            yield root

    def pulled(self, node: Node, into: Group) -> Iterator[Node]:
        """Deferred nodes that the node needs inside the group, operands first."""
        for name in node.inputs:
            maker = self.makers.get(self.root(name))
            if maker is None or self.root(name) not in self.deferred:
                continue
            if maker not in into.nodes:
                yield from self.pulled(maker, into)
                yield maker


def form_groups(graph: Graph, joined: bool = True) -> Grouping:
    """Group the nodes of a graph of primitives; not `joined`, each node gets a group of its own."""
    grouping = Grouping(graph)
    if not joined:
        return _part(grouping)
    for node in graph.nodes:
        if node.op in VIRTUAL or node.output.name in grouping.deferred:
            continue
        group = _find_group(grouping, node)
        for pulled in grouping.pulled(node, group):
            if pulled not in group.nodes:
                group.nodes.append(pulled)
        group.nodes.append(node)
        grouping.home.update((value.name, group) for value in node.outputs)
    return grouping


def _part(grouping: Grouping) -> Grouping:
    """A group for every node: what fusion must not change a bit of."""
    grouping.deferred = set()
    for node in grouping.graph.nodes:
        if node.op not in VIRTUAL:
            group = _open(grouping, node)
            group.nodes.append(node)
            grouping.groups.append(group)
            grouping.home.update((value.name, group) for value in node.outputs)
    return grouping


# -- deferred values ------------------------------------------------------------------------------


def _find_deferred(graph: Graph) -> set[str]:
    """Element-wise values that are computed inside their readers."""
    kept = {_follow(graph, name) for name in graph.kept()} | graph.kept()
    readers = graph.consumers()
    # A state that gets a new version here may change before a late reader: not free to be read.
    external = {value.name for value in graph.inputs} | {state.name for state in graph.states}
    external -= {state for state, _ in graph.updates}
    return {
        node.output.name
        for node in graph.nodes
        if is_elementwise(node)
        and node.output.name not in kept
        and _may_defer(node, readers.get(node.output.name, []), external, graph)
    }


def _follow(graph: Graph, name: str) -> str:
    makers = graph.producers()
    while name in makers and makers[name].op == "reshape":
        name = makers[name].inputs[0]
    return name


def _may_defer(node: Node, readers: list[Node], external: set[str], graph: Graph) -> bool:
    if elements(node.output.shape, 2) == 1:
        # An update has a kernel for scalars anyway: there each is computed once, not per thread.
        return node.phase != "update" and _is_free_scalar(node, external, graph)
    if any(reader.op in (*PRODUCTS, "reshape", "combine") for reader in readers):
        return False
    if any(reader.phase != node.phase for reader in readers):
        return False
    if not all(_is_hoisted(node.output.shape, reader) for reader in readers):
        return False
    return len(readers) == 1 or _flops(node) <= _COSTLY_FLOPS


def _is_hoisted(shape: Shape, reader: Node) -> bool:
    """Whether the reader computes the value no more often than it has elements."""
    if not is_elementwise(reader):
        return True
    walked = reader.output.shape
    filled = (*shape, *(1,) * (len(walked) - len(shape)))
    ones = next((k for k, dim in enumerate(filled) if dim != walked[k]), len(walked))
    return len(shape) == len(walked) and all(dim == 1 for dim in filled[ones:])


def _is_free_scalar(node: Node, external: set[str], graph: Graph) -> bool:
    """Whether a scalar can be computed anywhere from states and inputs."""
    makers = graph.producers()
    pending = list(node.inputs)
    while pending:
        name = pending.pop()
        if name in external:
            continue
        maker = makers.get(name)
        if maker is None:
            return False
        if maker.op not in VIRTUAL and not is_elementwise(maker):
            return False
        if elements(maker.output.shape, 2) != 1:
            return False
        if any(name == value for _, value in graph.updates):
            return False
        pending.extend(maker.inputs)
    return True


def _flops(node: Node) -> int:
    return flops(scalar_form(node)[0])


# -- joining --------------------------------------------------------------------------------------


def _find_group(grouping: Grouping, node: Node) -> Group:
    group = _find_existing(grouping, node)
    if group is None:
        group = _open(grouping, node)
        grouping.groups.append(group)
    return group


def _find_existing(grouping: Grouping, node: Node) -> Group | None:
    """A group that the node can join without waiting for a later one."""
    if node.op in (*PRODUCTS, "col_reduce", "chunk_reduce"):
        return None
    homes = {leaf: grouping.home[leaf] for leaf in grouping.leaves(node) if leaf in grouping.home}
    if _is_scalar(node):
        return _join_scalar(grouping, homes.values())
    order = {id(group): k for k, group in enumerate(grouping.groups)}
    latest = max(homes.values(), key=lambda group: order[id(group)], default=None)
    if latest and _fits(grouping, latest, node) and _same_time(grouping, latest, node):
        return latest
    after = order[id(latest)] + 1 if latest else 0
    return _find_sibling(grouping, node, grouping.groups[after:])


def _is_scalar(node: Node) -> bool:
    return node.op == "combine" or (
        is_elementwise(node) and elements(node.output.shape, 2) == 1
    )


def _join_scalar(grouping: Grouping, homes: Iterable[Group]) -> Group | None:
    """The last scalar group, moved behind what the node reads if nobody read it yet."""
    scalars = [group for group in grouping.groups if group.skeleton == "scalar"]
    if not scalars:
        return None
    group = scalars[-1]
    position = _position(grouping, group)
    if all(_position(grouping, home) <= position for home in homes):
        return group
    later = grouping.groups[position + 1 :]
    if any(_reads(grouping, other, group) for other in later):
        return None
    grouping.groups.remove(group)
    grouping.groups.append(group)
    return group


def _position(grouping: Grouping, group: Group) -> int:
    return next(k for k, other in enumerate(grouping.groups) if other is group)


def _reads(grouping: Grouping, reader: Group, maker: Group) -> bool:
    return any(maker.makes(leaf) for node in reader.nodes for leaf in grouping.leaves(node))


def _same_time(grouping: Grouping, group: Group, node: Node) -> bool:
    """A backward node stays out of forward groups, unless only scalars were made since."""
    if group.phase == node.phase:
        return True
    later = grouping.groups[_position(grouping, group) + 1 :]
    return all(
        elements(value.shape, 2) == 1
        for other in later
        for made in other.nodes
        for value in made.outputs
        if value.name not in grouping.deferred
    )


def _find_sibling(grouping: Grouping, node: Node, groups: list[Group]) -> Group | None:
    """A later group over the same space that reads one of the same tensors."""
    mine = {leaf for leaf in grouping.leaves(node) if elements(grouping.values[leaf].shape, 2) > 1}
    for group in reversed(groups):
        if group.skeleton in ("flat", "rows") and group.phase == node.phase:
            theirs = {leaf for other in group.nodes for leaf in grouping.leaves(other)}
            if mine & theirs and _fits(grouping, group, node):
                return group
    return None


def _fits(grouping: Grouping, group: Group, node: Node) -> bool:
    """Whether the node walks the group's space (or, in rows, makes one number per row)."""
    if node.op == "row_reduce":
        return _fits_reduction(grouping, group, node)
    if not is_elementwise(node):
        return False
    shape = node.output.shape
    if not all(_visible(grouping, group, name) for name in _operands(grouping, node)):
        return False
    if group.skeleton in ("flat", "rows") or group.skeleton.startswith("conv2d"):
        return shape == group.space or (group.skeleton == "rows" and shape == group.row_shape())
    if group.skeleton == "gemm":
        return same_matrix(shape, group.space)
    return False


def _operands(grouping: Grouping, node: Node) -> Iterator[str]:
    """The node's operands and those of the deferred nodes it would pull in."""
    for name in node.inputs:
        yield name
        root = grouping.root(name)
        if root in grouping.deferred:
            yield from _operands(grouping, grouping.makers[root])


def _visible(grouping: Grouping, group: Group, name: str) -> bool:
    """Whether a value made in the group can be read there: not through a change of shape."""
    root = grouping.root(name)
    if grouping.home.get(root) is not group:
        return True
    shape, made = grouping.values[name].shape, grouping.values[root].shape
    return shape == made or (group.skeleton == "gemm" and same_matrix(shape, group.space))


def same_matrix(shape: Shape, matrix: Shape) -> bool:
    """Whether `shape` is the matrix with its rows written as several axes."""
    return (
        len(shape) >= 2
        and shape[-1] == matrix[-1]
        and _one_batch(shape[:-1])
        and multiply(shape[:-1]) == matrix[0]
    )


def _one_batch(shape: Shape) -> bool:
    return sum(isinstance(dim, Rows) for dim in shape) <= 1


def _fits_reduction(grouping: Grouping, group: Group, node: Node) -> bool:
    shape = grouping.values[node.inputs[0]].shape
    count = node.attr("count")
    if shape != group.space or not _visible(grouping, group, node.inputs[0]):
        return False
    if group.skeleton == "flat":
        if len(shape) == count:
            return False
        group.skeleton, group.inner = "rows", count
        return True
    return group.skeleton == "rows" and group.inner == count


def _open(grouping: Grouping, node: Node) -> Group:
    """A new group around the node."""
    shape = node.output.shape
    if node.op in PRODUCTS:
        return Group(node.op, shape, 1, node.phase)
    if _is_scalar(node):
        return Group("scalar", (), 0, node.phase)
    if is_elementwise(node):
        return Group("flat", shape, 1, node.phase)
    source = grouping.values[node.inputs[0]].shape
    if node.op == "row_reduce":
        return Group("rows", source, node.attr("count"), node.phase)
    if node.op == "chunk_reduce":
        return Group("chunks", source, len(source), node.phase)
    assert node.op == "col_reduce", f"no skeleton for {node.op}"
    inner = len(source) - node.attr("first") - node.attr("count")
    return Group("columns", source, inner, node.phase)
