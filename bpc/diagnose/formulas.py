"""A joint graph as formulas: one for each value that a person would write down.

A formula is an expression (`bpc.expr`) over the names of values. Beside the scalar functions it
holds calls of tensor functions: matmul, transpose, reshape, dropout, convolutions; `sum_ij` and its
like sum over the axes that the letters name (i is the first axis, j the second...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bpc.diagnose.symbols import gradients_of
from bpc.expr import Call, Const, Expr, Var, simplify, substitute
from bpc.gradients import build_gradients
from bpc.ir import Builder, Graph, Node, verify
from bpc.ops import OPS, is_elementwise
from bpc.ops.base import scalar_form
from bpc.ops.primitive import reduced_axes
from bpc.runtime.reference import run_node
from bpc.spec.model import Spec
from bpc.types import BIT, shape_at

AXES = "ijklmnop"
SUM = "sum"
MEAN_LOSS = "mean loss"
"""The name of the loss's mean, which has no node: it is the sum's value over the weight's."""

_LONGEST = 40  # parts of an expression: what is longer gets a line of its own


@dataclass(frozen=True, slots=True)
class Formula:
    """value = expr. `node` made it (the mean loss: that of the loss); `note` says what it reads."""

    value: str
    expr: Expr
    node: Node
    note: str = ""


def build_joint(forward: Graph, spec: Spec) -> Graph:
    """Forward and backward in one graph, with ops that have no notation of their own written out.

    The gradients are those of the mean loss by every parameter.
    """
    return verify(_write_out(join_passes(forward, spec)), OPS)


def join_passes(forward: Graph, spec: Spec) -> Graph:
    """The whole forward graph, and behind it what the parameters' gradients need."""
    of = [state.name for state in forward.states if state.kind == "parameter"]
    made = build_gradients(forward, spec, of).graph
    known = {node.name for node in forward.nodes}
    nodes = (*forward.nodes, *(node for node in made.nodes if node.name not in known))
    return replace(made, nodes=nodes, outputs=(*forward.outputs, *made.outputs))


def _write_out(graph: Graph) -> Graph:
    """Expand the nodes that `_NOTATION` has no row for."""
    b = Builder(OPS, graph.nodes[0].span)
    b.taken.update(graph.values())
    b.values.update(graph.values())
    for node in graph.nodes:
        rewrite = OPS[node.op].expand
        if rewrite is None or node.op in _NOTATION:
            b.nodes.append(node)
            continue
        b.taken.difference_update(value.name for value in node.outputs)
        here = replace(b.at(node), origin=node.origin or node.name, role=node.role or node.op)
        rewrite(here, node)
    return replace(graph, nodes=tuple(b.nodes))


def write_formulas(graph: Graph, rows: int, names: Mapping[str, str]) -> list[Formula]:
    """The formulas of a joint graph in the order in which it runs; notes use `names`."""
    writer = _Writer(graph, rows, names)
    found: list[Formula] = []
    loss = graph.producers()[graph.output("loss")]
    last = max(k for k, node in enumerate(graph.nodes) if node.phase == "forward")
    for position, node in enumerate(graph.nodes):
        if node.output.name in writer.shown:
            found.append(writer.formula(node))
        if position == last:
            found.append(Formula(MEAN_LOSS, writer.mean_loss(), loss))
    return found


@dataclass(slots=True)
class _Writer:
    """Knows which values get a line, and writes the others into the lines that read them."""

    graph: Graph
    rows: int
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]] = field(init=False)
    constants: Mapping[str, Const] = field(init=False)
    makers: Mapping[str, Node] = field(init=False)
    shown: set[str] = field(init=False)

    def __post_init__(self) -> None:
        values = self.graph.values()
        self.shapes = {name: shape_at(v.shape, self.rows) for name, v in values.items()}
        self.makers = self.graph.producers()
        self.constants = _constants(self.graph, self.rows)
        self.shown = set()
        self.shown = self._choose_shown()
        for node in self.graph.nodes:
            for name in node.inputs:
                self.of(name)  # what turns out too long to be written into a line is shown too

    def _choose_shown(self) -> set[str]:
        """Layers, gradients of what is shown, and whatever is read more than once."""
        shown = {state.name for state in self.graph.states}
        shown |= {value.name for value in self.graph.inputs}
        uses = self._count_uses()
        totals = {names[-1]: of for of, names in gradients_of(self.graph).items()}
        for node in self.graph.nodes:
            name = node.output.name
            if name in self.constants or node.op in ("index", "extent"):
                continue
            named = name == node.scope or totals.get(name) in shown
            own = named and (node.scope != "loss" or node.phase == "backward")
            repeated = uses.get(name, 0) > 1 and node.output.dtype != BIT
            if own or (repeated and not self._is_view(node)):
                shown.add(name)
        return shown

    def _count_uses(self) -> dict[str, int]:
        """Readers of each value, those of its views included."""
        uses: dict[str, int] = {}
        for node in reversed(self.graph.nodes):
            count = uses.get(node.output.name, 0) if self._is_view(node) else 1
            for name in node.inputs:
                uses[name] = uses.get(name, 0) + count
        return uses

    def _is_view(self, node: Node) -> bool:
        """Whether the node shows its operand's elements and no user named it."""
        if node.op == "reshape":
            return True
        return node.op == "map" and isinstance(node.attr("expr"), Var)

    def formula(self, node: Node) -> Formula:
        """The line of a shown value."""
        expr = self.written(node)
        return Formula(node.output.name, expr, node, self._note(node))

    def mean_loss(self) -> Expr:
        """Sum of terms over their weight."""
        total = self.of(self.graph.output("loss"))
        weight = self.of(self.graph.output("weight"))
        if weight == Const(1.0):
            return total
        return total / weight

    def of(self, name: str) -> Expr:
        """What stands for a value in the formulas of others."""
        if name in self.constants:
            return self.constants[name]
        if name in self.shown or name not in self.makers:
            return Var(name)
        expr = self.written(self.makers[name])
        if expr.size > _LONGEST:
            self.shown.add(name)
            return Var(name)
        return expr

    def written(self, node: Node) -> Expr:
        """The node's formula over shown values."""
        if is_elementwise(node):
            expr, arguments = scalar_form(node)
            operands = dict(zip(arguments, map(self.of, node.inputs), strict=True))
            fixed = {k: v for k, v in operands.items() if isinstance(v, Const)}
            return substitute(simplify(substitute(expr, fixed)), operands)
        return _NOTATION[node.op](self, node)

    def letters(self, name: str, axes: tuple[int, ...]) -> str:
        """The letters of axes that hold more than one element."""
        shape = self.shapes[name]
        rank = len(shape)
        return "".join(AXES[axis % rank] for axis in axes if shape[axis % rank] != 1)

    def is_scalar(self, *names: str) -> bool:
        """Whether every value holds one element."""
        return all(size == 1 for name in names for size in self.shapes[name])

    def _note(self, node: Node) -> str:
        """What a gradient reads in place of its operand."""
        if node.phase != "backward" or not node.origin:
            return ""
        if node.op == "dropout":
            return "draws again, no mask is kept"
        origin = next((each for each in self.graph.nodes if each.name == node.origin), None)
        if origin is None or not is_elementwise(origin) or not is_elementwise(node):
            return ""
        bits = [name for name in node.inputs if self._dtype_is_bit(name)]
        if bits:
            return f"reads one bit an element, not {self.names[origin.inputs[0]]}"
        reads = set(node.inputs)
        if origin.output.name in reads and not reads & set(origin.inputs):
            return f"reads {self.names[origin.output.name]}, not {self.names[origin.inputs[0]]}"
        return ""

    def _dtype_is_bit(self, name: str) -> bool:
        return name in self.makers and self.makers[name].output.dtype == BIT


def _constants(graph: Graph, rows: int) -> dict[str, Const]:
    """Values that depend on nothing but the number of rows, and are the same everywhere."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    found: dict[str, Const] = {}
    for node in graph.nodes:
        if node.op == "index" or any(name not in arrays for name in node.inputs):
            continue
        operands = [arrays[name] for name in node.inputs]
        for value, array in zip(
            node.outputs, run_node(node, operands, graph, rows, True), strict=True
        ):
            flat = array.reshape(-1)[:1]
            if flat.size and bool(np.all(array == flat)):
                arrays[value.name] = array
                found[value.name] = Const(float(flat[0]))
    return found


# -- notations of nodes that are not element-wise -------------------------------------------------


def _linear(w: _Writer, node: Node) -> Expr:
    product = Call("matmul", tuple(map(w.of, node.inputs[:2])))
    return product if len(node.inputs) == 2 else product + w.of(node.inputs[2])


def _gemm(w: _Writer, node: Node) -> Expr:
    """A product of single numbers is written with the gradient first."""
    left, right = map(w.of, node.inputs[:2])
    if w.is_scalar(*node.inputs[:2]):
        product = Call("mul", (right, left) if node.attr("ta") else (left, right))
    else:
        left = Call("transpose", (left,)) if node.attr("ta") else left
        right = Call("transpose", (right,)) if node.attr("tb") else right
        product = Call("matmul", (left, right))
    return product if len(node.inputs) == 2 else product + w.of(node.inputs[2])


def _conv2d(w: _Writer, node: Node) -> Expr:
    product = Call("conv2d", tuple(map(w.of, node.inputs[:2])))
    return product if len(node.inputs) == 2 else product + w.of(node.inputs[2])


def _apply(w: _Writer, node: Node) -> Expr:
    return Call(node.op, tuple(map(w.of, node.inputs[:2])))


def _sum(w: _Writer, node: Node) -> Expr:
    return _reduced(w, node, tuple(node.attr("axes")), SUM)


def _reduce(w: _Writer, node: Node) -> Expr:
    axes = reduced_axes(dict(node.attrs), w.graph.values()[node.inputs[0]].shape)
    return _reduced(w, node, axes, node.attr("kind"))


def _reduced(w: _Writer, node: Node, axes: tuple[int, ...], kind: str) -> Expr:
    inner, letters = w.of(node.inputs[0]), w.letters(node.inputs[0], axes)
    return Call(f"{kind}_{letters}", (inner,)) if letters else inner


def _all(w: _Writer, node: Node) -> Expr:
    return _reduced(w, node, tuple(range(len(w.shapes[node.inputs[0]]))), SUM)


def _view(w: _Writer, node: Node) -> Expr:
    """A layer of the user says that it reshapes; elsewhere the letters of the axes tell."""
    source, result = node.inputs[0], node.output.name
    inner = w.of(source)
    layer = node.scope != "loss" and (result == node.scope or node.role == "reshape_gradient")
    return Call("reshape", (inner,)) if layer and w.shapes[source] != w.shapes[result] else inner


def _index(w: _Writer, node: Node) -> Expr:
    axis = node.attr("axis")
    return Var("element" if axis is None else AXES[axis])


def _dropout(w: _Writer, node: Node) -> Expr:
    return Call("dropout", (w.of(node.inputs[0]), Const(node.attr("p"))))


_NOTATION: Mapping[str, Callable[[_Writer, Node], Expr]] = {
    "linear": _linear,
    "matmul": _linear,
    "gemm": _gemm,
    "conv2d": _conv2d,
    "conv2d_input": _apply,
    "conv2d_weight": _apply,
    "sum": _sum,
    "row_reduce": _reduce,
    "col_reduce": _reduce,
    "chunk_reduce": _view,
    "combine": _all,
    "reshape": _view,
    "stop_gradient": _view,
    "index": _index,
    "extent": lambda w, node: Var(node.output.name),
    "dropout": _dropout,
}

__all__ = ["MEAN_LOSS", "Formula", "build_joint", "write_formulas"]
