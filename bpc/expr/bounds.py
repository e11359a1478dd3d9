"""Which values an expression can take, as far as its form tells, for finite inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from bpc.expr.node import Call, Const, Expr, walk
from bpc.expr.table import is_bool

Range = tuple[float, float]

_ANY: Range = (-math.inf, math.inf)
_LARGEST_EXPONENT = 80.0  # exp of it is finite in float32
_FIXED: dict[str, Range] = {
    "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0), "sign": (-1.0, 1.0), "uniform": (0.0, 1.0), "sqrt": (0.0, math.inf),
    "rsqrt": (0.0, math.inf), "softplus": (0.0, math.inf), "expm1": (-1.0, math.inf),
}  # fmt: skip


def _corners(a: Range, b: Range) -> Range:
    products = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return min(products), max(products)


def _magnitude(a: Range) -> Range:
    low = 0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return low, max(abs(a[0]), abs(a[1]))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


_RULES: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners,
    "masked_mul": _corners,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _magnitude,
    "square": lambda a: _corners(_magnitude(a), _magnitude(a)),
    "exp": lambda a: (_exp(a[0]), _exp(a[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "clip": lambda x, low, high: (
        min(max(x[0], low[0]), high[0]),
        min(max(x[1], low[1]), high[1]),
    ),
    "select": lambda _, a, b: (min(a[0], b[0]), max(a[1], b[1])),
}


def _range_of(node: Expr, ranges: Mapping[Expr, Range]) -> Range:
    if is_bool(node):
        return 0.0, 1.0
    if isinstance(node, Const):
        value = float(node.value)
        return (value, value) if math.isfinite(value) else _ANY
    if not isinstance(node, Call):
        return _ANY
    if node.function in _FIXED:
        return _FIXED[node.function]
    rule = _RULES.get(node.function)
    low, high = rule(*(ranges[item] for item in node.arguments)) if rule else _ANY
    return _ANY if math.isnan(low) or math.isnan(high) else (low, high)


def _is_singular(node: Call, ranges: Mapping[Expr, Range]) -> bool:
    """Whether this call may leave the finite numbers by itself."""
    first = ranges[node.arguments[0]]
    match node.function:
        case "exp" | "expm1":
            return first[1] > _LARGEST_EXPONENT
        case "log" | "rsqrt" | "sqrt":
            return first[0] <= 0
        case "log1p":
            return first[0] <= -1
        case "recip":
            return first[0] <= 0 <= first[1]
        case "div":
            low, high = ranges[node.arguments[1]]
            return low <= 0 <= high
        case "pow":
            exponent = node.arguments[1]
            whole = isinstance(exponent, Const) and float(exponent.value).is_integer()
            positive = isinstance(exponent, Const) and exponent.value >= 0
            return not (positive and (whole or first[0] >= 0))
    return False


def may_be_singular(expr: Expr) -> bool:
    """Whether some part of the expression can be infinite or NaN for finite inputs.

    Overflow of plain sums and products does not count. The answer is careful: an unknown range
    counts as everything.
    """
    ranges: dict[Expr, Range] = {}
    for node in walk(expr):
        ranges[node] = _range_of(node, ranges)
        if isinstance(node, Const) and not math.isfinite(node.value):
            return True
        if isinstance(node, Call) and _is_singular(node, ranges):
            return True
    return False
