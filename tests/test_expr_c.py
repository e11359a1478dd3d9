"""Expressions as C++ text: what it says, and that it computes the same."""

import math
import random
import subprocess

import numpy as np
import pytest
from expressions import (
    FORMULAS,
    SMOOTH_POINTS,
    G,
    X,
    Y,
    parse,
    random_expr,
    same,
    value,
)

from bpc.expr import (
    FUNCTIONS,
    Call,
    Const,
    Names,
    and_,
    derivative,
    eq,
    exp,
    gt,
    is_whole,
    maximum,
    neg,
    render_c,
    render_formula,
    render_whole,
    select,
    square,
    walk,
)

SHIM = """
#include <cmath>
#include <cstdio>
template <class T> T bpc_exp(T x) { return std::exp(x); }
template <class T> T bpc_log(T x) { return std::log(x); }
template <class T> T bpc_log1p(T x) { return std::log1p(x); }
template <class T> T bpc_expm1(T x) { return std::expm1(x); }
template <class T> T bpc_sqrt(T x) { return std::sqrt(x); }
template <class T> T bpc_rsqrt(T x) { return 1 / std::sqrt(x); }
template <class T> T bpc_square(T x) { return x * x; }
template <class T> T bpc_sin(T x) { return std::sin(x); }
template <class T> T bpc_cos(T x) { return std::cos(x); }
template <class T> T bpc_tanh(T x) { return std::tanh(x); }
template <class T> T bpc_erf(T x) { return std::erf(x); }
template <class T> T bpc_abs(T x) { return std::fabs(x); }
template <class T> T bpc_floor(T x) { return std::floor(x); }
template <class T> T bpc_pow(T x, T y) { return std::pow(x, y); }
template <class T> T bpc_fma(T x, T y, T z) { return std::fma(x, y, z); }
template <class T> T bpc_sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
template <class T> T bpc_sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; }
template <class T> T bpc_max(T x, T y) { return x > y || x != x ? x : y; }
template <class T> T bpc_min(T x, T y) { return x < y || x != x ? x : y; }
template <class T> T bpc_clip(T x, T a, T b) { return bpc_min(bpc_max(x, a), b); }
template <class T> T bpc_softplus(T x) {
  return bpc_max(x, T(0)) + std::log1p(std::exp(-std::fabs(x)));
}
template <class T> T bpc_masked_mul(T g, T d) { return g == 0 ? T(0) : g * d; }
template <class T> bool bpc_isfinite(T x) { return std::isfinite(x); }
"""
SINGLE = [
    Call(name, [gt(X, Y) if i in row.conditions else (X, Y, X - Y)[i] for i in range(row.arity)])
    for name, row in FUNCTIONS.items()
    if row.arity <= 3
]
C_EXPRS = [
    *SINGLE,
    *(parse(text) for text in FORMULAS),
    *(derivative(parse(text), "x") for text in FORMULAS),
    *(random_expr(random.Random(5000 + seed), 3) for seed in range(120)),
    maximum(X, Const(-math.inf)),
    select(X > 1, Const(math.inf), -Y),
    -Const(-2) * X,
    neg(neg(X)) - -Y,
    maximum(X > 1, Y),
]
C_MAIN = """
int main() {
  double x, y;
  while (scanf("%lf %lf", &x, &y) == 2) { CALLS puts(""); }
}
"""


@pytest.fixture(scope="module", params=["f32", "f64"])
def compiled(request, tmp_path_factory):
    """The values that g++ gives each expression at each point."""
    folder = tmp_path_factory.mktemp("c")
    scalar = {"f32": "float", "f64": "double"}[request.param]
    bodies = "\n".join(
        f"static {scalar} f{i}({scalar} x, {scalar} y) {{\n"
        f"  return {render_c(expr, request.param)};\n}}"
        for i, expr in enumerate(C_EXPRS)
    )
    calls = "".join(f'printf("%a ", (double)f{i}(x, y));' for i in range(len(C_EXPRS)))
    (folder / "a.cpp").write_text(SHIM + bodies + C_MAIN.replace("CALLS", calls))
    flags = ["-O1", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unused-parameter"]
    command = ["g++", *flags, "-o", str(folder / "a"), str(folder / "a.cpp")]
    subprocess.run(command, check=True, capture_output=True)
    points = "\n".join(f"{x!r} {y!r}" for x, y in SMOOTH_POINTS[:2].T.astype(np.float32).tolist())
    run = subprocess.run(
        [str(folder / "a")], input=points, capture_output=True, text=True, check=True
    )
    rows = [[float.fromhex(item) for item in line.split()] for line in run.stdout.splitlines()]
    return request.param, np.array(rows)


def test_c_text_computes_the_same(compiled):
    """One function: to 4 units in the last place. Larger: to 32 of the largest intermediate."""
    dtype = {"f32": np.float32, "f64": np.float64}[compiled[0]]
    x, y = SMOOTH_POINTS[:2].astype(np.float32)
    epsilon = np.finfo(dtype).eps
    for i, expr in enumerate(C_EXPRS):
        found = np.broadcast_to(np.asarray(value(expr, dtype, x=x, y=y), float), x.shape)
        if expr in SINGLE:
            same(compiled[1][:, i], found, rtol=4 * epsilon)
            continue
        parts = [np.abs(np.asarray(value(n, dtype, x=x, y=y), float)) for n in walk(expr)]
        finite = [np.where(np.isfinite(part), part, 0) for part in parts]
        scale = np.max([np.broadcast_to(part, x.shape) for part in finite], axis=0)
        close = np.isclose(
            compiled[1][:, i], found, rtol=0, atol=32 * epsilon * scale, equal_nan=True
        )
        assert close.all(), render_formula(expr)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (X - (Y - G), "x - (y - g)"),
        ((X + Y) * G, "(x + y) * g"),
        (1 / (1 + exp(-X)), "1.0f / (1.0f + bpc_exp(-x))"),
        (select(X > 0, X, 0), "(x > 0.0f ? x : 0.0f)"),
        ((X > 0) * Y, "(x > 0.0f ? 1.0f : 0.0f) * y"),
        (X * 0.1 + 1e-8, "x * 0.1f + 1e-08f"),
        (X * Const(-2), "x * -2.0f"),
        (-Const(-2), "-(-2.0f)"),
        (maximum(X, Const(-math.inf)), "bpc_max(x, -INFINITY)"),
        (X * 1e300, "x * INFINITY"),
        (square(X) + square(X + 1), "x * x + bpc_square(x + 1.0f)"),
        (and_(X > 0, Y > 0), "x > 0.0f && y > 0.0f"),
    ],
)
def test_c_text(expr, text):
    assert render_c(expr, "f32") == text


def test_c_names_are_mapped():
    names = {"x": "in[i]", "y": "a + b"}
    assert render_c(X * Y, "f64", Names(names)) == "in[i] * (a + b)"


def test_conditions_need_no_conversion():
    names = Names({"x": "float(x)", "y": "float(y)"}, {"x": "x", "y": "y"})
    assert render_c(select(X, Y, Y * 2), "f32", names) == "(x ? float(y) : float(y) * 2.0f)"
    assert render_c(and_(X, Y > X), "f32", names) == "x && float(y) > float(x)"
    assert render_c(select(X + 1, Y, 0), "f32", names) == "(float(x) + 1.0f ? float(y) : 0.0f)"


def test_integers_are_compared_as_such():
    names = Names({"x": "float(x)", "y": "float(y)", "g": "g"}, {"x": "x", "y": "y"}, {"x", "y"})
    assert render_c(select(eq(X, Y + 1), G, 0), "f32", names) == "(x == y + 1 ? g : 0.0f)"
    assert render_c(eq(X, G), "f32", names) == "float(x) == g"


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (select(X, Y, Y + 1), "(x ? y : y + 1)"),
        (
            select(G > 0.5, 1, select(and_(X, G > 1), Y, -2)),
            "(g > 0.5 ? 1 : (x && g > 1.0 ? y : -2))",
        ),
        (select(X + 1, Y - (X - Y), 3), "(double(x) + 1.0 ? y - (x - y) : 3)"),
    ],
)
def test_whole_numbers_stay_whole(expr, text):
    names = Names({"x": "double(x)", "y": "double(y)"}, {"x": "x", "y": "y"}, {"x", "y"})
    assert is_whole(expr, names.whole)
    assert render_whole(expr, "f64", names) == text


@pytest.mark.parametrize("expr", [X * Y, X + 0.5, X + G, select(X, Y, G), Const(True), -X, X / 2])
def test_what_is_not_whole(expr):
    assert not is_whole(expr, {"x", "y"})


def test_literals_read_back():
    rng = np.random.default_rng(3)
    for number in rng.standard_normal(200) * 10.0 ** rng.integers(-30, 30, 200):
        text = render_c(Const(number), "f32")
        assert text.endswith("f") and np.float32(text[:-1]) == np.float32(number)
        assert float(render_c(Const(number), "f64")) == number
