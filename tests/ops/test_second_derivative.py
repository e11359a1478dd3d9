"""The backward graph is a graph: differentiated again, it gives second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graphs import (
    BATCH,
    ROWS,
    SCORE,
    SPAN,
    Case,
    assert_close,
    differences,
    generator,
    op_case,
    read_spec,
    spec_case,
    spread,
)
from samples import DIFFERENTIABLE, Sample

from bpc.autodiff import differentiate
from bpc.expr import Var
from bpc.ir import Builder, Graph, verify
from bpc.ops import OPS
from bpc.passes import run_passes
from bpc.types import F64, I64

CLOSE = 1e-11
SECOND = "second"


def with_slope(case: Case, of: str = SCORE) -> Case:
    """The case whose score is the sum of all first gradients times fixed weights."""
    done = differentiate(case.graph, {of: None}, list(case.floats))
    b = Builder.on(OPS, done.graph, SPAN)
    given = dict(case.given)
    total, inputs = None, []
    for name, made in done.gradients.items():
        if made is None:
            continue
        value = b.values[made]
        weight = b.declare(replace(value, name=f"slope_weight.{name}", dtype=F64))
        given[weight.name] = generator("slope", name).uniform(0.5, 1.5, np.shape(given[name]))
        inputs.append(weight)
        term = b.add(
            "map", value, weight, expr=Var("a") * Var("b"), arguments=("a", "b"), dtype="f64"
        )
        if term.shape:
            term = b.add("sum", term, axes=tuple(range(len(term.shape))), dtype="f64")
        total = term if total is None else b.add("add", total, term)
    assert total is not None
    b.add("map", total, name=SECOND, expr=Var("x"), arguments=("x",), dtype="f64")
    graph = replace(
        done.graph,
        inputs=(*done.graph.inputs, *inputs),
        nodes=tuple(b.nodes),
        outputs=((SECOND, SECOND),),
    )
    return Case(verify(graph, OPS), given, case.rows, case.floats)


def second_gradients(case: Case, expanded: bool = False) -> dict[str, np.ndarray]:
    """Gradients of the weighted first gradients."""
    done = differentiate(case.graph, {SECOND: None}, list(case.floats))
    found = [(f"gradient.{name}", made) for name, made in done.gradients.items() if made]
    graph: Graph = replace(done.graph, outputs=(*case.graph.outputs, *found))
    if expanded:
        graph = run_passes(graph)
    values, roles = case.run(graph), dict(graph.outputs)
    return {
        name: values[roles[f"gradient.{name}"]] if made else np.zeros_like(case.given[name])
        for name, made in done.gradients.items()
    }


def _has_slope(sample: Sample) -> bool:
    case = sample.case(F64)
    done = differentiate(case.graph, {SCORE: None}, list(case.floats))
    return any(done.gradients.values())


TWICE = [sample for sample in DIFFERENTIABLE if _has_slope(sample)]


@pytest.mark.parametrize("sample", TWICE, ids=lambda sample: sample.id)
def test_every_row_layer_and_loss_twice(sample: Sample) -> None:
    case = with_slope(sample.case(F64))
    plain, expanded = second_gradients(case), second_gradients(case, expanded=True)
    for name, found in plain.items():
        # the first gradients are far larger than their change only where 1 / x is near its pole
        places, oracle = differences(case, name, most=6, of=SECOND)
        assert_close(found.ravel()[places], oracle, 1e-6, name)
        assert_close(expanded[name], found, 1e-9, f"{name}, expanded")


def _special(function: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    return np.asarray(function(torch.tensor(x, dtype=torch.float64)).numpy())


def _sigmoid(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = _special(torch.special.expit, x)
    return y * (1 - y), y * (1 - y) * (1 - 2 * y)


def _tanh(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = np.tanh(x)
    return 1 - y * y, -2 * y * (1 - y * y)


def _gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bell = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return _special(torch.special.ndtr, x) + x * bell, (2 - x * x) * bell


CLOSED = {"sigmoid": _sigmoid, "tanh": _tanh, "gelu": _gelu}


@pytest.mark.parametrize("op", CLOSED)
def test_closed_forms(op: str) -> None:
    x = spread((ROWS, 6), 0, generator(op))
    case = with_slope(op_case(op, [(F64, (BATCH, 6), x)]))
    first, second = CLOSED[op](x)
    weight, slope_weight = case.given["weight0"], case.given["slope_weight.operand0"]
    assert_close(case.run()[SECOND], np.sum(weight * first * slope_weight), CLOSE)
    assert_close(second_gradients(case)["operand0"], weight * second * slope_weight, CLOSE)


def test_scalar_network() -> None:
    """f(x) = gelu(w2 tanh(w1 sigmoid(x))), all scalars: f' and f'' by the chain rule."""
    text = (
        "bpc: 1\nname: scalar\ndata: {source: synthetic, batch: 1, shape: [1]}\n"
        "model:\n  - sigmoid\n  - linear: {out: 1, bias: false}\n  - tanh\n"
        "  - linear: {out: 1, bias: false}\n  - gelu\nloss: mse\n"
        "train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}\n"
    )
    values = {"x": 0.3, "linear1.weight": 1.3, "linear2.weight": -0.8}
    case = spec_case(read_spec(text), lambda name, shape, k: np.full(shape, values[name]), rows=1)
    case = replace(case, given={**case.given, "weight0": np.ones((1, 1))}, floats=("x",))
    slope = with_slope(case)
    slope.given["slope_weight.x"][...] = 1.0  # type: ignore[index]
    w1, w2, x = values["linear1.weight"], values["linear2.weight"], np.array(values["x"])
    s1, s2 = _sigmoid(x)
    inner = w1 * _special(torch.special.expit, x)
    t1, t2 = _tanh(inner)
    g1, g2 = _gelu(w2 * np.tanh(inner))
    d = w2 * t1 * w1 * s1
    dd = w2 * (t2 * (w1 * s1) ** 2 + t1 * w1 * s2)
    assert_close(slope.run()[SECOND], g1 * d, CLOSE)
    assert_close(second_gradients(slope)["x"], np.array([[g2 * d * d + g1 * dd]]), CLOSE)


MLP = """bpc: 1
name: mlp
data: {source: synthetic, batch: 3, shape: [4]}
model:
  - linear: 5
  - tanh
  - layernorm
  - linear: 3
  - softplus
loss: mse
train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}
"""
CONV = """bpc: 1
name: conv
data: {source: synthetic, batch: 3, shape: [2, 6, 5]}
model:
  - conv2d: {out: 3, kernel: [3, 2], stride: 2, padding: 1}
  - gelu
  - conv2d: {out: 2, kernel: 2}
  - sigmoid
loss: mse
train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}
"""


def _mlp(x: Any, w1: Any, b1: Any, gamma: Any, beta: Any, w2: Any, b2: Any) -> Any:
    hidden = F.layer_norm(torch.tanh(x @ w1 + b1), (5,), gamma, beta, 1e-5)
    return F.softplus(hidden @ w2 + b2)


def _conv(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    hidden = F.gelu(F.conv2d(x, w1, b1, 2, 1))
    return torch.sigmoid(F.conv2d(hidden, w2, b2))


def compare(case: Case, function: Callable[..., Any], names: Sequence[str]) -> None:
    """Gradients of weighted gradients, against torch.autograd.grad(create_graph=True)."""
    slope = with_slope(case)
    leaves = [torch.tensor(case.given[name], requires_grad=True) for name in names]
    score = (function(*leaves) * torch.tensor(case.given["weight0"])).sum()
    first = torch.autograd.grad(score, leaves, create_graph=True)
    weights = [torch.tensor(slope.given[f"slope_weight.{name}"]) for name in names]
    total = sum((g * w).sum() for g, w in zip(first, weights, strict=True))
    assert_close(slope.run()[SECOND], float(total.detach()), CLOSE)
    second = torch.autograd.grad(total, leaves)
    for expanded in (False, True):
        found = second_gradients(slope, expanded)
        for name, expected in zip(names, second, strict=True):
            assert_close(found[name], expected.numpy(), CLOSE, name)


@pytest.mark.parametrize(("text", "function"), [(MLP, _mlp), (CONV, _conv)], ids=["mlp", "conv"])
def test_networks_against_torch(text: str, function: Callable[..., Any]) -> None:
    def fill(name: str, shape: Sequence[int], position: int) -> np.ndarray:
        return 0.5 * spread(shape, position, generator("second", name))

    case = spec_case(read_spec(text), fill)
    compare(case, function, case.floats)


def test_cross_entropy_against_torch() -> None:
    logits, target = spread((ROWS, 5), 0, generator("second")), np.array([0, 3, 1])
    attrs: dict[str, Any] = {"label_smoothing": 0.1, "ignore_index": 3}
    operands = [(F64, (BATCH, 5), logits), (I64, (BATCH,), target)]
    case = op_case("cross_entropy", operands, **attrs)

    def function(x: Any) -> Any:
        results = [
            F.cross_entropy(
                x, torch.tensor(target), reduction="sum", label_smoothing=0.1, ignore_index=3
            ),
            torch.tensor(2.0),
            x.amax(-1, keepdim=True),
            torch.logsumexp(x, -1, keepdim=True) - x.amax(-1, keepdim=True),
        ]
        weights = [torch.tensor(case.given[f"weight{k}"]) for k in range(4)]
        return sum((result * w).sum() for result, w in zip(results, weights, strict=True))

    plain = replace(case, given={**case.given, "weight0": np.array(1.0)})
    slope, x = with_slope(case), torch.tensor(logits, requires_grad=True)
    assert_close(plain.run()["result#1"], np.array(2.0), CLOSE)
    (first,) = torch.autograd.grad(function(x), x, create_graph=True)
    total = (first * torch.tensor(slope.given["slope_weight.operand0"])).sum()
    (second,) = torch.autograd.grad(total, x)
    assert_close(slope.run()[SECOND], float(total.detach()), CLOSE)
    assert_close(second_gradients(slope)["operand0"], second.numpy(), CLOSE)
