"""The functions that expressions are made of: one row each, and constructors for Python code.

A row says everything about a function: derivative, value, how C++ and people write it, cost.
Comparisons with NaN are false (`ne` is true); `max`, `min`, `clip`, `sign` pass NaN on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bpc.expr import numeric
from bpc.expr.node import Call, Const, Expr, Number, Var, as_expr
from bpc.philox import philox_uniform

# How tightly a form binds; C++ and formulas share the scale.
CHOICE, OR, AND, NOT, EQUAL, COMPARE, SUM, PRODUCT, UNARY, POWER, PRIMARY = range(1, 12)


@dataclass(frozen=True, slots=True)
class Notation:
    """How a call is written: a pattern, how tightly it binds, and what its operands must bind."""

    pattern: str
    level: int
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A row of the table.

    `derivatives` has one expression for each argument, in the variables a, b, c that stand for
    the arguments; an empty tuple is all zeros. `conditions` are the arguments that are truth
    values. `flops` counts one for an add or multiply and about ten for a transcendental.
    """

    name: str
    arity: int
    derivatives: tuple[Expr, ...]
    evaluate: Callable[..., Any]
    c: Notation
    formula: Notation
    flops: int
    result: str = "number"
    conditions: tuple[int, ...] = ()


def call(function: str, *arguments: Expr | Number) -> Expr:
    """Apply a row of the table."""
    assert len(arguments) == FUNCTIONS[function].arity, f"{function} of {len(arguments)} arguments"
    return Call(function, [as_expr(item) for item in arguments])


def _constructor(function: str, *arguments: Expr | Number) -> Expr:
    return Call(function, [as_expr(item) for item in arguments])


add, sub, mul, div = (partial(_constructor, name) for name in ("add", "sub", "mul", "div"))
neg, absolute, sign = (partial(_constructor, name) for name in ("neg", "abs", "sign"))
exp, log, log1p = (partial(_constructor, name) for name in ("exp", "log", "log1p"))
expm1, sqrt, rsqrt = (partial(_constructor, name) for name in ("expm1", "sqrt", "rsqrt"))
square, power, recip = (partial(_constructor, name) for name in ("square", "pow", "recip"))
sin, cos, tanh, erf = (partial(_constructor, name) for name in ("sin", "cos", "tanh", "erf"))
sigmoid, softplus = (partial(_constructor, name) for name in ("sigmoid", "softplus"))
floor, clip, fma = (partial(_constructor, name) for name in ("floor", "clip", "fma"))
minimum, maximum = (partial(_constructor, name) for name in ("min", "max"))
lt, le, gt, ge = (partial(_constructor, name) for name in ("lt", "le", "gt", "ge"))
eq, ne = (partial(_constructor, name) for name in ("eq", "ne"))
and_, or_, not_ = (partial(_constructor, name) for name in ("and", "or", "not"))
select, isfinite = (partial(_constructor, name) for name in ("select", "isfinite"))
masked_mul, uniform = (partial(_constructor, name) for name in ("masked_mul", "uniform"))

ARGUMENTS = (Var("a"), Var("b"), Var("c"))
_A, _B, _C = ARGUMENTS
_ONE, _ZERO = Const(1), Const(0)


def _apply(name: str, arity: int) -> Notation:
    holes = ", ".join(f"{{{i}}}" for i in range(arity))
    return Notation(f"{name}({holes})", PRIMARY, (CHOICE,) * arity)


def _row(
    name: str,
    derivatives: tuple[Expr, ...],
    evaluate: Callable[..., Any],
    flops: int,
    *,
    arity: int | None = None,
    c: Notation | None = None,
    formula: Notation | None = None,
    result: str = "number",
    conditions: tuple[int, ...] = (),
) -> Function:
    arity = len(derivatives) if arity is None else arity
    c = c or _apply(f"bpc_{name}", arity)
    formula = formula or _apply(name, arity)
    return Function(name, arity, derivatives, evaluate, c, formula, flops, result, conditions)


def _infix(name: str, sign: str, level: int, da: Expr, db: Expr, evaluate: Any) -> Function:
    notation = Notation(f"{{0}} {sign} {{1}}", level, (level, level + 1))
    return _row(name, (da, db), evaluate, 1, c=notation, formula=notation)


def _comparison(name: str, sign: str, evaluate: Any) -> Function:
    level = EQUAL if name in ("eq", "ne") else COMPARE
    c = Notation(f"{{0}} {sign} {{1}}", level, (SUM, SUM))
    formula = Notation(f"{{0}} {sign} {{1}}", COMPARE, (SUM, SUM))
    return _row(name, (), evaluate, 1, arity=2, c=c, formula=formula, result="bool")


def _logic(name: str, sign: str, level: int, evaluate: Any) -> Function:
    # C++ operands are bracketed more than needed: compilers warn about && beside ||.
    c = Notation(f"{{0}} {sign} {{1}}", level, (NOT, NOT))
    formula = Notation(f"{{0}} {name} {{1}}", level, (level, level + 1))
    conditions = (0, 1)
    return _row(
        name, (), evaluate, 1, arity=2, c=c, formula=formula, result="bool", conditions=conditions
    )


def _larger_share(first: Expr, second: Expr) -> Expr:
    """The derivative of max by `first`: 1, 0, or a half where both are equal."""
    return select(gt(first, second), 1, select(eq(first, second), 0.5, 0))


_ROWS = (
    _infix("add", "+", SUM, _ONE, _ONE, np.add),
    _infix("sub", "-", SUM, _ONE, Const(-1), np.subtract),
    _infix("mul", "*", PRODUCT, _B, _A, np.multiply),
    _infix("div", "/", PRODUCT, 1 / _B, -(_A / _B) / _B, np.divide),
    _row(
        "neg", (Const(-1),), np.negative, 1,
        c=Notation("-{0}", UNARY, (PRIMARY,)), formula=Notation("-{0}", UNARY, (POWER,)),
    ),
    _row(
        # Where the exponent is 0 the result is 1 for every base; where the base is 0 it does not
        # change with the exponent.
        "pow",
        (
            select(eq(_B, 0), 0, _B * power(_A, _B - 1)),
            select(eq(_A, 0), 0, power(_A, _B) * log(_A)),
        ),
        np.power, 25,
        formula=Notation("{0}^{1}", POWER, (PRIMARY, UNARY)),
    ),
    _row("abs", (sign(_A),), np.abs, 1),
    _row("sign", (_ZERO,), np.sign, 1),
    _row("exp", (exp(_A),), np.exp, 10),
    _row("log", (1 / _A,), np.log, 10),
    _row("log1p", (1 / (1 + _A),), np.log1p, 12),
    _row("expm1", (exp(_A),), np.expm1, 12),
    _row("sqrt", (0.5 / sqrt(_A),), np.sqrt, 4),
    _row("rsqrt", (-0.5 * (rsqrt(_A) / _A),), lambda x: 1 / np.sqrt(x), 5),
    _row("square", (2 * _A,), np.square, 1, formula=Notation("{0}^2", POWER, (PRIMARY,))),
    _row("sin", (cos(_A),), np.sin, 12),
    _row("cos", (-sin(_A),), np.cos, 12),
    _row("tanh", (1 - square(tanh(_A)),), np.tanh, 12),
    _row("erf", (2 / math.sqrt(math.pi) * exp(-square(_A)),), numeric.erf, 20),
    _row("sigmoid", (sigmoid(_A) * (1 - sigmoid(_A)),), numeric.sigmoid, 12),
    _row("softplus", (sigmoid(_A),), numeric.softplus, 24),
    _row("floor", (_ZERO,), np.floor, 1),
    _row("min", (_larger_share(_B, _A), _larger_share(_A, _B)), np.minimum, 1),
    _row("max", (_larger_share(_A, _B), _larger_share(_B, _A)), np.maximum, 1),
    _row(
        # The gradient passes at the bounds themselves, as in PyTorch.
        "clip",
        (
            select(and_(ge(_A, _B), le(_A, _C)), 1, 0),
            select(and_(lt(_A, _B), le(_B, _C)), 1, 0),
            select(or_(gt(_A, _C), gt(_B, _C)), 1, 0),
        ),
        numeric.clip, 2,
    ),
    _row(
        "select", (_ZERO, select(_A, 1, 0), select(_A, 0, 1)), numeric.select, 1,
        c=Notation("({0} ? {1} : {2})", PRIMARY, (OR, CHOICE, CHOICE)),
        formula=Notation("{1} if {0} else {2}", CHOICE, (OR, OR, CHOICE)),
        conditions=(0,),
    ),
    _comparison("lt", "<", np.less),
    _comparison("le", "<=", np.less_equal),
    _comparison("gt", ">", np.greater),
    _comparison("ge", ">=", np.greater_equal),
    _comparison("eq", "==", np.equal),
    _comparison("ne", "!=", np.not_equal),
    _logic("and", "&&", AND, np.logical_and),
    _logic("or", "||", OR, np.logical_or),
    _row(
        "not", (), np.logical_not, 1, arity=1, result="bool", conditions=(0,),
        c=Notation("!{0}", UNARY, (PRIMARY,)), formula=Notation("not {0}", NOT, (NOT,)),
    ),
    _row("isfinite", (), np.isfinite, 1, arity=1, result="bool"),
    _row("masked_mul", (_B, _A), numeric.masked_mul, 2),
    _row("fma", (_B, _A, _ONE), numeric.fma, 2),
    _row(
        "recip", (-square(recip(_A)),), lambda x: 1 / x, 1,
        c=Notation("{one} / {0}", PRODUCT, (UNARY,)),
    ),
    _row("uniform", (), philox_uniform, 40, arity=4),
)  # fmt: skip
FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}


def is_bool(expr: Expr) -> bool:
    """Whether the expression is a truth value; a variable counts as a number."""
    if isinstance(expr, Const):
        return isinstance(expr.value, bool)
    if not isinstance(expr, Call):
        return False
    if expr.function == "select":
        return is_bool(expr.arguments[1]) and is_bool(expr.arguments[2])
    return FUNCTIONS[expr.function].result == "bool"
