"""Which nodes share a kernel: greedy groups over a graph of primitives.

Nodes are taken in order. Products, convolutions and reductions open groups; an element-wise node
joins the group that made its latest operand when it walks the same space, and so becomes an
epilogue. An element-wise value that only other element-wise nodes and reductions of the same phase
read is *deferred*: it has no group of its own and is computed inside each reader, so that it never
crosses memory. What the backward pass reads of the forward pass is always stored: what is kept is
the plan's decision, not an accident of grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bpc.expr import flops
from bpc.ir import Graph, Node, Value
from bpc.ops import is_elementwise
from bpc.ops.base import scalar_form
from bpc.types import Rows, Shape, elements, multiply

VIRTUAL = ("index", "extent", "reshape")
"""Ops that never make a kernel: numbers from positions, and views."""

PRODUCTS = ("gemm", "conv2d", "conv2d_input", "conv2d_weight")
_MOST_LEAVES = 4
"""A value of more tensors than these is stored: a running sum of gradients would have every reader
read, and keep, all that it ever added up."""
_COSTLY_FLOPS = 30  # an element-wise value above this is computed once, not in every reader


@dataclass(slots=True, eq=False)
class Group:
    """Nodes of one kernel, in an order that can be executed; `inner` trailing axes belong to c.

    `reads` are the leaves of its nodes, those among them that it makes itself included; `turn`
    grows along the groups.
    """

    skeleton: str
    space: Shape
    inner: int
    phase: str
    nodes: list[Node] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    turn: int = 0
    _made: set[str] = field(default_factory=set)

    def add(self, node: Node, leaves: Iterable[str]) -> None:
        """Append a node with its leaves, unless the group has it already."""
        if node.output.name not in self._made:
            self.nodes.append(node)
            self.reads.update(leaves)
            self._made.update(value.name for value in node.outputs)

    def makes(self, value: str) -> bool:
        """Whether one of the nodes makes the value."""
        return value in self._made

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
    _leaves: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = self.graph.values()
        self.makers = self.graph.producers()
        self.roots = self.graph.views()
        self.deferred = _find_deferred(self.graph)

    def append(self, group: Group) -> None:
        """Make a group the last one."""
        group.turn = self.groups[-1].turn + 1 if self.groups else 0
        self.groups.append(group)

    def after(self, group: Group | None) -> Iterator[Group]:
        """The groups behind one (all, for None), the last first."""
        for other in reversed(self.groups):
            if group is not None and other.turn <= group.turn:
                return
            yield other

    def root(self, value: str) -> str:
        """The value whose storage a (view of a) value shows."""
        return self.roots.get(value, value)

    def leaves(self, node: Node) -> tuple[str, ...]:
        """Values that must lie in memory (or in the group) for the node to be computed, once each.

        What is deferred or virtual stands for what it is computed from. Values of one network are
        read twice by the next layer and so on: each is looked at once, never once a path.
        """
        if node.name not in self._leaves:
            for inner in (*self._inside(node), node):
                self._leaves[inner.name] = tuple(
                    dict.fromkeys(leaf for name in inner.inputs for leaf in self._leaves_of(name))
                )
        return self._leaves[node.name]

    def _leaves_of(self, name: str) -> tuple[str, ...]:
        root = self.root(name)
        return self._leaves[self.makers[root].name] if self._is_inside(root) else (root,)

    def _is_inside(self, root: str) -> bool:
        """Whether the value is computed by its readers."""
        maker = self.makers.get(root)
        return maker is not None and (maker.op in VIRTUAL or root in self.deferred)

    def _inside(self, node: Node) -> list[Node]:
        """The nodes without a group that the node is computed from, operands first."""
        return self._ordered(node, self._is_inside)

    def pulled(self, node: Node, into: Group) -> list[Node]:
        """Deferred nodes that the node needs inside the group, operands first."""
        return self._ordered(node, lambda root: root in self.deferred and not into.makes(root))

    def _ordered(self, node: Node, wanted: Callable[[str], bool]) -> list[Node]:
        """The makers of wanted values that a node is computed from, each once, operands first."""
        found: dict[str, Node] = {}
        pending = [(node, iter(node.inputs))]
        entered = {node.name}
        while pending:
            reader, names = pending[-1]
            root = next((root for root in map(self.root, names) if wanted(root)), None)
            if root is None:
                pending.pop()
                found[reader.name] = reader
            elif self.makers[root].name not in entered:
                maker = self.makers[root]
                entered.add(maker.name)
                pending.append((maker, iter(maker.inputs)))
        del found[node.name]
        return list(found.values())

    def operands(self, node: Node) -> Iterator[str]:
        """The node's operands and those of the deferred nodes it would pull in, each once."""
        deferred = self._ordered(node, self.deferred.__contains__)
        return iter(dict.fromkeys(name for one in (node, *deferred) for name in one.inputs))


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
            group.add(pulled, grouping.leaves(pulled))
        group.add(node, grouping.leaves(node))
        grouping.home.update((value.name, group) for value in node.outputs)
    return grouping


def _part(grouping: Grouping) -> Grouping:
    """A group for every node: what fusion must not change a bit of."""
    grouping.deferred = set()
    for node in grouping.graph.nodes:
        if node.op not in VIRTUAL:
            group = _open(grouping, node)
            group.add(node, grouping.leaves(node))
            grouping.append(group)
            grouping.home.update((value.name, group) for value in node.outputs)
    return grouping


# -- deferred values ------------------------------------------------------------------------------


def _find_deferred(graph: Graph) -> set[str]:
    """Element-wise values that are computed inside their readers."""
    views = graph.views()
    kept = {views.get(name, name) for name in graph.kept()} | graph.kept()
    readers = graph.consumers()
    free = _free_scalars(graph)
    values = graph.values()
    found: dict[str, frozenset[str]] = {}  # and the values that each is computed from
    for node in graph.nodes:
        name = node.output.name
        if not is_elementwise(node) or name in kept:
            continue
        reading = readers.get(name, [])
        roots = [views.get(given, given) for given in node.inputs]
        leaves = frozenset[str]().union(*(found.get(root, {root}) for root in roots))
        size = elements(node.output.shape, 2)
        large = sum(elements(values[leaf].shape, 2) >= size for leaf in leaves)
        if _may_defer(node, reading, free) and (large <= _MOST_LEAVES or len(reading) == 1):
            found[name] = leaves
    return set(found)


def _may_defer(node: Node, readers: list[Node], free: set[str]) -> bool:
    if elements(node.output.shape, 2) == 1:
        # An update has a kernel for scalars anyway: there each is computed once, not per thread.
        return node.phase != "update" and free.issuperset(node.inputs)
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


def _free_scalars(graph: Graph) -> set[str]:
    """Inputs, states, and the scalars that can be computed anywhere from these alone."""
    free = {value.name for value in graph.inputs} | {state.name for state in graph.states}
    # A state that gets a new version here may change before a late reader.
    free -= {state for state, _ in graph.updates}
    versions = {value for _, value in graph.updates}
    for node in graph.nodes:
        if (
            (node.op in VIRTUAL or is_elementwise(node))
            and elements(node.output.shape, 2) == 1
            and node.output.name not in versions
            and free.issuperset(node.inputs)
        ):
            free.add(node.output.name)
    return free


def _flops(node: Node) -> int:
    return flops(scalar_form(node)[0])


# -- joining --------------------------------------------------------------------------------------


def _find_group(grouping: Grouping, node: Node) -> Group:
    group = _find_existing(grouping, node)
    if group is None:
        group = _open(grouping, node)
        grouping.append(group)
    return group


def _find_existing(grouping: Grouping, node: Node) -> Group | None:
    """A group that the node can join without waiting for a later one."""
    if node.op in (*PRODUCTS, "col_reduce", "chunk_reduce"):
        return None
    homes = {leaf: grouping.home[leaf] for leaf in grouping.leaves(node) if leaf in grouping.home}
    if _is_scalar(node):
        return _join_scalar(grouping, node.phase, homes.values())
    latest = max(homes.values(), key=lambda group: group.turn, default=None)
    if latest and _fits(grouping, latest, node) and _same_time(grouping, latest, node):
        return latest
    return _find_sibling(grouping, node, grouping.after(latest))


def _is_scalar(node: Node) -> bool:
    return node.op == "combine" or (
        is_elementwise(node) and elements(node.output.shape, 2) == 1
    )


def _join_scalar(grouping: Grouping, phase: str, homes: Iterable[Group]) -> Group | None:
    """The last scalar group, moved behind what the node reads if nobody read it yet.

    Of the node's phase: what belongs to the forward pass must be found there when it is repeated.
    """
    scalars = (one for one in grouping.after(None) if one.skeleton == "scalar")
    group = next((one for one in scalars if one.phase == phase), None)
    if group is None or all(home.turn <= group.turn for home in homes):
        return group
    later = grouping.after(group)
    if any(map(group.makes, (leaf for other in later for leaf in other.reads))):
        return None
    grouping.groups.remove(group)
    grouping.append(group)
    return group


def _same_time(grouping: Grouping, group: Group, node: Node) -> bool:
    """A backward node stays out of forward groups, unless only scalars were made since."""
    if group.phase == node.phase:
        return True
    return all(
        elements(value.shape, 2) == 1
        for other in grouping.after(group)
        for made in other.nodes
        for value in made.outputs
        if value.name not in grouping.deferred
    )


def _find_sibling(grouping: Grouping, node: Node, groups: Iterable[Group]) -> Group | None:
    """The first group over the same space that reads one of the same tensors."""
    mine = {leaf for leaf in grouping.leaves(node) if elements(grouping.values[leaf].shape, 2) > 1}
    for group in groups:
        alike = group.skeleton in ("flat", "rows") and group.phase == node.phase
        if alike and mine & group.reads and _fits(grouping, group, node):
            return group
    return None


def _fits(grouping: Grouping, group: Group, node: Node) -> bool:
    """Whether the node walks the group's space (or, in rows, makes one number per row)."""
    if node.op == "row_reduce":
        return _fits_reduction(grouping, group, node)
    if not is_elementwise(node):
        return False
    shape = node.output.shape
    if not all(_visible(grouping, group, name) for name in grouping.operands(node)):
        return False
    if group.skeleton in ("flat", "rows") or group.skeleton.startswith("conv2d"):
        return shape == group.space or (group.skeleton == "rows" and shape == group.row_shape())
    if group.skeleton == "gemm":
        return same_matrix(shape, group.space)
    return False


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
