"""Derivatives of expressions, and products with gradients that survive infinities.

At kinks: abs'(0) = sign'(0) = floor' = 0; `select(x > 0, x, 0)` has derivative 0 at 0; `clip`
passes the gradient at its bounds; equal arguments of `max` or `min` share it by halves, constants
alike, so max(x, 0) has derivative 0.5 at 0. Conditions and random draws have no derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from bpc.expr.bounds import may_be_singular
from bpc.expr.node import Call, Const, Expr, Var, walk
from bpc.expr.simplify import make, rebuild, simplify
from bpc.expr.table import ARGUMENTS, FUNCTIONS

_ZERO, _ONE = Const(0), Const(1)


@lru_cache(maxsize=8192)
def derivative(expr: Expr, name: str) -> Expr:
    """d expr / d name, simplified.

    The chain rule's products drop exact zeros and mask infinite factors, so that sqrt(max(x, 0))
    has derivative 0, not NaN, at x = -1.
    """
    root = simplify(expr)
    rates: dict[Expr, Expr] = {}
    for node in walk(root):
        if isinstance(node, Call):
            inner = [rates[item] for item in node.arguments]
            rates[node] = _chain(node.function, node.arguments, inner)
        else:
            rates[node] = _ONE if node is Var(name) else _ZERO
    return rates[root]


def _chain(function: str, arguments: Sequence[Expr], rates: Sequence[Expr]) -> Expr:
    """The derivative of a call from its arguments and their derivatives."""
    if all(rate is _ZERO for rate in rates) or not FUNCTIONS[function].derivatives:
        return _ZERO
    if function == "select":
        return make("select", arguments[0], rates[1], rates[2])
    if function == "pow" and isinstance(arguments[1], Const):
        return _scale(rates[0], _power_rate(arguments[0], arguments[1]))
    if function == "mul":
        return make("add", _times(rates[0], arguments[1]), _times(rates[1], arguments[0]))
    if function == "div":
        return _quotient(arguments[0], arguments[1], rates[0], rates[1])
    mapping = {item.name: value for item, value in zip(ARGUMENTS, arguments, strict=False)}
    total: Expr = _ZERO
    for rule, rate in zip(FUNCTIONS[function].derivatives, rates, strict=True):
        if rate is not _ZERO:
            total = make("add", total, _scale(rate, rebuild(rule, mapping)))
    return total


def _power_rate(base: Expr, exponent: Const) -> Expr:
    """c * x^(c - 1), which at x = 0 is 0, 1 or infinite as c says, and never NaN."""
    c = exponent.value
    if c == 0:
        return _ZERO
    return make("mul", Const(c), make("pow", base, c - 1))


def _quotient(a: Expr, b: Expr, da: Expr, db: Expr) -> Expr:
    """da / b - (a / b) / b * db."""
    first = _ZERO if da is _ZERO else _scale(da, make("div", _ONE, b))
    if db is _ZERO:
        return first
    slope = make("div", make("div", a, b), b)
    return make("sub", first, _scale(db, slope))


def _times(a: Expr, b: Expr) -> Expr:
    """a * b without terms that are exactly zero, whatever the other factor is."""
    return _ZERO if a is _ZERO or b is _ZERO else make("mul", a, b)


def _scale(g: Expr, d: Expr) -> Expr:
    """g * d where d is the slope of the outer function, infinite perhaps where g is 0."""
    if g is _ZERO or d is _ZERO:
        return _ZERO
    if isinstance(d, Call) and d.function == "div" and d.arguments[0] is _ONE:
        divisor = d.arguments[1]
        if isinstance(g, Const) or not may_be_singular(d):
            return make("div", g, divisor)
    if isinstance(g, Const) or not may_be_singular(d):
        return make("mul", g, d)
    return make("masked_mul", g, d)


def gradient_product(g: Expr, d: Expr) -> Expr:
    """g * d, masked to exactly 0 where g is 0 if d could be infinite or NaN."""
    return _scale(simplify(g), simplify(d))
