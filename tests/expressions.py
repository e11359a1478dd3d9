"""Expressions, points and formulas that the tests of expressions share."""

import random

import numpy as np

from bpc.errors import Span
from bpc.expr import (
    COMPOSITES,
    FUNCTIONS,
    Call,
    Const,
    Expr,
    Var,
    evaluate,
    parse_formula,
)

X, Y, G = Var("x"), Var("y"), Var("g")
SPAN = Span("net.yaml", 7, 11)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, 1e30, -1e30, np.inf, -np.inf, np.nan])


def parse(text: str, names: tuple[str, ...] = ("x", "y", "z")) -> Expr:
    return parse_formula(text, names, SPAN)


def value(expr: Expr, dtype: type = np.float64, **env: object) -> np.ndarray:
    return evaluate(expr, env, dtype)


POSITIVE = {"log", "sqrt", "rsqrt", "recip", "pow", "log1p", "div"}
SMOOTH_POINTS = np.random.default_rng(1).uniform(0.15, 2.9, (3, 40))

FORMULAS = [
    "x * sigmoid(1.702 * x)", "x / (1 + abs(x))", "exp(-x^2) * sin(3*x)", "x^3 - 2*x^4 + x^5",
    "log(1 + exp(x))", "1 / (1 + exp(-x))", "(x - y)^2 / 2", "x^y + y^x", "2^x", "x^-2.5",
    "max(x, y, 0.3) * min(x, 2)", "x*y if x < y else x/y", "sqrt(x^2 + y^2)", "fma(x, y, x) / 3",
    "-(-x) * -y / -(x + 1)", "tanh(x)^3 / cosine".replace("cosine", "cos(x / 4)"), "log1p(x*y)",
    "clip(x * y, 0.2, 1.5) * recip(x)", "rsqrt(x + square(y)) * expm1(x)", "erf(x) * floor(y) * x",
    *(f"{name}({', '.join(['x', 'y'][: len(p)])})" for name, (p, _) in COMPOSITES.items()),
]  # fmt: skip


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
