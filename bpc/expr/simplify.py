"""Shorter expressions with the same values.

What is kept: the value for every input, infinities and NaN included. What is not: the sign of a
zero, and results whose way passes the largest or smallest numbers when two powers of two meet.
Sums and products are never regrouped otherwise. A product with 0 stays, since 0 * inf is NaN;
`derivative` leaves such terms out itself, where the zero says that there is no dependence.
Whole exponents up to 4 are products by definition: x^3 is x^2 * x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from bpc.expr.evaluate import evaluate
from bpc.expr.node import Call, Const, Expr, Number, Var, as_expr, substitute, walk
from bpc.expr.table import is_bool

_ZERO, _ONE, _TRUE, _FALSE = Const(0), Const(1), Const(True), Const(False)
_SIGNED_ZERO = Const(-0.0)


@lru_cache(maxsize=8192)
def simplify(expr: Expr) -> Expr:
    """The expression in normal form; simplifying again changes nothing."""
    return rebuild(expr, {})


def rebuild(expr: Expr, mapping: Mapping[str, Expr]) -> Expr:
    """Substitute simplified expressions for variables and simplify on the way."""
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        if isinstance(node, Var):
            done[node] = mapping.get(node.name, node)
        elif isinstance(node, Call) and node.function == "uniform":
            done[node] = substitute(node, mapping)  # index arithmetic has rules of its own
        elif isinstance(node, Call):
            done[node] = make(node.function, *(done[item] for item in node.arguments))
        else:
            done[node] = node
    return done[expr]


def make(function: str, *arguments: Expr | Number) -> Expr:
    """A call in normal form, made from arguments in normal form."""
    items = tuple(as_expr(item) for item in arguments)
    if function != "uniform" and all(isinstance(item, Const) for item in items):
        value = evaluate(Call(function, items), {}, np.float64).item()
        return Const(value)
    rule = _RULES.get(function)
    found = rule(*items) if rule else None
    return Call(function, items) if found is None else found


def _inner(expr: Expr, function: str) -> Expr | None:
    """The argument, if this is a call of that function of one argument."""
    return expr.arguments[0] if isinstance(expr, Call) and expr.function == function else None


def _is_zero(expr: Expr) -> bool:
    return expr is _ZERO or expr is _SIGNED_ZERO


def _power_of_two(expr: Expr) -> float | None:
    if not isinstance(expr, Const) or isinstance(expr.value, bool):
        return None
    value = float(expr.value)
    return value if math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5 else None


def _add(a: Expr, b: Expr) -> Expr | None:
    if _is_zero(b):
        return _number(a)
    if _is_zero(a):
        return _number(b)
    if (inner := _inner(b, "neg")) is not None:
        return make("sub", a, inner)
    if (inner := _inner(a, "neg")) is not None:
        return make("sub", b, inner)
    for item, other in ((a, b), (b, a)):
        if _is_negative(item):
            return make("sub", other, make("neg", item))
    return None


def _is_negative(expr: Expr) -> bool:
    return isinstance(expr, Const) and not is_bool(expr) and expr.value < 0


def _sub(a: Expr, b: Expr) -> Expr | None:
    if _is_zero(b):
        return _number(a)
    if _is_zero(a):
        return make("neg", b)
    if (inner := _inner(b, "neg")) is not None:
        return make("add", a, inner)
    return make("add", a, make("neg", b)) if _is_negative(b) else None


def _mul(a: Expr, b: Expr) -> Expr | None:
    if isinstance(b, Const) and not isinstance(a, Const):
        return make("mul", b, a)
    if a is _ONE:
        return _number(b)
    if a is Const(-1):
        return make("neg", b)
    for item, other in ((a, b), (b, a)):
        if (inner := _inner(item, "neg")) is not None:
            return _scale_negative(inner, other)
    return _merge_scales(a, b)


def _scale_negative(inner: Expr, other: Expr) -> Expr:
    """-inner * other with the sign moved out, into a constant where there is one."""
    if isinstance(other, Const) and not is_bool(other):
        return make("mul", -other.value, inner)
    return make("neg", make("mul", inner, other))


def _merge_scales(a: Expr, b: Expr) -> Expr | None:
    """2 * (0.5 * x) is x: exact, as both are powers of two."""
    first = _power_of_two(a)
    if first is None or not isinstance(b, Call) or b.function not in ("mul", "div"):
        return None
    left, right = b.arguments
    if (second := _power_of_two(left)) is not None and _in_range(first * second):
        return make(b.function, first * second, right)
    second = _power_of_two(right) if b.function == "div" else None
    if second is not None and _in_range(first / second):
        return make("mul", first / second, left)
    return None


def _in_range(value: float) -> bool:
    return 1e-30 < abs(value) < 1e30


def _div(a: Expr, b: Expr) -> Expr | None:
    if b is _ONE:
        return _number(a)
    if b is Const(-1):
        return make("neg", a)
    if (inner := _inner(a, "neg")) is not None:
        return make("neg", make("div", inner, b))
    if (inner := _inner(b, "neg")) is not None:
        return make("neg", make("div", a, inner))
    if a is _ONE and (logit := _logit(b)) is not None:
        return make("sigmoid", logit)
    second = _power_of_two(b)
    if second is None or not _in_range(1 / second):
        return None
    return _merge_scales(Const(1 / second), a)


def _logit(divisor: Expr) -> Expr | None:
    """x if this is 1 + exp(-x), whose reciprocal is how sigmoid(x) is defined."""
    if not isinstance(divisor, Call) or divisor.function != "add":
        return None
    a, b = divisor.arguments
    other = b if a is _ONE else a if b is _ONE else None
    inner = None if other is None else _inner(other, "exp")
    return None if inner is None else make("neg", inner)


def _recip(a: Expr) -> Expr | None:
    logit = _logit(a)
    return None if logit is None else make("sigmoid", logit)


def _number(expr: Expr) -> Expr | None:
    """The expression if it is a number; leaving an operation out must not change the kind."""
    return None if is_bool(expr) else expr


def _neg(a: Expr) -> Expr | None:
    if (inner := _inner(a, "neg")) is not None:
        return _number(inner)
    if not isinstance(a, Call):
        return None
    if a.function == "sub":
        return make("sub", a.arguments[1], a.arguments[0])
    first = a.arguments[0]
    if a.function in ("mul", "div") and isinstance(first, Const) and not is_bool(first):
        return make(a.function, -first.value, a.arguments[1])
    return None


def _pow(a: Expr, b: Expr) -> Expr | None:
    if b is _ZERO or b is _SIGNED_ZERO:
        return _ONE
    if b is _ONE:
        return _number(a)
    if b is Const(2):
        return make("square", a)
    if b is Const(3):
        return make("mul", make("square", a), a)
    if b is Const(4):
        return make("square", make("square", a))
    return make("recip", a) if b is Const(-1) else None


def _even(function: str) -> Callable[[Expr], Expr | None]:
    """The rule of a function that does not see its argument's sign."""

    def rule(a: Expr) -> Expr | None:
        for inner in (_inner(a, "neg"), _inner(a, "abs")):
            if inner is not None:
                return make(function, inner)
        return None

    return rule


def _same(a: Expr, b: Expr) -> Expr | None:
    return _number(a) if a is b else None


def _clip(x: Expr, low: Expr, high: Expr) -> Expr | None:
    infinity = float("inf")
    return _number(x) if low is Const(-infinity) and high is Const(infinity) else None


def _select(condition: Expr, a: Expr, b: Expr) -> Expr | None:
    if isinstance(condition, Const) and is_bool(a) == is_bool(b):
        return a if condition.value else b
    if a is b:
        return a
    if (inner := _inner(condition, "not")) is not None:
        return make("select", inner, b, a)
    return None


def _and(a: Expr, b: Expr) -> Expr | None:
    return _logic(a, b, absorbing=_FALSE, neutral=_TRUE)


def _or(a: Expr, b: Expr) -> Expr | None:
    return _logic(a, b, absorbing=_TRUE, neutral=_FALSE)


def _logic(a: Expr, b: Expr, absorbing: Expr, neutral: Expr) -> Expr | None:
    if a is absorbing or b is absorbing:
        return absorbing
    if (a is neutral or a is b) and is_bool(b):
        return b
    return a if b is neutral and is_bool(a) else None


def _not(a: Expr) -> Expr | None:
    inner = _inner(a, "not")
    return inner if inner is not None and is_bool(inner) else None


def _masked_mul(g: Expr, d: Expr) -> Expr | None:
    if _is_zero(g):
        return _ZERO
    if isinstance(g, Const) or (isinstance(d, Const) and math.isfinite(d.value)):
        return make("mul", g, d)
    if (inner := _inner(g, "neg")) is not None:
        return make("neg", make("masked_mul", inner, d))
    return None


_RULES: dict[str, Callable[..., Expr | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "recip": _recip,
    "pow": _pow,
    "abs": _even("abs"),
    "square": _even("square"),
    "cos": _even("cos"),
    "max": _same,
    "min": _same,
    "clip": _clip,
    "select": _select,
    "and": _and,
    "or": _or,
    "not": _not,
    "masked_mul": _masked_mul,
}
