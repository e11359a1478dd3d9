"""Small graphs around one op, layer or loss: values away from kinks, gradients, differences.

Every graph ends in `score`, the sum of all its float results times fixed random weights, in
float64, so that one number depends on everything that the op makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from bpc.autodiff import differentiate
from bpc.data.describe import describe
from bpc.errors import Span
from bpc.expr import Var
from bpc.ir import Builder, Graph, Init, State, Value, verify
from bpc.lower import lower
from bpc.ops import OPS
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.passes import run_passes
from bpc.runtime.reference import round_to, run_graph
from bpc.spec import Spec, load_spec
from bpc.types import F64, I64, DType, Rows, shape_at

SPAN = Span("ops.yaml", 1, 1)
ROWS = 3
SCORE = "score"
CONTROL = {"control.seed": 7, "control.window": 2, "control.first_row": 0}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """A forward graph with output `score`, what it reads, and the names of the float operands."""

    graph: Graph
    given: Mapping[str, np.ndarray]
    rows: int
    floats: tuple[str, ...]

    def run(self, graph: Graph | None = None, exact: bool = True, **changed: np.ndarray) -> Arrays:
        """All values of the case's graph, or of one made from it."""
        given = {**self.given, **changed}
        return run_graph(graph or self.graph, given, self.rows, exact)


def read_spec(text: str, sets: Mapping[str, object] | None = None) -> Spec:
    """A spec from its text, with the real op table."""
    return load_spec(
        "ops.yaml", layer_schemas(), loss_schemas(), OPTIMIZERS, sets=sets or {}, text=text
    )


def forward_of(spec: Spec, training: bool = True, with_loss: bool = True) -> Graph:
    """The forward graph of a spec."""
    description = describe(spec.data.source, spec.data.options, spec.data.span)
    return lower(spec, description, training, with_loss)


def generator(*key: object) -> np.random.Generator:
    """Random numbers that depend on the key alone."""
    return np.random.default_rng(crc32(repr(key).encode()))


def spread(shape: Sequence[int], position: int, rng: np.random.Generator) -> np.ndarray:
    """Values in (-2, 2) that stay 0.04 away from 0, 1, -1, 1.6, -1.6 and from other operands.

    Odd multiples of 0.1, moved by 0.04 for each position among the operands.
    """
    grid = 0.2 * rng.integers(-9, 9, size=tuple(shape)) + 0.1
    return grid + 0.04 * (position % 3)


def score_of(b: Builder, results: Sequence[Value], given: Arrays, rows: int) -> list[Value]:
    """Add the nodes of `score`; returns the inputs that hold the weights."""
    inputs, total = [], None
    for k, result in enumerate(results):
        weight = b.declare(Value(f"weight{k}", F64, result.shape))
        rng = generator("weights", k, shape_at(result.shape, rows))
        size = shape_at(result.shape, rows)
        given[weight.name] = rng.uniform(0.5, 1.5, size) * rng.choice([-1.0, 1.0], size)
        inputs.append(weight)
        term = b.add(
            "map", result, weight, expr=Var("y") * Var("w"), arguments=("y", "w"), dtype="f64"
        )
        if term.shape:
            term = b.add("sum", term, axes=tuple(range(len(term.shape))), dtype="f64")
        total = term if total is None else b.add("add", total, term)
    assert total is not None
    b.add("map", total, name=SCORE, expr=Var("x"), arguments=("x",), dtype="f64")
    return inputs


def op_case(
    op: str,
    operands: Sequence[tuple[DType, Sequence[Any], np.ndarray]],
    rows: int = ROWS,
    **attrs: Any,
) -> Case:
    """One node of `op`. The first operand is an input, the others are parameters."""
    b = Builder(OPS, SPAN, scope=op)
    given: Arrays = {}
    values = []
    for k, (dtype, shape, array) in enumerate(operands):
        values.append(b.declare(Value(f"operand{k}", dtype, tuple(shape))))
        given[f"operand{k}"] = round_to(np.asarray(array), dtype)
    results = b.add_all(op, values, "result", **attrs)
    weights = score_of(b, results, given, rows)
    states = tuple(State(value, "parameter", Init("zeros"), SPAN) for value in values[1:])
    inputs = (*values[:1], *weights)
    outputs = ((SCORE, SCORE), *((value.name, value.name) for value in results))
    graph = verify(Graph(op, inputs, states, tuple(b.nodes), outputs), OPS)
    return Case(graph, given, rows, tuple(v.name for v in values if v.dtype.kind == "float"))


def spec_case(
    spec: Spec, fill: Callable[[str, Sequence[int], int], np.ndarray], rows: int = ROWS
) -> Case:
    """A lowered model without its loss; `fill(name, shape, position)` gives float values."""
    graph = forward_of(spec, with_loss=False)
    b = Builder.on(OPS, graph, SPAN)
    given = given_for(graph, fill, rows)
    prediction = b.values[graph.output("prediction")]
    weights = score_of(b, [prediction], given, rows)
    outputs = ((SCORE, SCORE), *graph.outputs)
    inputs = (*graph.inputs, *weights)
    graph = verify(replace(graph, inputs=inputs, nodes=tuple(b.nodes), outputs=outputs), OPS)
    return Case(graph, given, rows, float_names(graph))


def given_for(
    graph: Graph, fill: Callable[[str, Sequence[int], int], np.ndarray], rows: int
) -> Arrays:
    """Values for inputs and states, rounded to their types."""
    given: Arrays = {}
    wanted = [*graph.inputs, *(state.value for state in graph.states)]
    for position, value in enumerate(wanted):
        shape = shape_at(value.shape, rows)
        if value.dtype == I64:
            given[value.name] = np.full(shape, CONTROL.get(value.name, 0), np.int64)
        else:
            given[value.name] = round_to(fill(value.name, shape, position), value.dtype)
    return given


def float_names(graph: Graph) -> tuple[str, ...]:
    """Float inputs and parameters, without the weights of the score."""
    wanted = [*graph.inputs, *(s.value for s in graph.states if s.kind == "parameter")]
    return tuple(
        v.name for v in wanted if v.dtype.kind == "float" and not v.name.startswith("weight")
    )


def with_score(graph: Graph, role: str) -> Graph:
    """The same graph with the value that plays `role` copied to `score`."""
    b = Builder.on(OPS, graph, SPAN)
    value = b.values[graph.output(role)]
    b.add("map", value, name=SCORE, expr=Var("x"), arguments=("x",), dtype="f64")
    return replace(graph, nodes=tuple(b.nodes), outputs=((SCORE, SCORE), *graph.outputs))


def joint_of(
    case: Case, of: str = SCORE, wrt: Sequence[str] | None = None
) -> tuple[Graph, dict[str, str | None]]:
    """The joint graph that keeps every gradient as an output, and the gradients' names."""
    done = differentiate(case.graph, {of: None}, list(wrt or case.floats))
    found = [(f"gradient.{name}", made) for name, made in done.gradients.items() if made]
    graph = replace(done.graph, outputs=(*case.graph.outputs, *found))
    return verify(graph, OPS), dict(done.gradients)


def gradients(case: Case, exact: bool = True, expanded: bool = False) -> Arrays:
    """The gradient of the score by every float operand; zeros where there is no path."""
    graph, names = joint_of(case)
    if expanded:
        graph = run_passes(graph)
    values = case.run(graph, exact)
    roles = dict(graph.outputs)
    return {
        name: values[roles[f"gradient.{name}"]] if made else np.zeros_like(case.given[name])
        for name, made in names.items()
    }


def differences(
    case: Case, name: str, most: int = 12, step: float = 2e-4, of: str = SCORE
) -> tuple[np.ndarray, np.ndarray]:
    """Flat positions, and central differences there: the forward-only float64 oracle.

    Four points at distance h: the truncation error is h^4 / 30 times the fifth derivative, 5e-17
    of it for h = 2e-4 (1 / x at 0.1 has the largest one here, 1e8); rounding adds at most
    1e-16 * |score| / h, 5e-13 of the score. Both stay below 1e-8 of the gradients at hand.
    """
    start = np.asarray(case.given[name], dtype=np.float64)
    rng = generator("positions", name, start.shape)
    places = rng.permutation(start.size)[:most]
    found = []
    for place in places:
        scores = []
        for distance in (-2, -1, 1, 2):
            moved = start.copy()
            moved.flat[place] += distance * step
            scores.append(float(case.run(**{name: moved})[of]))
        far_low, low, high, far_high = scores
        found.append((8 * (high - low) - (far_high - far_low)) / (12 * step))
    return places, np.array(found)


def assert_close(found: np.ndarray, expected: np.ndarray, relative: float, what: str = "") -> None:
    """Each element within `relative` of itself or, where it is small, of the tensor's largest."""
    expected = np.asarray(expected, dtype=np.float64)
    found = np.asarray(found, dtype=np.float64)
    assert found.shape == expected.shape, f"{what}: {found.shape} against {expected.shape}"
    largest = float(np.max(np.abs(expected), initial=0.0))
    worst = float(np.max(np.abs(found - expected), initial=0.0))
    assert np.all(np.isfinite(found)), f"{what}: not finite"
    assert worst <= relative * largest, f"{what}: off by {worst:.3g} of {largest:.3g}"


BATCH = Rows()
