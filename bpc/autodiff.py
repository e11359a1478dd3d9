"""The backward graph: one function from graph to graph, which can be applied again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bpc.expr import Const, flops, variables
from bpc.ir import Builder, Graph, Node, Value, retain, verify
from bpc.ops import OPS, GradientForm, gradient_elementwise, gradient_forms, is_elementwise
from bpc.ops.base import scalar_form
from bpc.types import BIT, nbytes

_SAMPLE_ROWS = 1 << 10  # choices compare bytes at this many rows; only ratios matter


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A joint graph, and for each requested value the name of its gradient (None: no path)."""

    graph: Graph
    gradients: Mapping[str, str | None]


def differentiate(
    graph: Graph, seeds: Mapping[str, str | None], wrt: Sequence[str]
) -> Differentiated:
    """Append the nodes that compute d (sum of seed * value) / d w for every w in `wrt`.

    Args:
        graph: any verified graph; its own backward nodes are ordinary nodes.
        seeds: a value's name to the value that multiplies its gradient; None stands for ones.
        wrt: names of states, inputs or intermediate values.

    Source: reverse accumulation, Linnainmaa 1970.
    """
    needed = _dependents(graph, wrt)
    choice = _Choice(graph, needed)
    b = Builder.on(OPS, graph, graph.nodes[0].span)
    pending: dict[str, list[Value]] = {}
    for name, seed in seeds.items():
        pending[name] = [b.values[seed] if seed else _ones(b, graph, name)]
    rule = gradient_elementwise(choice.choose)
    for node in reversed(graph.nodes):
        if not any(value.name in pending and value.name in needed for value in node.outputs):
            continue
        here = b.at(node, "backward")
        results = [_total(here, pending, value.name) for value in node.outputs]
        row = OPS[node.op]
        backward = rule if is_elementwise(node) else row.gradient
        if backward is None:
            assert node.output.dtype.kind != "float", f"{node.op} has no derivative of its own"
            continue
        for name, gradient in zip(node.inputs, backward(here, node, results), strict=True):
            if gradient is not None and name in needed:
                pending.setdefault(name, []).append(gradient)
    last = b.at(graph.nodes[0], "backward")
    totals = {name: _total(last, pending, name) for name in wrt}
    joint = replace(graph, nodes=_forward_first(graph, b.nodes))
    names = {name: total.name if total else None for name, total in totals.items()}
    kept = graph.kept() | {name for name in names.values() if name}
    return Differentiated(verify(retain(joint, kept), OPS), names)


def _dependents(graph: Graph, wrt: Sequence[str]) -> set[str]:
    """`wrt` and every value computed from it."""
    found = set(wrt)
    for node in graph.nodes:
        if any(name in found for name in node.inputs):
            found.update(value.name for value in node.outputs)
    return found


def _ones(b: Builder, graph: Graph, name: str) -> Value:
    """A gradient of one for every element."""
    value = b.values[name]
    maker = graph.producers().get(name)
    here = b.at(maker, "backward") if maker else replace(b, phase="backward")
    return here.add(
        "map",
        name=f"d_{name}",
        expr=Const(1.0),
        arguments=(),
        dtype=value.dtype.name,
        shape=value.shape,
    )


def _total(b: Builder, pending: dict[str, list[Value]], name: str) -> Value | None:
    """The sum of a value's gradients, added in the order in which its readers were visited."""
    parts = pending.get(name)
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = b.add("add", total, part, name=f"d_{name}")
    pending[name] = [total]
    return total


def _forward_first(graph: Graph, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Put conditions that the backward pass asked for right behind what they are made of."""
    order = {node.name: k for k, node in enumerate(graph.nodes)}
    makers = graph.producers()
    beside: dict[str | None, list[Node]] = {}
    rest = []
    for node in nodes:
        if node.name in order or node.phase == "backward":
            rest.append(node)
            continue
        after = [makers[name].name for name in node.inputs if name in makers]
        last = max(after, key=lambda name: order[name], default=None)
        beside.setdefault(last, []).append(node)
    placed = list(beside.get(None, ()))
    for node in rest:
        placed.append(node)
        placed.extend(beside.get(node.name, ()))
    return tuple(placed)


@dataclass(slots=True)
class _Choice:
    """Chooses, per element-wise operand, the form of its derivative that keeps fewest bytes.

    A form reads the operands, the result, or one-bit conditions. What a matrix product, a
    convolution or a normalisation keeps anyway costs nothing more; nor do inputs and states.
    """

    graph: Graph
    needed: set[str]
    values: dict[str, Value] = field(init=False)
    kept: set[str] = field(init=False)
    roots: dict[str, str] = field(init=False)
    chosen: dict[tuple[str, int], int] = field(init=False)

    def __post_init__(self) -> None:
        self.values = self.graph.values()
        self.roots = self.graph.views()
        self.kept = {value.name for value in self.graph.inputs}
        self.kept |= {state.name for state in self.graph.states}
        self.chosen = {}
        active = [node for node in self.graph.nodes if self._is_active(node)]
        for node in active:
            self.kept |= {self.roots.get(name, name) for name in _saved_by(node)}
        for node in active:
            if is_elementwise(node):
                self._choose_all(node)

    def choose(
        self, node: Node, position: int, forms: tuple[GradientForm, ...]
    ) -> GradientForm:
        """The form decided on; the plain one for nodes made since."""
        return forms[self.chosen.get((node.name, position), 0)]

    def _is_active(self, node: Node) -> bool:
        return any(value.name in self.needed for value in node.outputs)

    def _choose_all(self, node: Node) -> None:
        for position, name in enumerate(node.inputs):
            if name not in self.needed or self.values[name].dtype.kind != "float":
                continue
            forms = gradient_forms(node, position)
            costs = [(self._bytes(node, form), flops(form.factor)) for form in forms]
            best = costs.index(min(costs))
            self.chosen[node.name, position] = best
            self.kept |= self._reads(node, forms[best])

    def _reads(self, node: Node, form: GradientForm) -> set[str]:
        """Values that the form keeps, by the name of what holds their elements."""
        named = {"y": node.output.name}
        named.update(zip(scalar_form(node)[1], node.inputs, strict=True))
        masks = {name for name, _ in form.masks}
        used = (named[name] for name in variables(form.factor) if name not in masks)
        return {self.roots.get(name, name) for name in used}

    def _bytes(self, node: Node, form: GradientForm) -> int:
        """Bytes that the form keeps and nothing else does."""
        new = (self.values[name] for name in self._reads(node, form) - self.kept)
        full = sum(nbytes(value.dtype, value.shape, _SAMPLE_ROWS) for value in new)
        return full + len(form.masks) * nbytes(BIT, node.output.shape, _SAMPLE_ROWS)


def _saved_by(node: Node) -> tuple[str, ...]:
    """What the rule of an op that is not element-wise reads."""
    if is_elementwise(node):
        return ()
    results = [value.name for value in node.outputs]
    named = []
    for position in OPS[node.op].saves:
        if position >= 0:
            named.append(node.inputs[position])
        else:
            named.append(results[-1 - position])
    return tuple(named)
