"""Field cases about single functions, kinks and branches that are not taken."""

from __future__ import annotations

import numpy as np
import pytest
from field_cases import assert_near, expected, inputs_of
from field_nets import Maker

reals = pytest.mark.parametrize("precision", ["fp64", "fp32"])


@reals
def test_math_where_sqrt_untaken(make: Maker, precision: str) -> None:
    name = "math-where-sqrt-untaken"
    layers = """
gt: {value: 0.0, name: c, from: x}
sqrt: {name: s, from: x}
where: {name: y, from: [c, s, x]}
"""
    found = make.probe(layers, inputs_of(name), [4], precision=precision)
    assert np.array_equal(found.value, expected(name)["y"])
    assert np.array_equal(found.gradients["x"], expected(name)["grad"]["x"])


def test_math_where_exp_overflow(make: Maker) -> None:
    name = "math-where-exp-overflow"
    layers = """
le: {value: 0.0, name: c, from: a}
exp: {name: e, from: a}
add: {value: 1.0, name: p, from: a}
where: {name: y, from: [c, e, p]}
"""
    found = make.probe(layers, inputs_of(name), [4], precision="fp32")
    assert_near(name, "fp32", found.value, expected(name)["y"])
    assert_near(name, "fp32", found.gradients["a"], expected(name)["grad"]["a"])


@reals
def test_math_where_row_norm(make: Maker, precision: str) -> None:
    name = "math-where-row-norm"
    layers = """
square: {from: x}
sum: {axes: [2], name: q}
sqrt: {name: r}
formula: {formula: "r if r > 0.5 else 1.0", from: r, name: y}
"""
    found = make.probe(layers, inputs_of(name), [3], precision=precision)
    assert_near(name, precision, found.value.sum(dtype=np.float64), expected(name)["loss"])
    assert_near(name, precision, found.gradients["x"], expected(name)["grad"]["x"])
    assert np.array_equal(found.gradients["x"][2], [0.0, 0.0])


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_math_norm_at_zero(make: Maker, precision: str) -> None:
    name = "math-norm-at-zero"
    layers = """
norm: {p: 1, name: a, from: x}
norm: {p: 2, name: b, from: x}
norm: {p: 3, name: c, from: x}
max_norm: {name: d, from: x}
formula: {formula: "a + b + c + d", from: [a, b, c, d], name: y}
"""
    found = make.probe(layers, inputs_of(name), [], precision=precision)
    assert found.value == expected(name)["y"]
    assert np.array_equal(found.gradients["x"], expected(name)["grad"]["x"])


SQUARED_NORMS = {
    "norm": "norm: {p: 2, name: r, from: x}\nsquare: {name: y}",
    "written out": "square: {from: x}\nsum\nsqrt: {name: r}\nsquare: {name: y}",
}


@reals
@pytest.mark.parametrize("form", SQUARED_NORMS)
def test_math_squared_norm_at_zero(make: Maker, precision: str, form: str) -> None:
    name = "math-squared-norm-at-zero"
    layers = SQUARED_NORMS[form]
    found = make.probe(layers, inputs_of(name), [], precision=precision)
    assert found.value == expected(name)["y"]
    assert np.array_equal(found.gradients["x"], expected(name)["grad"]["x"])
    second = expected(name)["second_input"]
    found = make.probe(layers, {"x": np.asarray(second["x"])}, [], precision=precision)
    assert_near(name, precision, found.gradients["x"], second["grad"])


@reals
def test_math_normalize_zero_vector(make: Maker, precision: str) -> None:
    name = "math-normalize-zero-vector"
    given = inputs_of(name)
    upstream = given.pop("upstream")
    layers = "normalize: {p: 2, eps: 1e-6, name: y, from: x}"
    found = make.probe(layers, given, [2, 2], precision=precision, upstream=upstream)
    assert_near(name, precision, found.value, expected(name)["y"])
    assert_near(name, precision, found.gradients["x"], expected(name)["grad"]["x"])


@reals
def test_math_normalize_p1(make: Maker, precision: str) -> None:
    name = "math-normalize-p1"
    layers = "normalize: {p: 1, eps: 1e-12, name: y, from: x}"
    found = make.probe(layers, inputs_of(name), [1, 5], precision=precision)
    assert_near(name, precision, found.value.sum(dtype=np.float64), expected(name)["loss"])
    assert_near(name, precision, found.gradients["x"], expected(name)["grad"]["x"])


@reals
def test_math_pow_zero_base(make: Maker, precision: str) -> None:
    name = "math-pow-zero-base"
    given = inputs_of(name)
    pair = {"base": given["base"], "exponent": given["exponent_const"]}
    layers = "pow: {name: y, from: [base, exponent]}"
    found = make.probe(layers, pair, [6], precision=precision)
    assert np.array_equal(found.value, expected(name)["y"])
    wanted = [float(value) for value in expected(name)["grad"]["base"]]
    assert np.array_equal(found.gradients["base"], wanted)
    learned = found.gradients["exponent"][[2, 5]]  # the exponents 2 and 0.5
    assert np.array_equal(learned, expected(name)["grad_exponent_second"])
    # the exponent as a constant of the formula
    written = "\n".join(
        f"formula: {{formula: 'x ^ {value}', name: y{k}, from: base}}"
        for k, value in enumerate(pair["exponent"])
    )
    names = ", ".join(f"y{k}" for k in range(6))
    terms = " + ".join(f"{k + 1} * y{k}" for k in range(6))
    written += f"\nformula: {{formula: '{terms}', from: [{names}], name: y}}"
    found = make.probe(written, {"base": np.zeros(1)}, [1], precision=precision)
    assert np.array_equal(found.value, [1.0])
    assert np.array_equal(found.gradients["base"], [np.inf])
    finite = written.replace("6 * y5", "0 * y5")
    found = make.probe(finite, {"base": np.zeros(1)}, [1], precision=precision)
    assert np.array_equal(found.gradients["base"], [2.0])


KINKS = {
    "y1": ("clip(a, lo, hi)", ["a", "lo", "hi"]),
    "y2": ("min(max(a, lo), hi)", ["a", "lo", "hi"]),
    "y3": ("relu(a)", ["a"]),
    "y4": ("max(a, 0)", ["a"]),
    "y5": ("abs(a)", ["a"]),
}


@reals
def test_math_kink_conventions(make: Maker, precision: str) -> None:
    given = inputs_of("math-kink-conventions")
    slopes = {}
    for label, (formula, names) in KINKS.items():
        layers = f"formula: {{formula: '{formula}', from: [{', '.join(names)}], name: y}}"
        part = {name: given[name] for name in names}
        slopes[label] = make.probe(layers, part, [5], precision=precision).gradients
    interior = [0, 2, 4]
    for label in ("y1", "y2"):
        assert np.array_equal(slopes[label]["a"][interior], [0, 1, 0])
        low = slopes[label]["a"] + slopes[label]["lo"]
        high = slopes[label]["a"] + slopes[label]["hi"]
        assert low[1] == 1 and high[3] == 1
    assert slopes["y3"]["a"][2] == 0 and slopes["y5"]["a"][2] == 0
    # documented: where `max` has a tie, each side has half, so `max(a, 0)` differs from relu
    assert np.array_equal(slopes["y3"]["a"][[0, 1, 3, 4]], slopes["y4"]["a"][[0, 1, 3, 4]])
    assert slopes["y4"]["a"][2] == 0.5


@pytest.mark.parametrize("beta", [1, 5])
def test_math_softplus_range(make: Maker, beta: int) -> None:
    name = "math-softplus-range"
    formula = "softplus(x)" if beta == 1 else f"softplus({beta} * x) / {beta}"
    layers = f"formula: {{formula: '{formula}', from: x, name: y}}"
    found = make.probe(layers, inputs_of(name), [6], precision="fp32")
    for got, key in ((found.value, "y"), (found.gradients["x"], "grad")):
        wanted = expected(name)[f"{key}_beta{beta}"]
        assert np.isfinite(got).all()
        assert_near(name, "fp32", got, wanted)
        normal = np.asarray(wanted) > np.finfo(np.float32).tiny
        np.testing.assert_allclose(got[normal], np.asarray(wanted)[normal], rtol=1e-5, atol=0)
