"""Where frameworks differ: the rules of `docs/conventions.md`, on plain and expanded graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graphs import (
    BATCH,
    SCORE,
    Arrays,
    Case,
    assert_close,
    forward_of,
    given_for,
    gradients,
    op_case,
    read_spec,
    spec_case,
    with_score,
)

from bpc.errors import SpecError
from bpc.expr import is_bool
from bpc.ir import Graph
from bpc.ops import OPS
from bpc.passes import run_passes
from bpc.types import BIT, F16, F32, F64, I64, DType

REALS = [F64, F32]
reals = pytest.mark.parametrize("dtype", REALS, ids=str)
both = pytest.mark.parametrize("expanded", [False, True], ids=["plain", "expanded"])


def slopes(case: Case, expanded: bool = False, **changed: np.ndarray) -> Arrays:
    """Gradients with every weight of the score 1, in the case's own type."""
    ones = {k: np.ones_like(v) for k, v in case.given.items() if k.startswith("weight")}
    plain = Case(case.graph, {**case.given, **ones, **changed}, case.rows, case.floats)
    return gradients(plain, exact=False, expanded=expanded)


def row(*values: float) -> np.ndarray:
    return np.array([values], dtype=np.float64)


def model(layers: str, inputs: dict[str, np.ndarray], precision: str = "fp32") -> Case:
    """A model on one batch of given inputs; parameters start at 1."""
    rows = len(next(iter(inputs.values())))
    shapes = ", ".join(f"{name}: {list(value.shape[1:])}" for name, value in inputs.items())
    text = (
        f"bpc: 1\nname: m\ndata: {{source: synthetic, batch: {rows}, inputs: {{{shapes}}}}}\n"
        f"model:\n{layers}loss: mse\n"
        f"train: {{steps: 1, precision: {precision}, optimizer: {{sgd: {{lr: 0.1}}}}}}\n"
    )

    def fill(name: str, shape: Sequence[int], position: int) -> np.ndarray:
        return inputs.get(name, np.ones(tuple(shape)))

    return spec_case(read_spec(text), fill, rows)


# -- kinks ----------------------------------------------------------------------------------------


@both
@reals
@pytest.mark.parametrize(
    ("op", "points", "expected"),
    [
        ("relu", row(-1, -0.0, 0, 2), row(0, 0, 0, 1)),
        ("abs", row(-3, -0.0, 0, 2), row(-1, 0, 0, 1)),
        ("leaky_relu", row(-1, 0, 0, 2), row(0.25, 0.25, 0.25, 1)),
        ("clip", row(-1.5, -1, 1, 1.5), row(0, 1, 1, 0)),
        ("elu", row(-0.0, 0, 1, 2), row(1, 1, 1, 1)),
    ],
)
def test_slope_at_a_kink(
    op: str, points: np.ndarray, expected: np.ndarray, dtype: DType, expanded: bool
) -> None:
    attrs = {"leaky_relu": {"slope": 0.25}, "clip": {"min": -1.0, "max": 1.0}}.get(op, {})
    attrs = {"alpha": 1.0} if op == "elu" else attrs
    case = op_case(op, [(dtype, (BATCH, 4), points)], rows=1, **attrs)
    assert np.array_equal(slopes(case, expanded)["operand0"], expected)


@reals
@pytest.mark.parametrize("op", ["max", "min"])
def test_equal_elements_share_the_gradient(op: str, dtype: DType) -> None:
    case = op_case(op, [(dtype, (BATCH, 3), row(1, 2, 0)), (dtype, (3,), np.array([1, 1, 0.0]))], 1)
    found = slopes(case)
    first = row(0.5, 1, 0.5) if op == "max" else row(0.5, 0, 0.5)
    assert np.array_equal(found["operand0"], first)
    assert np.array_equal(found["operand1"], (1 - first)[0])


def test_equal_elements_of_a_row_share_the_gradient() -> None:
    values = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    case = op_case("row_reduce", [(F64, (BATCH, 4), values)], 2, count=1, kind="max")
    expected = np.array([[0, 0.5, 0.5, 0], [0.25] * 4])
    assert np.array_equal(slopes(case)["operand0"], expected)


def test_clip_equals_min_of_max_inside() -> None:
    points = row(-2, -0.5, 0.5, 2)
    layers = "  - max: -1.0\n  - min: 1.0\n"
    found = slopes(model(layers, {"x": points}))["x"]
    assert np.array_equal(found, row(0, 1, 1, 0))


ONE_INPUT = [
    name
    for name, op in OPS.items()
    if op.arguments == ("x",) and op.body is not None and not is_bool(op.body)
]


@pytest.mark.parametrize("op", ONE_INPUT)
def test_a_nan_is_never_hidden(op: str) -> None:
    attrs = {p.name: p.default for p in OPS[op].parameters}
    case = op_case(op, [(F32, (BATCH, 2), row(np.nan, 0.5))], 1, **attrs)
    for graph in (case.graph, run_passes(case.graph)):
        assert np.array_equal(np.isnan(case.run(graph, exact=False)["result"]), row(1, 0) > 0)


# -- branches that are not taken ------------------------------------------------------------------


@both
@reals
def test_root_in_a_branch_not_taken(dtype: DType, expanded: bool) -> None:
    x = np.array([[-1.0, -4.0, 4.0, 0.0]])
    layers = (
        "  - gt: {value: 0.0, name: c, from: x}\n  - sqrt: {name: s, from: x}\n"
        "  - where: {from: [c, s, x]}\n"
    )
    case = model(layers, {"x": x}, "fp64" if dtype == F64 else "fp32")
    graph = run_passes(case.graph) if expanded else case.graph
    values = case.run(graph, exact=False)
    assert np.array_equal(values[graph.output("prediction")], row(-1, -4, 2, 0))
    assert np.array_equal(slopes(case, expanded)["x"], row(1, 1, 0.25, 1))


@both
@pytest.mark.parametrize("layer", ["exp", "square", "log", "sqrt", "elu", "softplus"])
def test_overflow_and_poles_in_a_branch_not_taken(layer: str, expanded: bool) -> None:
    """Forward values are infinite or NaN there; the gradient is that of the other branch."""
    x = row(100.0, 1e10, -1.0, 1e30) if layer != "log" else row(-1.0, 0.0, -3.0, -0.0)
    layers = (
        "  - mul: {value: 1.5, name: h}\n"  # a computed value, so that a slope written in y pays
        "  - ne: {value: 12345.0, name: always, from: x}\n"
        f"  - {layer}: {{name: e, from: h}}\n"
        "  - add: {value: 1.0, name: p, from: h}\n  - where: {from: [always, p, e]}\n"
    )
    found = slopes(model(layers, {"x": x}), expanded)["x"]
    assert np.array_equal(found, np.full((1, 4), 1.5))


@both
def test_taken_and_untaken_exponentials(expanded: bool) -> None:
    x = row(100.0, 1e10, -1.0, 0.0)
    layers = (
        "  - le: {value: 0.0, name: c, from: x}\n  - exp: {name: e, from: x}\n"
        "  - add: {value: 1.0, name: p, from: x}\n  - where: {from: [c, e, p]}\n"
    )
    found = slopes(model(layers, {"x": x}), expanded)["x"]
    assert np.allclose(found, row(1, 1, np.exp(-1), 1), rtol=2e-7, atol=0)


@both
def test_norm_of_a_zero_row_has_gradient_zero(expanded: bool) -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
    layers = (
        "  - square\n  - sum: {axes: [1], keepdims: true}\n  - sqrt: {name: r}\n"
        "  - gt: {value: 0.5, name: c, from: r}\n"
        '  - formula: {formula: "0 * r + 1", name: one, from: r}\n'
        "  - where: {from: [c, r, one]}\n"
    )
    found = slopes(model(layers, {"x": x}), expanded)["x"]
    expected = np.array([[1 / np.sqrt(5), 2 / np.sqrt(5)], [0.6, 0.8], [0.0, 0.0]])
    assert np.array_equal(found[2], [0.0, 0.0])
    assert np.allclose(found, expected, rtol=1e-6, atol=0)


def test_squared_norm_at_zero() -> None:
    layers = "  - square\n  - sum: {axes: [1], keepdims: true}\n  - sqrt\n  - square\n"
    found = slopes(model(layers, {"x": np.array([[0.0, 0.0], [3.0, 4.0]])}, "fp64"))["x"]
    assert np.array_equal(found, np.array([[0.0, 0.0], [6.0, 8.0]]))


def test_a_condition_of_one_bit() -> None:
    operands = [
        (BIT, (BATCH, 3), np.array([[True, False, True]])),
        (F32, (BATCH, 3), row(1, np.inf, 3)),
        (F32, (BATCH, 3), row(np.nan, 2, np.inf)),
    ]
    case = op_case("where", operands, 1)
    assert np.array_equal(case.run(exact=False)["result"], row(1, 2, 3))
    found = slopes(case)
    assert np.array_equal(found["operand1"], row(1, 0, 1))
    assert np.array_equal(found["operand2"], row(0, 1, 0))


# -- dropout --------------------------------------------------------------------------------------


def dropped(p: float, shape: tuple[int, int] = (8, 64), first: int = 0, window: int = 2) -> Case:
    case = model(f"  - dropout: {{p: {p}}}\n", {"x": np.ones(shape)})
    control = {"control.first_row": first, "control.window": window}
    given = {**case.given, **{k: np.asarray(v) for k, v in control.items()}}
    return Case(case.graph, given, case.rows, case.floats)


def result_of(case: Case, graph: Graph | None = None) -> np.ndarray:
    graph = graph or case.graph
    return case.run(graph, exact=False)[graph.output("prediction")]


def test_dropout_of_nothing_and_of_everything() -> None:
    assert np.array_equal(result_of(dropped(0.0)), np.ones((8, 64)))
    assert np.array_equal(result_of(dropped(1.0)), np.zeros((8, 64)))
    assert np.array_equal(slopes(dropped(1.0))["x"], np.zeros((8, 64)))


def test_dropout_of_everything_drops_infinities_too() -> None:
    case = model("  - dropout: 1.0\n", {"x": np.full((2, 3), np.inf)})
    for graph in (case.graph, run_passes(case.graph)):
        assert np.array_equal(result_of(case, graph), np.zeros((2, 3)))


@both
def test_dropout_scales_what_it_keeps_and_its_gradient_alike(expanded: bool) -> None:
    case = dropped(0.25, (64, 64))
    graph = run_passes(case.graph) if expanded else case.graph
    found = result_of(case, graph)
    assert set(np.unique(found)) == {0.0, np.float32(1 / 0.75)}
    assert abs(np.mean(found != 0) - 0.75) < 0.04
    assert np.array_equal(slopes(case, expanded)["x"], found)


def test_a_draw_belongs_to_its_element_and_window() -> None:
    whole = result_of(dropped(0.5))
    first, second = result_of(dropped(0.5, (3, 64))), result_of(dropped(0.5, (5, 64), first=3))
    assert np.array_equal(whole, np.concatenate([first, second]))
    assert not np.array_equal(whole, result_of(dropped(0.5, window=3)))


def test_two_dropouts_draw_apart() -> None:
    layers = "  - dropout: {p: 0.5, name: a, from: x}\n  - dropout: {p: 0.5, name: b, from: x}\n"
    case = model(layers + "  - sub: {from: [a, b]}\n", {"x": np.ones((8, 64))})
    assert np.any(result_of(case))


def test_dropout_is_off_outside_training() -> None:
    text = (
        "bpc: 1\nname: m\ndata: {source: synthetic, batch: 2, shape: [3], target_shape: [3]}\n"
        "model:\n  - dropout: 0.9\nloss: mse\ntrain: {steps: 1, optimizer: {sgd: {lr: 0.1}}}\n"
    )
    graph = forward_of(read_spec(text), training=False)
    assert "dropout" not in {node.op for node in graph.nodes}


# -- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["sum", "mean"])
@pytest.mark.parametrize(
    ("axes", "told"),
    [("[]", "no axes"), ("[0, 0]", "twice"), ("[1, -2]", "twice"), ("[5]", "axis 5"),
     ("-4", "axis -4")],
)  # fmt: skip
def test_faulty_axes_have_a_place(layer: str, axes: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        model(f"  - {layer}: {{axes: {axes}, name: s}}\n", {"x": np.ones((2, 3, 4))})
    (found,) = caught.value.diagnostics
    assert told in found.message
    assert found.span is not None and found.span.line == 5


@pytest.mark.parametrize("layer", ["sum", "mean"])
def test_negative_axes_count_from_the_end(layer: str) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    one = model(f"  - {layer}: [-1, -3]\n", {"x": x}, "fp64")
    other = model(f"  - {layer}: [0, 2]\n", {"x": x}, "fp64")
    assert np.array_equal(result_of(one), result_of(other))
    assert np.array_equal(slopes(one)["x"], slopes(other)["x"])


@both
def test_mean_of_small_types_adds_in_f32(expanded: bool) -> None:
    """4 x 16384 elements of 4 add up to 262144, past the largest f16."""
    case = model("  - mean: [0, 1]\n", {"x": np.full((4, 16384), 4.0)}, "fp16")
    graph = run_passes(case.graph) if expanded else case.graph
    assert float(result_of(case, graph)) == 4.0
    assert case.graph.values()[case.graph.output("prediction")].dtype == F16
    # 1 / 65536 is below the least normal f16, and still exact as a subnormal
    assert np.array_equal(slopes(case, expanded)["x"], np.full((4, 16384), 2.0**-16))


def test_mean_follows_the_rows_at_hand() -> None:
    case = model("  - mean: 0\n", {"x": np.arange(12.0).reshape(4, 3)}, "fp64")
    short = {**case.given, "x": case.given["x"][:2]}
    values = Case(case.graph, short, 2, case.floats).run()
    assert np.array_equal(values[case.graph.output("prediction")], [1.5, 2.5, 3.5])


# -- ranges ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("offset", [0.0, 1e4, -3e6])
def test_layernorm_with_a_large_mean(offset: float, expanded: bool) -> None:
    """The mean is taken off before squares are summed, so no digit of the spread is lost."""
    spread = np.array([[-1.5, 0.5, 1.0, 0.25, -0.25]])
    x = spread + offset
    case = model("  - layernorm\n", {"x": x})
    case.given["layernorm1.beta"][...] = 0.0
    graph = run_passes(case.graph) if expanded else case.graph
    expected = F.layer_norm(torch.tensor(x), (5,)).numpy()
    assert_close(result_of(case, graph), expected, 1e-6)


@both
def test_layernorm_of_a_constant_row(expanded: bool) -> None:
    case = model("  - layernorm\n", {"x": np.full((2, 6), 7.0)})
    case.given["layernorm1.beta"][...] = 0.5
    graph = run_passes(case.graph) if expanded else case.graph
    assert np.array_equal(result_of(case, graph), np.full((2, 6), 0.5))
    found = gradients(case, exact=False, expanded=expanded)
    assert np.all(np.isfinite(found["x"]))
    x = torch.full((2, 6), 7.0, dtype=torch.float64, requires_grad=True)
    (F.layer_norm(x, (6,)) * torch.tensor(case.given["weight0"])).sum().backward()
    assert x.grad is not None
    assert_close(found["x"], x.grad.numpy(), 1e-5)


@both
def test_log_softmax_over_a_wide_range(expanded: bool) -> None:
    x = np.array([[1000.0, 0.0, -1000.0], [94.69690704345703, -40.114463806152344, 0.0]])
    case = model("  - log_softmax\n", {"x": x})
    graph = run_passes(case.graph) if expanded else case.graph
    expected = torch.log_softmax(torch.tensor(x), -1).numpy()
    assert np.allclose(result_of(case, graph), expected, rtol=2e-7, atol=0)
    assert np.all(np.isfinite(slopes(case, expanded)["x"]))


@both
@pytest.mark.parametrize("offset", [0.0, 3e4])
def test_cross_entropy_does_not_see_a_common_offset(offset: float, expanded: bool) -> None:
    """Scores are near `offset`, whose unit in f32 is 0.002: exact there, and so is the loss."""
    logits = np.array([[0.5, -1.0, 2.0, 0.25], [3.0, 3.0, 1.5, -0.5]]) + offset
    operands = [(F32, (BATCH, 4), logits), (I64, (BATCH,), np.array([1, 0]))]
    attrs = {"label_smoothing": 0.1, "ignore_index": None}
    case = op_case("cross_entropy", operands, 2, **attrs)
    graph = run_passes(case.graph) if expanded else case.graph
    found = case.run(graph, exact=False)[graph.output("result")]
    loss = F.cross_entropy(
        torch.tensor(logits), torch.tensor([1, 0]), reduction="sum", label_smoothing=0.1
    )
    assert float(found) == pytest.approx(loss.item(), rel=1e-6)


@both
def test_cross_entropy_over_a_wide_range(expanded: bool) -> None:
    x = np.array([[1000.0, 0.0, -1000.0], [94.69690704345703, -40.114463806152344, 0.0]])
    case = loss_of("cross_entropy", x, np.array([1, 1]))
    graph = run_passes(case.graph) if expanded else case.graph
    found = float(case.run(graph, exact=False)[graph.output(SCORE)])
    assert found == pytest.approx(1134.8113708496094, rel=1e-7)
    slope = gradients(case, exact=False, expanded=expanded)["x"]
    assert np.array_equal(slope[:, :2], np.array([[1.0, -1.0], [1.0, -1.0]]))
    assert np.all(np.abs(slope[:, 2]) < 1e-40)


@both
def test_gradient_of_cross_entropy_does_not_see_a_common_offset(expanded: bool) -> None:
    logits = np.array([[0.5, -1.0, 2.0, 0.25]]) + 3e4
    case = loss_of("cross_entropy", logits, np.array([3]))
    slope = gradients(case, exact=False, expanded=expanded)["x"]
    expected = torch.softmax(torch.tensor(logits), -1).numpy() - row(0, 0, 0, 1)
    assert_close(slope, expected, 1e-6)


def loss_of(name: str, x: np.ndarray, target: np.ndarray) -> Case:
    rows, width = x.shape
    kind = f"classes: {width}" if target.dtype == np.int64 else f"target_shape: [{width}]"
    text = (
        f"bpc: 1\nname: m\ndata: {{source: synthetic, batch: {rows}, shape: [{width}], {kind}}}\n"
        f'model:\n  - formula: "1 * x"\nloss: {name}\n'
        "train: {steps: 1, optimizer: {sgd: {lr: 0.1}}}\n"
    )
    graph = forward_of(read_spec(text))
    given = given_for(graph, lambda label, shape, k: x if label == "x" else target, rows)
    return Case(with_score(graph, "loss"), {**given, "target": target}, rows, ("x",))


@both
def test_binary_cross_entropy_where_it_saturates(expanded: bool) -> None:
    case = loss_of("bce_with_logits", row(100, -100, 40, 17), row(0, 1, 1, 0))
    graph = run_passes(case.graph) if expanded else case.graph
    found = float(case.run(graph, exact=False)[graph.output(SCORE)])
    assert found == pytest.approx(217.00000004139937, rel=1e-7)
    slope = gradients(case, exact=False, expanded=expanded)["x"]
    expected = row(1.0, -1.0, -4.248354255291589e-18, 0.9999999586006245)
    assert np.allclose(slope, expected, rtol=1e-5, atol=0)


@both
def test_binary_cross_entropy_keeps_the_small_terms(expanded: bool) -> None:
    case = loss_of("bce_with_logits", row(20, -20, 0), row(1, 0, 0.25))
    graph = run_passes(case.graph) if expanded else case.graph
    found = float(case.run(graph, exact=False)[graph.output(SCORE)])
    assert found == pytest.approx(np.log(2) + 2 * np.log1p(np.exp(-20)), rel=1e-7)
    slope = gradients(case, exact=False, expanded=expanded)["x"]
    tail = 1 / (1 + np.exp(20.0))
    assert np.allclose(slope, row(-tail, tail, 0.25), rtol=1e-5, atol=0)


@both
def test_softplus_over_its_range(expanded: bool) -> None:
    x = row(20, 50, 100, -40, 1)
    case = op_case("softplus", [(F32, (BATCH, 5), x)], 1)
    graph = run_passes(case.graph) if expanded else case.graph
    found = case.run(graph, exact=False)[graph.output("result")]
    expected = row(20.000000002061153, 50, 100, 4.248354255291589e-18, 1.3132616875182228)
    assert np.allclose(found, expected, rtol=2e-6, atol=0)
    slope = row(0.9999999979388464, 1, 1, 4.248354255291589e-18, 0.7310585786300049)
    assert np.allclose(slopes(case, expanded)["operand0"], slope, rtol=2e-6, atol=0)


# -- names that a user may choose -----------------------------------------------------------------


def test_layers_may_be_called_like_the_gradient_and_the_result() -> None:
    """A formula may read inputs called g, y and m0, which derived formulas use too."""
    values = {"g": row(2.0, 3.0), "y": row(5.0, -7.0), "m0": row(1.5, 0.5)}
    layers = '  - formula: {formula: "g * y + max(m0, 1) * g", from: [g, y, m0]}\n'
    found = slopes(model(layers, values, "fp64"))
    assert np.array_equal(found["g"], row(6.5, -6.0))
    assert np.array_equal(found["y"], values["g"])
    assert np.array_equal(found["m0"], row(2.0, 0.0))


# -- truth values ---------------------------------------------------------------------------------


@both
def test_truth_values_count_as_one_and_zero(expanded: bool) -> None:
    x = np.array([[1.0, -2.0, 3.0, 0.0], [0.5, 0.25, -1.0, 4.0]])
    mask = (x > 0).astype(np.float64)
    layers = {
        "  - mean\n": mask.mean(axis=-1),
        "  - sum: [0]\n": mask.sum(axis=0),
        "  - linear: {out: 2}\n": mask.sum(axis=-1, keepdims=True).repeat(2, axis=1) + 1,
        "  - softmax\n": torch.softmax(torch.tensor(mask), -1).numpy(),
        "  - add: {from: [c, c]}\n": 2 * mask,
        "  - mul: {from: [c, x]}\n": mask * x,
    }
    for layer, expected in layers.items():
        case = model(f"  - gt: {{value: 0.0, name: c}}\n{layer}", {"x": x})
        graph = run_passes(case.graph) if expanded else case.graph
        assert np.allclose(result_of(case, graph), expected, rtol=1e-6, atol=0), layer
    assert np.array_equal(slopes(case, expanded)["x"], mask)
