"""Scalar expressions: derivatives, meaning, text, and what a formula may not do."""

import math
import pickle
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from bpc.errors import Span, SpecError
from bpc.expr import (
    COMPOSITES,
    FUNCTIONS,
    Call,
    Const,
    Expr,
    Names,
    Var,
    absolute,
    and_,
    clip,
    depends_on,
    derivative,
    eq,
    erf,
    evaluate,
    exp,
    flops,
    fma,
    gradient_product,
    gt,
    is_bool,
    is_whole,
    log,
    masked_mul,
    maximum,
    may_be_singular,
    minimum,
    neg,
    parse_formula,
    power,
    render_c,
    render_formula,
    render_whole,
    select,
    sigmoid,
    sign,
    simplify,
    softplus,
    split_common,
    sqrt,
    square,
    substitute,
    tanh,
    uniform,
    variables,
    walk,
)
from bpc.philox import philox_uniform, philox_words

X, Y, G = Var("x"), Var("y"), Var("g")
SPAN = Span("net.yaml", 7, 11)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, 1e30, -1e30, np.inf, -np.inf, np.nan])


def parse(text: str, names: tuple[str, ...] = ("x", "y", "z")) -> Expr:
    return parse_formula(text, names, SPAN)


def value(expr: Expr, dtype: type = np.float64, **env: object) -> np.ndarray:
    return evaluate(expr, env, dtype)


# Derivatives

POSITIVE = {"log", "sqrt", "rsqrt", "recip", "pow", "log1p", "div"}
SMOOTH_POINTS = np.random.default_rng(1).uniform(0.15, 2.9, (3, 40))


def numbered(row) -> list[int]:
    return [i for i in range(row.arity) if i not in row.conditions]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, i)
        for name, row in FUNCTIONS.items()
        if row.result == "number" and name != "uniform"
        for i in numbered(row)
    ],
)
def test_derivative_matches_central_difference(name, argument):
    row = FUNCTIONS[name]
    points = SMOOTH_POINTS[: row.arity].copy()
    if name not in POSITIVE:
        points *= np.where(np.random.default_rng(2).random(points.shape) < 0.5, -1, 1)
    if name == "clip":
        points[1:] = np.sort(points[1:], axis=0)
    variables = [Var(f"v{i}") for i in range(row.arity)]
    arguments = [gt(v, 0) if i in row.conditions else v for i, v in enumerate(variables)]
    expr = Call(name, arguments)
    env = {f"v{i}": points[i] for i in range(row.arity)}
    found = evaluate(derivative(expr, f"v{argument}"), env, np.float64)
    step = 1e-5
    sides = [
        evaluate(expr, env | {f"v{argument}": points[argument] + s}, np.float64)
        for s in (step, -step)
    ]
    expected = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(
        np.broadcast_to(found, expected.shape), expected, rtol=2e-7, atol=1e-8
    )


FORMULAS = [
    "x * sigmoid(1.702 * x)", "x / (1 + abs(x))", "exp(-x^2) * sin(3*x)", "x^3 - 2*x^4 + x^5",
    "log(1 + exp(x))", "1 / (1 + exp(-x))", "(x - y)^2 / 2", "x^y + y^x", "2^x", "x^-2.5",
    "max(x, y, 0.3) * min(x, 2)", "x*y if x < y else x/y", "sqrt(x^2 + y^2)", "fma(x, y, x) / 3",
    "-(-x) * -y / -(x + 1)", "tanh(x)^3 / cosine".replace("cosine", "cos(x / 4)"), "log1p(x*y)",
    "clip(x * y, 0.2, 1.5) * recip(x)", "rsqrt(x + square(y)) * expm1(x)", "erf(x) * floor(y) * x",
    *(f"{name}({', '.join(['x', 'y'][: len(p)])})" for name, (p, _) in COMPOSITES.items()),
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
@pytest.mark.parametrize("name", ["x", "y"])
def test_formula_derivative_matches_central_difference(text, name):
    expr = parse(text)
    env = dict(zip("xy", SMOOTH_POINTS, strict=False))
    step = 1e-5
    high, low = (value(expr, **(env | {name: env[name] + s})) for s in (step, -step))
    slope = derivative(expr, name)
    found = np.broadcast_to(value(slope, **env), env["x"].shape)
    np.testing.assert_allclose(found, (high - low) / (2 * step), rtol=1e-6, atol=1e-7)
    assert simplify(slope) is slope


def test_second_derivative():
    slope = derivative(derivative(parse("x^3 * exp(2*x)"), "x"), "x")
    x = SMOOTH_POINTS[0]
    expected = np.exp(2 * x) * (6 * x + 12 * x**2 + 4 * x**3)
    np.testing.assert_allclose(value(slope, x=x), expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("expr", "point", "expected"),
    [
        (absolute(X), 0.0, 0.0),
        (sign(X), 0.0, 0.0),
        (select(X > 0, X, 0), 0.0, 0.0),
        (clip(X, -1, 2), -1.0, 1.0),
        (clip(X, -1, 2), 2.0, 1.0),
        (clip(X, -1, 2), 2.1, 0.0),
        (maximum(X, 0), 0.0, 0.5),
        (minimum(X, 3), 3.0, 0.5),
        (maximum(X, X), 5.0, 1.0),
        (X**0, 0.0, 0.0),
        (X**1, 0.0, 1.0),
        (X**2, 0.0, 0.0),
        (X**3, 0.0, 0.0),
        (X**0.5, 0.0, np.inf),
        (sqrt(X), 0.0, np.inf),
        (power(0, X), 1.5, 0.0),
        (power(X, X), 1.0, 1.0),
        (sqrt(maximum(X, 0)), -1.0, 0.0),
        (select(X > 0, log(X), 0), -1.0, 0.0),
        (select(X > 0, X * log(X), 0), 0.0, 0.0),
        (1 / (1 + exp(-X)), -1000.0, 0.0),
        (softplus(X), 1000.0, 1.0),
    ],
)
def test_derivative_at_kinks_and_limits(expr, point, expected):
    assert value(derivative(expr, "x"), x=point) == expected


def test_max_shares_a_tie():
    both = maximum(X, Y)
    shares = [float(value(derivative(both, n), x=2.0, y=2.0)) for n in ("x", "y")]
    assert shares == [0.5, 0.5]
    assert value(derivative(both, "x"), x=3.0, y=2.0) == 1
    assert value(derivative(both, "x"), x=1.0, y=2.0) == 0


def test_gradient_product_masks_only_what_can_be_infinite():
    assert gradient_product(G, 1 / X) is masked_mul(G, 1 / X)
    assert gradient_product(G, exp(X)) is masked_mul(G, exp(X))
    assert gradient_product(G, Const(2)) is 2 * G
    for safe in (exp(-square(X)), 1 / (1 + square(X)), tanh(X), sigmoid(X) * (1 - sigmoid(X))):
        assert gradient_product(G, safe).function in ("mul", "div", "neg")
    assert gradient_product(G, parse("1 / (1 + exp(-x))")).function == "mul"
    assert value(gradient_product(G, 1 / X), g=0.0, x=0.0) == 0
    assert value(gradient_product(G, 1 / X), g=2.0, x=0.0) == np.inf


@pytest.mark.parametrize("text", ["log(x)", "sqrt(x)", "1/x", "x^-1", "x^y", "recip(x)", "exp(x)"])
def test_singular_forms_are_found(text):
    assert may_be_singular(parse(text))


@pytest.mark.parametrize(
    "text", ["log(1+x^2)", "sqrt(x^2+1)", "1/max(x,1)", "x^3", "exp(min(x,0))"]
)
def test_bounded_forms_are_found(text):
    assert not may_be_singular(parse(text))


# Values


def test_nan_passes_through_like_numpy():
    for expr in (maximum(X, 0), minimum(0, X), clip(X, 0, 1), sign(X), masked_mul(1, X)):
        assert np.isnan(value(expr, x=np.nan)), expr
    assert not value(X > 0, x=np.nan)
    assert value(select(X > 0, 1, 2), x=np.nan) == 2
    assert value(masked_mul(G, X), g=0.0, x=np.nan) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("text", ["sigmoid(x)", "softplus(x)", "silu(x)", "gelu(x)", "mish(x)"])
def test_activations_never_make_nan(text, dtype):
    x = np.array([-1e4, -1e3, -90, -1, 0, 1, 90, 1e3, 1e4])
    found = value(parse(text), dtype, x=x)
    assert found.dtype == dtype
    assert np.isfinite(found).all()


def test_erf_is_exact_to_rounding():
    x = np.concatenate([np.linspace(-7, 7, 4001), np.logspace(-300, 1, 500), [0.46875, 4.0]])
    expected = np.array([math.erf(item) for item in x])
    np.testing.assert_allclose(value(erf(X), x=x), expected, rtol=1e-15)
    np.testing.assert_array_equal(value(erf(X), x=np.array([np.inf, -np.inf])), [1, -1])
    assert np.isnan(value(erf(X), x=np.nan))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 400)).astype(dtype)
    c = (-a * b * (1 + np.float64(2.0) ** -rng.integers(1, 60, 400))).astype(dtype)
    found = value(fma(X, Y, Var("z")), dtype, x=a, y=b, z=c)
    for i in range(400):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        error = abs(Fraction(float(found[i])) - exact)
        for side in (-np.inf, np.inf):
            neighbour = np.nextafter(found[i], dtype(side))
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_every_intermediate_has_the_dtype():
    x = np.float32(0.1)
    assert value(X * X * X, np.float32, x=0.1) == x * x * x
    assert value(X > 0.1, np.float32, x=0.1).dtype == np.bool_
    assert not value(X > 0.1, np.float32, x=0.1)
    assert value((X > 0) * X, np.float32, x=np.ones(3)).dtype == np.float32


def test_philox_known_answers():
    full, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    cases = [
        ((0,) * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((full,) * 4, (full, full), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, (0xA4093822, 0x299F31D0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ]
    for counter, key, expected in cases:
        words = philox_words(tuple(np.array([c], np.uint64) for c in counter), key)
        assert " ".join(f"{int(w[0]):08x}" for w in words) == expected


def test_uniform_draws_by_element():
    elements = np.arange(100_000)
    draws = philox_uniform(2**63 + 5, 3, 9, elements)
    assert draws.dtype == np.float32
    assert ((draws >= 0) & (draws < 1)).all()
    assert abs(draws.mean() - 0.5) < 0.005
    np.testing.assert_array_equal(
        draws[777:779], philox_uniform(2**63 + 5, 3, 9, elements[777:779])
    )
    assert (philox_uniform(1, 3, 9, elements[:8]) != draws[:8]).any()


def test_uniform_in_an_expression_keeps_large_indices():
    draw = uniform(Var("seed"), Var("window"), 4, Var("row") * 1000 + Var("column"))
    env = {"seed": 2**40 + 1, "window": 2, "row": np.array([2**30, 2**30 + 1]), "column": 1}
    expected = philox_uniform(2**40 + 1, 2, 4, env["row"] * 1000 + 1)
    np.testing.assert_array_equal(evaluate(draw, env, np.float32), expected)
    assert render_c(draw, "f32") == "bpc_uniform(seed, window, 4, row * 1000 + column)"
    assert derivative(select(draw >= 0.1, X, 0), "x") is select(draw >= 0.1, 1, 0)
    assert derivative(draw, "row") is Const(0)


# Structure


def test_equal_expressions_are_one_immutable_object():
    assert X * X + 1 is Var("x") * Var("x") + 1.0
    assert Const(1) is Const(1.0)
    assert Const(True) is not Const(1)
    assert Const(0.0) is not Const(-0.0)
    assert Const(math.nan) is Const(math.nan)
    assert pickle.loads(pickle.dumps(exp(X) + 2)) is exp(X) + 2
    with pytest.raises(AttributeError):
        X.name = "z"
    with pytest.raises(TypeError):
        bool(X > 0)


def test_shared_parts_cost_nothing_twice():
    expr = X
    for _ in range(200):
        expr = expr * expr
    assert len(list(walk(expr))) == 201
    assert len(list(walk(derivative(expr, "x")))) < 2000
    assert flops(expr) == 200


def test_substitute_variables_depends():
    expr = Y * exp(X) + Y
    assert variables(expr) == ("y", "x")
    assert depends_on(expr, "x") and not depends_on(expr, "g")
    assert substitute(expr, {"x": Y, "y": X}) is X * exp(Y) + X
    assert is_bool(and_(X > 0, Y > 0)) and not is_bool(select(X > 0, X, 0))


def test_split_common_names_what_repeats():
    s = sigmoid(X * 2)
    parts, rest = split_common(s * (1 - s) + exp(Var("t0")))
    assert parts == [("t1", s)]
    assert rest is Var("t1") * (1 - Var("t1")) + exp(Var("t0"))
    assert split_common(X + Y) == ([], X + Y)
    env = {"x": SMOOTH_POINTS[0], "y": SMOOTH_POINTS[1]}
    for text in FORMULAS:
        expr = derivative(parse(text), "x")
        parts, rest = split_common(expr)
        full = dict(env)
        for name, part in parts:
            full[name] = evaluate(part, full, np.float64)
        np.testing.assert_array_equal(evaluate(rest, full, np.float64), value(expr, **env))


def random_expr(rng: random.Random, depth: int, condition: bool = False) -> Expr:
    if condition:
        name = rng.choice(["lt", "le", "gt", "ge", "eq", "ne", "isfinite", "and", "or", "not"])
    elif depth == 0 or rng.random() < 0.1:
        leaf = rng.choice([X, Y, "number"])
        return leaf if isinstance(leaf, Expr) else Const(rng.choice([0, 1, -1, 2, 0.5, -3, 0.1, 4]))
    else:
        numbers = [n for n, r in FUNCTIONS.items() if r.result == "number" and n != "uniform"]
        name = rng.choice([*numbers, "add", "sub", "mul", "div", "neg", "select"])
    row = FUNCTIONS[name]
    if condition and depth == 0 and row.conditions:
        return X > Y
    return Call(
        name, [random_expr(rng, max(depth - 1, 0), i in row.conditions) for i in range(row.arity)]
    )


def same(a: np.ndarray, b: np.ndarray, **tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), **tolerance)


@pytest.mark.parametrize("seed", range(300))
def test_simplify_keeps_values_and_is_idempotent(seed):
    rng = random.Random(seed)
    expr = random_expr(rng, 3)
    short = simplify(expr)
    assert simplify(short) is short
    assert short.size <= expr.size + 3
    x, y = (item.ravel() for item in np.meshgrid(SPECIAL, SPECIAL))
    if any(isinstance(n, Call) and n.function in SIGN_OF_ZERO for n in walk(expr)):
        x, y = SMOOTH_POINTS[:2]
    before, after = value(expr, x=x, y=y), value(short, x=x, y=y)
    same(np.broadcast_to(after, np.broadcast_shapes(before.shape, after.shape)), before, rtol=1e-12)


# These see the sign of a zero or the last bit, which `simplify` may change.
SIGN_OF_ZERO = {"div", "recip", "rsqrt", "pow", "floor"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (X * 1, X), (X + 0, X), (X - 0, X), (0 - X, -X), (neg(neg(X)), X), (X / 1, X),
        (X**2, square(X)),
        (select(X > 0, Y, Y), Y), (select(Const(True), X, Y), X), (X - (-Y), X + Y),
        (-(X - Y), Y - X), (2 * (0.5 * X), X), ((2 * X) / 2, X), (Const(2) * 3, Const(6)),
        (X * 0, 0 * X), (square(-X), square(X)), (1 / (1 + exp(-X)), sigmoid(X)),
        (3 * (0.1 * X), 3 * (0.1 * X)), (X + (Y + 1), X + (Y + 1)), (X - X, X - X),
        ((X > 0) * 1, 1 * (X > 0)),
    ],
)  # fmt: skip
def test_simplify_rules(before, after):
    assert simplify(before) is after


# Text


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (maximum(X, 0), "max(x, 0)"),
        (select(X > 0, X, 0), "x if x > 0 else 0"),
        (X**2 + 1, "x^2 + 1"),
        (X * sigmoid(1.702 * X), "x * sigmoid(1.702 * x)"),
        (X - (Y - G), "x - (y - g)"),
        (X / (Y * G), "x / (y * g)"),
        (-(X**2), "-x^2"),
        ((-X) ** 2, "(-x)^2"),
        (power(X, power(Y, G)), "x^y^g"),
        (power(power(X, Y), G), "(x^y)^g"),
        ((X > 0) * Y, "(x > 0) * y"),
    ],
)
def test_formula_text(expr, text):
    assert render_formula(expr) == text
    assert parse_formula(text, ["x", "y", "g"], SPAN) is expr


@pytest.mark.parametrize("seed", range(200))
def test_formula_round_trip(seed):
    text = render_formula(random_expr(random.Random(1000 + seed), 4))
    expr = parse(text)
    assert parse(render_formula(expr)) is expr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-x^2", -9.0), ("2^-1", 0.5), ("2**3**2", 512.0), ("1 < x < 4", True),
        ("1 < x < 2", False),
        ("x == 3 and not x > 4", True), ("max(1, x, 7)", 7.0), ("where(x > 1, 5, 6)", 5.0),
        ("1e-3 * x", 0.003), ("pi / pi", 1.0), ("\n  x\n + 1\n", 4.0), ("pow(x, 2)", 9.0),
        ("9**9**9", np.inf), ("  x", 3.0), ("True", True), ("leaky_relu(-x, 0.1)", -0.3),
    ],
)  # fmt: skip
def test_formula_values(text, expected):
    assert value(simplify(parse(text)), x=3.0) == pytest.approx(expected, rel=1e-15)


def test_user_functions_are_written_in_place():
    functions = {"twice": (("v",), Var("v") * 2), "x2": (("x", "k"), Var("k") * Var("x"))}
    found = parse_formula("x2(twice(x), x + 1)", ["x"], SPAN, functions)
    assert found is (X + 1) * (X * 2)


HOSTILE = [
    ("x.real", "BPC0305", 0), ("1 + x[0]", "BPC0305", 4), ("lambda: x", "BPC0305", 0),
    ("[x for x in y]", "BPC0305", 0), ("x + 'a'", "BPC0305", 4), ("(q := 1)", "BPC0305", 1),
    ("__import__('os')", "BPC0305", 11), ("__import__(x)", "BPC0303", 0),
    ("x + __name__", "BPC0305", 4),
    ("().__class__", "BPC0305", 0), ("x % 2", "BPC0305", 0), ("x // 2", "BPC0305", 0),
    ("+x", "BPC0305", 0), ("f'{x}'", "BPC0305", 0), ("max(*x)", "BPC0305", 4),
    ("1j * x", "BPC0305", 0),
    ("x is y", "BPC0305", 0), ("max(x, y=2)", "BPC0305", 9), ("x, y", "BPC0305", 0),
    ("exp(x)(y)", "BPC0305", 0), ("None", "BPC0305", 0), ("...", "BPC0305", 0),
    ("x # y", "BPC0305", 2),
    ("x; y", "BPC0305", 1), ("\uff45xp(x)", "BPC0305", 0), ("x + \x00", "BPC0305", 4),
    ("{x}", "BPC0305", 0),
    ("", "BPC0301", 0), ("   ", "BPC0301", 0), ("x +", "BPC0301", None), ("x y", "BPC0301", None),
    ("x) + (y", "BPC0301", 1), ("import os", "BPC0301", None), ("x = 1", "BPC0301", None),
    ("sigmiod(x)", "BPC0303", 0), ("uniform(1, 2, 3, 4)", "BPC0303", 0), ("2 * q", "BPC0302", 4),
    ("exp", "BPC0302", 0), ("2 + exp(x, y)", "BPC0304", 4), ("relu()", "BPC0304", 0),
    ("x if x + 1 else 1", "BPC0307", 5), ("x + 1 and y", "BPC0307", 0),
    ("select(x*2, 1, 2)", "BPC0307", 7),
    ("9" * 400, "BPC0308", 0), ("x+" * 2047 + "x", "BPC0306", None), ("x" * 5000, "BPC0306", 0),
    ("-" * 4000 + "x", "BPC0306", None), ("(" * 1500 + "x" + ")" * 1500, None, None),
    ("0" * 4000 + "1", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "offset"), HOSTILE, ids=[t[:20] for t, _, _ in HOSTILE])
def test_hostile_text_is_refused_with_its_place(text, code, offset):
    with pytest.raises(SpecError) as caught:
        parse(text)
    found = caught.value.diagnostics[0]
    assert found.code.startswith(code or "BPC03")
    assert found.span is not None and found.span.file == "net.yaml"
    if offset is not None:
        assert (found.span.line, found.span.column) == (7, 11 + offset)


def test_nearest_name_and_allowed_names():
    with pytest.raises(SpecError) as caught:
        parse("sigmiod(x)")
    found = caught.value.diagnostics[0]
    assert found.help == "did you mean 'sigmoid'?"
    assert found.span == Span("net.yaml", 7, 11, 7)
    assert "tanh" in found.notes[0].text


def test_place_on_a_later_line_and_behind_a_caret():
    with pytest.raises(SpecError) as caught:
        parse("x^2 +\n  (x^2 +\n   bad)")
    assert caught.value.diagnostics[0].span == Span("net.yaml", 9, 14, 3)
    with pytest.raises(SpecError) as caught:
        parse("x^2 + x^3 + bad")
    assert caught.value.diagnostics[0].span == Span("net.yaml", 7, 23, 3)


def test_growth_by_user_functions_is_bounded():
    functions = {"f": (("v",), Var("v") * Var("v"))}
    with pytest.raises(SpecError, match="BPC0306"):
        parse_formula("f(" * 40 + "x" + ")" * 40, ["x"], SPAN, functions)


@pytest.mark.parametrize("seed", range(60))
def test_random_text_never_crashes(seed):
    rng = random.Random(seed)
    pieces = ["x", "y", "(", ")", "+", "-", "*", "**", "^", "/", "<", "if", "else", " ", "exp(",
              ",", "1", "1e9", ".", "[", "]", "'", "lambda", ":", "=", "not ", "and ", "\n",
              "max(", "é"]  # fmt: skip
    for _ in range(60):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 14)))
        try:
            parse(text)
        except SpecError as error:
            assert error.diagnostics[0].code.startswith("BPC03")


# C++

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


def test_import_is_light():
    code = "import sys; before = set(sys.modules); import bpc.expr; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"sympy", "scipy", "torch", "networkx", "matplotlib", "jax", "difflib"}
    assert not heavy & set(run.stdout.split())
