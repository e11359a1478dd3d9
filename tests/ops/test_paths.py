"""Reverse accumulation over graphs that share values: every path counts, each node is seen once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from graphs import SPAN, Arrays, forward_of, read_spec, spec_case

from bpc.autodiff import differentiate
from bpc.ir import Builder, Graph, Init, State, Value, verify
from bpc.ops import OPS
from bpc.runtime.reference import run_graph
from bpc.types import F64
from bpc.update import build_micro_step


def graph_of(b: Builder, states: Sequence[Value], output: Value) -> Graph:
    declared = tuple(State(value, "parameter", Init("zeros"), SPAN) for value in states)
    return verify(Graph("g", (), declared, tuple(b.nodes), (("loss", output.name),)), OPS)


def slopes_of(
    graph: Graph, given: Arrays, wrt: Sequence[str], seeds: dict[str, str | None] | None = None
) -> list[np.ndarray]:
    done = differentiate(graph, seeds or {graph.output("loss"): None}, wrt)
    values = run_graph(done.graph, given, rows=1)
    return [values[str(done.gradients[name])] for name in wrt]


def scalar(b: Builder, name: str) -> Value:
    return b.declare(Value(name, F64, (1,)))


def test_diamond() -> None:
    """x (x a) + x^2 a + x (x a) at x = a = 1: d/dx = 6."""
    b = Builder(OPS, SPAN)
    x, a = scalar(b, "x"), scalar(b, "a")
    xa, square = b.add("mul", x, a), b.add("mul", x, x)
    parts = [b.add("mul", x, xa), b.add("mul", square, a), b.add("mul", x, xa)]
    total = b.add("add", b.add("add", parts[0], parts[1]), parts[2])
    given = {"x": np.ones(1), "a": np.ones(1)}
    found = slopes_of(graph_of(b, [x, a], total), given, ["x", "a"])
    assert [float(value[0]) for value in found] == [6.0, 3.0]


def test_doubling_sixty_times_takes_linear_time() -> None:
    b = Builder(OPS, SPAN)
    x = scalar(b, "x")
    value = x
    for _ in range(60):
        value = b.add("add", value, value)
    graph = graph_of(b, [x], value)
    assert len(differentiate(graph, {value.name: None}, ["x"]).graph.nodes) < 4 * 60
    assert float(slopes_of(graph, {"x": np.ones(1)}, ["x"])[0][0]) == 2.0**60


def test_intermediate_values_and_seeds() -> None:
    """z = (x^2)^3 with seed 10: dz/d(x^2) and dz/dx, both times 10."""
    b = Builder(OPS, SPAN)
    x, seed = scalar(b, "x"), scalar(b, "seed")
    square = b.add("square", x)
    cube = b.add("mul", b.add("mul", square, square), square)
    graph = graph_of(b, [x, seed], cube)
    given = {"x": np.array([1.5]), "seed": np.array([10.0])}
    inner, outer = slopes_of(graph, given, [square.name, "x"], {cube.name: "seed"})
    assert float(inner[0]) == pytest.approx(10 * 3 * 1.5**4, rel=1e-15)
    assert float(outer[0]) == pytest.approx(10 * 6 * 1.5**5, rel=1e-15)


def test_broadcast_over_new_and_unit_axes() -> None:
    b = Builder(OPS, SPAN)
    shapes = {"a": (2, 1), "b": (1, 3), "s": (1,)}
    a, c, s = (b.declare(Value(name, F64, shape)) for name, shape in shapes.items())
    result = b.add("square", b.add("add", b.add("mul", a, c), s))
    graph = graph_of(b, [a, c, s], b.add("sum", result, axes=(0, 1)))
    given = {"a": np.array([[2.0], [3.0]]), "b": np.array([[1.0, 10, 100]]), "s": np.array([5.0])}
    found = slopes_of(graph, given, ["a", "b", "s"])
    assert np.array_equal(found[0], [[41514.0], [61716.0]])
    assert np.array_equal(found[1], [[76.0, 310.0, 2650.0]])
    assert np.array_equal(found[2], [1170.0])


TIED = """bpc: 1
name: tied
data: {source: synthetic, batch: 1, shape: [2], target_shape: [2]}
model:
  - linear: {out: 2, name: one}
  - linear: {weight: one.weight, name: two}
loss: mse
train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}
"""


def test_tied_weights_add_up() -> None:
    values = {
        "x": np.array([[1.0, -1.0]]),
        "one.weight": np.array([[1.0, 3.0], [2.0, 4.0]]),
        "one.bias": np.array([0.5, -0.5]),
        "two.bias": np.array([0.5, -0.5]),
    }
    case = spec_case(read_spec(TIED), lambda name, shape, k: values[name], rows=1)
    given = {**case.given, "weight0": np.ones((1, 2))}
    assert np.array_equal(case.run(weight0=given["weight0"])["two"], [[-3.0, -8.0]])
    names = ["one.weight", "one.bias", "two.bias", "x"]
    found = slopes_of(case.graph, given, names, {"score": None})
    assert np.array_equal(found[0].T, [[3.5, -5.5], [5.5, -7.5]])
    assert np.array_equal(found[1] + found[2], [5.0, 7.0])
    assert np.array_equal(found[3], [[22.0, 32.0]])


def test_a_parameter_that_the_loss_does_not_see_has_gradient_zero() -> None:
    text = TIED.replace(
        "model:\n", "model:\n  - linear: {out: 3, name: idle}\n  - stop_gradient: {name: cut}\n"
    ).replace("{out: 2, name: one}", "{out: 2, name: one, from: x}")
    spec = read_spec(text)
    graph = build_micro_step(forward_of(spec), spec)
    updates = dict(graph.updates)
    makers = graph.producers()
    assert makers[updates["grad.idle.weight"]].inputs == ()
    assert makers[updates["grad.one.weight"]].inputs != ()
