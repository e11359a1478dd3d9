"""Layers and losses against PyTorch in float64: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graphs import (
    BATCH,
    ROWS,
    SCORE,
    Case,
    assert_close,
    float_names,
    forward_of,
    generator,
    given_for,
    gradients,
    op_case,
    read_spec,
    spec_case,
    spread,
    with_score,
)
from samples import loss_text

from bpc.expr import Var, evaluate
from bpc.ops import LOSSES, OPS
from bpc.ops.class_weights import weight_of
from bpc.passes import run_passes
from bpc.types import F64, I64

Function = Callable[..., Any]
CLOSE = 1e-12


@dataclass(frozen=True, slots=True)
class Row:
    """A layer as a spec writes it, the shapes it reads, and the same thing in PyTorch."""

    layer: str
    function: Function
    shapes: tuple[tuple[int, ...], ...] = ((4,),)
    parameters: str = ""
    positive: bool = False

    def text(self) -> str:
        names = "xabc"[: len(self.shapes)]
        written = ", ".join(f"{n}: {list(s)}" for n, s in zip(names, self.shapes, strict=True))
        sources = ", ".join([*names, *(["w"] if self.parameters else [])])
        return (
            f"bpc: 1\nname: layer\n{self.parameters}"
            f"data: {{source: synthetic, batch: {ROWS}, inputs: {{{written}}}}}\n"
            f"model:\n  - {{{self.layer}, name: layer, from: [{sources}]}}\n"
            "loss: mse\n"
            "train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}\n"
        )

    def case(self) -> Case:
        def fill(name: str, shape: Sequence[int], position: int) -> np.ndarray:
            rng = generator(self.layer, name)
            array = spread(shape, position, rng) + rng.uniform(-0.01, 0.01, shape)
            return np.abs(array) if self.positive and name == "x" else array

        return spec_case(read_spec(self.text()), fill)


def _norm(x: Any, gamma: Any, beta: Any) -> Any:
    return F.layer_norm(x, gamma.shape, gamma, beta, 1e-5)


def _conv(stride: Any, padding: Any) -> Function:
    return lambda x, w, b=None: F.conv2d(x, w, b, stride, padding)


W = "parameters: {w: {shape: [4, 3], init: zeros}}\n"
TWO = ((4,), (4,))
LAYERS = [
    Row("relu: {}", F.relu),
    Row("leaky_relu: 0.2", lambda x: F.leaky_relu(x, 0.2)),
    Row("prelu: {}", F.prelu),
    Row("prelu: {shared: false}", F.prelu),
    Row("elu: 1.3", lambda x: F.elu(x, 1.3)),
    Row("selu: {}", F.selu),
    Row("sigmoid: {}", torch.sigmoid),
    Row("tanh: {}", torch.tanh),
    Row("gelu: {}", F.gelu),
    Row("gelu: tanh", lambda x: F.gelu(x, approximate="tanh")),
    Row("gelu_tanh: {}", lambda x: F.gelu(x, approximate="tanh")),
    Row("silu: {}", F.silu),
    Row("swish: 1.7", lambda x: x * torch.sigmoid(1.7 * x)),
    Row("mish: {}", F.mish),
    Row("softplus: {}", F.softplus),
    Row("abs: {}", torch.abs),
    Row("neg: {}", torch.neg),
    Row("exp: {}", torch.exp),
    Row("log: {}", torch.log, positive=True),
    Row("sqrt: {}", torch.sqrt, positive=True),
    Row("square: {}", torch.square),
    Row("clip: {min: -0.6, max: 1.2}", lambda x: torch.clamp(x, -0.6, 1.2)),
    Row("add: {}", torch.add, TWO),
    Row("sub: {}", torch.sub, TWO),
    Row("mul: {}", torch.mul, ((2, 4), (1, 4))),
    Row("div: {}", torch.div, ((4,), (1,))),
    Row("div: 0.7", lambda x: x / 0.7),
    Row("pow: {}", torch.pow, TWO, positive=True),
    Row("pow: 3", lambda x: x**3),
    Row("pow: -1.5", lambda x: x**-1.5, positive=True),
    Row("max: {}", torch.maximum, TWO),
    Row("min: {}", torch.minimum, ((4,), (1,))),
    Row("where: {}", lambda c, a, b: torch.where(c != 0, a, b), ((4,), (4,), (1,))),
    Row("softmax: {}", lambda x: torch.softmax(x, -1), ((2, 5),)),
    Row("log_softmax: {}", lambda x: torch.log_softmax(x, -1), ((2, 5),)),
    Row("layernorm: {}", _norm, ((7,),)),
    Row("layernorm: 2", _norm, ((3, 2, 5),)),
    Row("norm: {}", lambda x: x.norm(dim=-1), ((3, 4),)),
    Row("norm: 1", lambda x: x.norm(p=1, dim=-1), ((3, 4),)),
    Row("norm: {p: 3, axes: 2, keepdims: true}",
        lambda x: torch.linalg.vector_norm(x, 3, (1, 2), True), ((3, 4),)),
    Row("max_norm: {}", lambda x: torch.linalg.vector_norm(x, torch.inf, -1), ((3, 4),)),
    Row("normalize: {}", lambda x: F.normalize(x, dim=-1), ((3, 4),)),
    Row("normalize: {p: 1.5, axes: 2}",
        lambda x: x / torch.linalg.vector_norm(x, 1.5, (1, 2), True), ((3, 4),)),
    Row("linear: 3", lambda x, w, b: x @ w + b),
    Row("linear: 3", lambda x, w, b: x @ w + b, ((2, 4),)),
    Row("linear: {out: 3, bias: false}", torch.matmul, ((2, 3, 4),)),
    Row("matmul: {}", torch.matmul, parameters=W),
    Row("matmul: {}", torch.matmul, ((2, 4),), parameters=W),
    Row("sum: {}", lambda x: x.sum(-1), ((3, 4),)),
    Row("sum: {axes: [0, 2]}", lambda x: x.sum((0, 2)), ((3, 4),)),
    Row("sum: {axes: [1], keepdims: true}", lambda x: x.sum(1, keepdim=True), ((3, 4),)),
    Row("sum: {axes: [0, 1, 2]}", lambda x: x.sum(), ((3, 4),)),
    Row("mean: {}", lambda x: x.mean(-1), ((3, 4),)),
    Row("mean: {axes: [-1, -3]}", lambda x: x.mean((0, 2)), ((3, 4),)),
    Row("mean: {axes: [1, 2], keepdims: true}", lambda x: x.mean((1, 2), True), ((3, 4),)),
    Row("mean: {axes: 0}", lambda x: x.mean(0), ((3, 4),)),
    Row("reshape: [2, 6]", lambda x: x.reshape(-1, 2, 6), ((3, 4),)),
    Row("flatten: {}", lambda x: x.flatten(1), ((3, 4),)),
    Row("dropout: 0.0", lambda x: x),
    Row("dropout: 1.0", lambda x: 0 * x),
    Row("stop_gradient: {}", lambda x: x.detach()),
    Row('formula: "x * sigmoid(1.7 * x) + sin(x)"', lambda x: x * (1.7 * x).sigmoid() + x.sin()),
    Row('formula: "a / (1 + x ^ 2)"', lambda x, a: a / (1 + x**2), TWO),
    Row("conv2d: {out: 3}", _conv(1, 0), ((2, 6, 5),)),
    Row("conv2d: {out: 3, kernel: 2, stride: 2}", _conv(2, 0), ((2, 7, 5),)),
    Row("conv2d: {out: 2, kernel: [3, 2], stride: [2, 3], padding: [1, 2]}",
        _conv((2, 3), (1, 2)), ((3, 8, 6),)),
    Row("conv2d: {out: 4, kernel: 1, bias: false}", _conv(1, 0), ((2, 3, 3),)),
    Row("conv2d: {out: 2, kernel: 5, padding: 4, stride: 3}", _conv(3, 4), ((1, 4, 9),)),
]  # fmt: skip
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne"}


def test_every_layer_is_compared() -> None:
    compared = {row.layer.split(":")[0] for row in LAYERS} | COMPARISONS
    assert compared >= set(OPS.layers())


def tensors(case: Case, names: Sequence[str]) -> list[Any]:
    return [
        torch.tensor(np.asarray(case.given[n]), dtype=torch.float64, requires_grad=True)
        for n in names
    ]


def compare(case: Case, function: Function, result: str) -> None:
    """Values and gradients, of the plain and the expanded graph."""
    leaves = tensors(case, case.floats)
    expected = function(*leaves)
    weight = torch.tensor(case.given["weight0"])
    score = (expected * weight).sum()
    if score.requires_grad:
        score.backward()
    for graph in (case.graph, run_passes(case.graph)):
        found = case.run(graph)[dict(graph.outputs)[result]]
        assert_close(found, expected.detach().numpy(), CLOSE, "value")
    for expanded in (False, True):
        found_gradients = gradients(case, expanded=expanded)
        for name, leaf in zip(case.floats, leaves, strict=True):
            wanted = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
            assert_close(found_gradients[name], wanted, 10 * CLOSE, name)


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: f"{row.layer}-{row.shapes[0]}")
def test_layer(row: Row) -> None:
    compare(row.case(), row.function, "prediction")


@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_comparison(name: str) -> None:
    values = np.array([[-1.0, 0.0, 2.0, 2.0]] * ROWS)
    other = np.array([-1.0, 1.0, 2.0, 0.0])
    case = op_case(name, [(F64, (BATCH, 4), values), (F64, (4,), other)])
    expected = getattr(torch, name)(torch.tensor(values), torch.tensor(other))
    assert np.array_equal(case.run()["result"], expected.numpy())
    assert not any(np.any(found) for found in gradients(case).values())


POINTS = {
    "clip": (lambda x: x.clamp(-1, 1), [-1.0, 1.0, -2.0, 2.0, 0.5], {"min": -1.0, "max": 1.0}),
    "relu": (torch.relu, [0.0, -0.0, 1e-300, -1e-300, 3.0], {}),
    "abs": (torch.abs, [0.0, -0.0, 2.0, -2.0, 1e-300], {}),
    "softplus": (F.softplus, [-700.0, -40.0, 0.0, 19.0, 700.0], {}),
    "sigmoid": (torch.sigmoid, [-700.0, -40.0, 0.0, 30.0, 700.0], {}),
    "square": (torch.square, [0.0, -0.0, 1e-160, 3.0, -3.0], {}),
    "sqrt": (torch.sqrt, [0.25, 1e-300, 1.0, 4.0, 1e300], {}),
    "elu": (F.elu, [0.0, -1e-300, -30.0, -800.0, 2.0], {"alpha": 1.0}),
    "tanh": (torch.tanh, [0.0, 1e-300, -20.0, 400.0, -400.0], {}),
    "gelu": (F.gelu, [0.0, -9.0, 9.0, -40.0, 40.0], {}),
    "mish": (F.mish, [0.0, -50.0, 19.0, -3.0, 40.0], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", POINTS)
def test_values_and_slopes_at_kinks_and_ends(op: str) -> None:
    function, points, attrs = POINTS[op]
    case = op_case(op, [(F64, (BATCH, 5), np.array([points] * ROWS))], **attrs)
    compare(case, function, "result")


@pytest.mark.parametrize(("op", "function"), [("max", torch.maximum), ("min", torch.minimum)])
def test_ties_share_evenly(op: str, function: Function) -> None:
    first = np.array([[1.0, 2.0, 0.0, -3.0]] * ROWS)
    second = np.array([[1.0, 1.0, 0.0, 4.0]] * ROWS)
    case = op_case(op, [(F64, (BATCH, 4), first), (F64, (BATCH, 4), second)])
    compare(case, function, "result")


def test_power_of_zero() -> None:
    base = np.zeros((ROWS, 5))
    exponent = np.array([0.0, 1.0, 2.0, 1.875, 3.0])
    case = op_case("pow", [(F64, (BATCH, 5), base), (F64, (5,), exponent)])
    compare(case, torch.pow, "result")
    found = gradients(case)
    weights = case.given["weight0"]
    assert np.array_equal(found["operand0"], weights * np.array([0.0, 1.0, 0.0, 0.0, 0.0]))
    assert np.array_equal(found["operand1"], np.zeros(5))
    half = op_case("pow", [(F64, (BATCH, 1), base[:, :1]), (F64, (1,), np.array([0.5]))])
    assert np.all(np.isinf(gradients(half)["operand0"]))


# -- losses ---------------------------------------------------------------------------------------


def loss_case(name: str, options: str, target: np.ndarray, width: int = 5) -> Case:
    kind = f"classes: {width}" if target.dtype.kind == "i" else f"target_shape: [{width}]"
    graph = forward_of(read_spec(loss_text(name, options, kind, "fp64", width)))

    def fill(label: str, shape: Sequence[int], position: int) -> np.ndarray:
        return spread(shape, position, generator(name, label))

    given = given_for(graph, fill, ROWS)
    given["target"] = target
    names = tuple(n for n in float_names(graph) if n != "target")
    return Case(with_score(graph, "loss"), given, ROWS, names)


def compare_loss(case: Case, function: Function, weight: float) -> None:
    (x,) = tensors(case, case.floats)
    expected = function(x, torch.tensor(case.given["target"]))
    expected.backward()
    for graph in (case.graph, run_passes(case.graph)):
        values = case.run(graph)
        assert_close(values[graph.output(SCORE)], expected.item(), CLOSE, "loss")
        assert float(values[graph.output("weight")]) == weight
    for expanded in (False, True):
        found = gradients(case, expanded=expanded)[case.floats[0]]
        assert_close(found, x.grad.numpy(), 10 * CLOSE, "gradient")


REAL_LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}


def test_every_loss_is_compared() -> None:
    assert {*REAL_LOSSES, "cross_entropy"} == set(LOSSES)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("name", REAL_LOSSES)
def test_loss(name: str, scale: float) -> None:
    target = generator(name).uniform(0.05, 0.95, (ROWS, 5))
    case = loss_case(name, f"scale: {scale}", target)
    function = REAL_LOSSES[name]
    compare_loss(case, lambda x, t: scale * function(x, t, reduction="sum"), 5.0 * ROWS)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("target", [[0, 1, 4], [1, 1, 3], [-100, 2, -100]], ids=str)
def test_cross_entropy(smoothing: float, target: list[int]) -> None:
    options = f"label_smoothing: {smoothing}, ignore_index: -100"
    case = loss_case("cross_entropy", options, np.array(target))
    weight = float(sum(item != -100 for item in target))

    def function(x: Any, t: Any) -> Any:
        return F.cross_entropy(x, t, reduction="sum", label_smoothing=smoothing)

    compare_loss(case, function, weight)
    rows = gradients(case)["x"][np.array(target) == -100]
    assert not np.any(rows), "ignored rows have gradient exactly 0"


def test_cross_entropy_that_ignores_a_real_class() -> None:
    case = loss_case("cross_entropy", "ignore_index: 1", np.array([1, 0, 4]))
    compare_loss(case, lambda x, t: F.cross_entropy(x, t, reduction="sum", ignore_index=1), 2.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("target", [[0, 1, 4], [1, 1, 3], [-100, 2, -100], [3, 3, 3]], ids=str)
def test_cross_entropy_with_weights_of_classes(smoothing: float, target: list[int]) -> None:
    weights = [0.5, 2.0, 2.0, 0.25, 3.0]
    options = f"label_smoothing: {smoothing}, ignore_index: -100, class_weights: {weights}"
    case = loss_case("cross_entropy", options, np.array(target))

    def function(x: Any, t: Any) -> Any:
        given = torch.tensor(weights, dtype=x.dtype)
        return F.cross_entropy(x, t, given, reduction="sum", label_smoothing=smoothing)

    compare_loss(case, function, sum(weights[item] for item in target if item >= 0))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 200])
def test_a_weight_is_found_by_halving(count: int) -> None:
    weights = [float(k % 5) for k in range(count)]
    formula = weight_of(weights, Var("t"))
    found = evaluate(formula, {"t": np.arange(count)}, np.dtype(np.float64))
    assert np.array_equal(np.broadcast_to(found, count), weights)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_nothing_that_counts(smoothing: float) -> None:
    options = f"label_smoothing: {smoothing}, ignore_index: 2"
    case = loss_case("cross_entropy", options, np.array([2, 2, 2]))
    for graph in (case.graph, run_passes(case.graph)):
        values = case.run(graph, exact=False)
        assert float(values[graph.output(SCORE)]) == 0.0
        assert float(values[graph.output("weight")]) == 0.0
    for expanded in (False, True):
        assert not np.any(gradients(case, exact=False, expanded=expanded)["x"])


def test_cross_entropy_over_positions() -> None:
    logits = spread((ROWS, 4, 5), 0, generator("positions"))
    target = generator("targets").integers(0, 5, (ROWS, 4))
    target[0, 2] = -1
    attrs: dict[str, Any] = {"label_smoothing": 0.1, "ignore_index": -1}
    operands = [(F64, (BATCH, 4, 5), logits), (I64, (BATCH, 4), target)]
    case = op_case("cross_entropy", operands, **attrs)
    x = torch.tensor(logits, requires_grad=True)
    flat = torch.tensor(target)
    loss = F.cross_entropy(
        x.transpose(1, 2), flat, reduction="sum", ignore_index=-1, label_smoothing=0.1
    )
    (expected,) = torch.autograd.grad(loss, x)
    only_loss = replace(case, graph=with_score_of(case, "result"))
    assert_close(case.run()["result"], loss.item(), CLOSE)
    assert_close(gradients(only_loss)["operand0"], expected.numpy(), 10 * CLOSE)


def with_score_of(case: Case, role: str) -> Any:
    """The graph whose score is one result alone."""
    graph = case.graph
    nodes = tuple(node for node in graph.nodes if node.name == role)
    return with_score(replace(graph, nodes=nodes, outputs=((role, role),)), role)
