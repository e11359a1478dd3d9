"""The graph: values, nodes with several results, states and their versions, builder, verifier.

A graph is a list of nodes in an order that can be executed. Everything is frozen; passes build
new graphs. A *state* (parameter, moment, gradient, control scalar) lives longer than one call:
reading its name reads the version at entry, and `Graph.updates` names the value that becomes its
next version, so that nothing is read after it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from bpc.errors import Span
from bpc.types import DType, Shape, format_shape

if TYPE_CHECKING:
    import networkx

Attrs = tuple[tuple[str, Any], ...]
Result = tuple[DType, Shape]


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the graph: its name, element type and shape."""

    name: str
    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{format_shape(self.shape)}"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `scope` is the user's layer; a derived node names its `origin` and `role`."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attrs: Attrs
    span: Span
    scope: str
    origin: str | None = None
    phase: str = "forward"  # "forward" | "backward" | "update"
    role: str = ""  # what the node is a part of: cross_entropy, relu_gradient, adam

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute `name`, or `default`."""
        return next((value for key, value in self.attrs if key == name), default)

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Init:
    """How a state starts: an initialiser's name, its options, and fans for scaled ones."""

    kind: str
    options: Attrs = ()
    fan_in: int = 0
    fan_out: int = 0
    gain: float = 1.0


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that outlives a call. `kind`: parameter, master, moment, gradient, control..."""

    value: Value
    kind: str
    init: Init
    span: Span

    @property
    def name(self) -> str:
        """The state's name."""
        return self.value.name


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in execution order with what enters, what persists and what leaves.

    `outputs` maps a role (loss, weight, prediction...) to a value; `updates` maps a state to the
    value that becomes its next version.
    """

    name: str
    inputs: tuple[Value, ...]
    states: tuple[State, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, str], ...] = ()
    updates: tuple[tuple[str, str], ...] = ()

    def values(self) -> dict[str, Value]:
        """All values by name."""
        found = {value.name: value for value in self.inputs}
        found.update((state.name, state.value) for state in self.states)
        found.update((value.name, value) for node in self.nodes for value in node.outputs)
        return found

    def producers(self) -> dict[str, Node]:
        """The node that makes each computed value."""
        return {value.name: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value, in order, once per reading operand."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def views(self) -> dict[str, str]:
        """The value whose elements each reshaped value shows."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if node.op == "reshape":
                source = node.inputs[0]
                found[node.output.name] = found.get(source, source)
        return found

    def output(self, role: str) -> str:
        """The value that plays `role`."""
        return dict(self.outputs)[role]

    def kept(self) -> set[str]:
        """Values that must exist after the last node: outputs and next versions of states."""
        return {name for _, name in self.outputs} | {name for _, name in self.updates}

    def digraph(self) -> networkx.MultiDiGraph[str]:
        """A networkx view: nodes by name, one edge per operand, labelled with the value."""
        import networkx as nx

        view: networkx.MultiDiGraph[str] = nx.MultiDiGraph(name=self.name)
        makers = self.producers()
        for node in self.nodes:
            view.add_node(node.name, op=node.op, phase=node.phase)
        for node in self.nodes:
            for position, name in enumerate(node.inputs):
                if name in makers:
                    view.add_edge(makers[name].name, node.name, value=name, operand=position)
        return view


class OpRow(Protocol):
    """What the builder and the verifier need of a row of the op table."""

    @property
    def infer(self) -> Callable[[Sequence[Value], Attrs], tuple[Result, ...]]:
        """Result types and shapes from the operands."""


@dataclass(slots=True)
class Builder:
    """Grows a graph node by node, inferring types and shapes from the op table."""

    table: Mapping[str, OpRow]
    span: Span
    scope: str = ""
    origin: str | None = None
    phase: str = "forward"
    role: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    @classmethod
    def on(cls, table: Mapping[str, OpRow], graph: Graph, span: Span) -> Builder:
        """A builder that continues `graph`."""
        values = graph.values()
        taken = set(values) | {node.name for node in graph.nodes}
        return cls(table, span, values=values, nodes=list(graph.nodes), taken=taken)

    def at(self, node: Node, phase: str | None = None) -> Builder:
        """The same growing graph, with new nodes derived from `node` and placed at its span."""
        origin, role = node.origin, node.role
        if phase is not None:
            origin, role = node.name, f"{node.role or node.op}_gradient"
        return replace(
            self,
            span=node.span,
            scope=node.scope,
            origin=origin,
            phase=phase or node.phase,
            role=role,
        )

    def unique(self, stem: str) -> str:
        """`stem`, or `stem.2`, `stem.3`... if it is taken; reserved from now on."""
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}.{count}"
        self.taken.add(name)
        return name

    def declare(self, value: Value) -> Value:
        """Make an input or state known."""
        assert value.name not in self.values, f"{value.name} is declared twice"
        self.values[value.name] = value
        self.taken.add(value.name)
        return value

    def add_all(
        self, op: str, inputs: Sequence[Value], name: str | None = None, **attrs: Any
    ) -> tuple[Value, ...]:
        """Append a node and return all its results; the first one carries the node's name."""
        packed = tuple(sorted(attrs.items()))
        results = self.table[op].infer(inputs, packed)
        label = self.unique(name or self._stem(op))
        names = [label] + [self.unique(f"{label}#{k}") for k in range(1, len(results))]
        outputs = tuple(
            Value(result, *kind) for result, kind in zip(names, results, strict=True)
        )
        operands = tuple(value.name for value in inputs)
        self.nodes.append(
            Node(
                label,
                op,
                operands,
                outputs,
                packed,
                self.span,
                self.scope,
                self.origin,
                self.phase,
                self.role,
            )
        )
        self.values.update((value.name, value) for value in outputs)
        return outputs

    def add(self, op: str, *inputs: Value, name: str | None = None, **attrs: Any) -> Value:
        """Append a node and return its first result."""
        return self.add_all(op, inputs, name, **attrs)[0]

    def _stem(self, op: str) -> str:
        scope = self.scope or op
        return scope if op == scope.rsplit(".", 1)[-1] else f"{scope}.{op}"


def verify(graph: Graph, table: Mapping[str, OpRow]) -> Graph:
    """Check the grammar of a graph and return it; a fault is a broken invariant of bpc."""
    known = {value.name: value for value in graph.inputs}
    for state in graph.states:
        assert state.name not in known, f"{state.name} is both an input and a state"
        known[state.name] = state.value
    names: set[str] = set()
    for node in graph.nodes:
        assert node.name not in names, f"two nodes are called {node.name}"
        names.add(node.name)
        _verify_node(node, known, table)
    for role, name in graph.outputs:
        assert name in known, f"output {role} is {name}, which nothing makes"
    states = {state.name: state.value for state in graph.states}
    for name, value in graph.updates:
        old, new = states[name], known[value]
        assert (old.dtype, old.shape) == (new.dtype, new.shape), f"{name} changes its type"
    return graph


def _verify_node(node: Node, known: dict[str, Value], table: Mapping[str, OpRow]) -> None:
    assert node.op in table, f"{node.name}: no op {node.op}"
    for name in node.inputs:
        assert name in known, f"{node.name} reads {name} before it is made"
    operands = [known[name] for name in node.inputs]
    results = table[node.op].infer(operands, node.attrs)
    made = tuple((value.dtype, value.shape) for value in node.outputs)
    assert made == results, f"{node.name}: declared {made}, inferred {results}"
    for value in node.outputs:
        assert value.name not in known, f"{value.name} is made twice"
        known[value.name] = value


def retain(graph: Graph, wanted: Iterable[str] | None = None) -> Graph:
    """Drop nodes that none of `wanted` (default: outputs and updates) depends on."""
    needed = set(graph.kept() if wanted is None else wanted)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value.name in needed for value in node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return replace(graph, nodes=tuple(reversed(kept)))
