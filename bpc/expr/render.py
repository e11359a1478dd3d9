"""Expressions as text: for a C++ or CUDA compiler, and for people."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bpc.expr.node import Call, Const, Expr, Number, Var, walk
from bpc.expr.table import CHOICE, FUNCTIONS, PRIMARY, PRODUCT, UNARY, Notation, is_bool

Text = tuple[str, int]  # and how tightly it binds

_TIGHT = re.compile(r"[\w.]+(\[[^\[\]]*\]|\([\w.]+\))?")
_WHOLE = ("add", "sub", "select")


def _bracket(text: Text, level: int) -> str:
    return text[0] if text[1] >= level else f"({text[0]})"


def _name(name: str, names: Mapping[str, str] | None) -> Text:
    text = (names or {}).get(name, name)
    return text, PRIMARY if _TIGHT.fullmatch(text) else CHOICE - 1


@dataclass(frozen=True, slots=True)
class Names:
    """What variables are in C++.

    `numbers` are of the type that is computed in, `plain` of any type that is as good for a
    condition. `whole` variables are integers in plain text.
    """

    numbers: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, str] = field(default_factory=dict)
    whole: Collection[str] = frozenset()


def render_c(expr: Expr, dtype: str, names: Names = Names()) -> str:
    """C++ and CUDA text that computes in `dtype` ("f32" or "f64") with `bpc_` functions.

    A truth value at the top is rendered as a condition; used as a number it becomes
    `(c ? 1.0f : 0.0f)`. Integers are compared as integers.
    """
    assert dtype in ("f32", "f64"), dtype
    return _c_text(expr, dtype, names)[0]


def render_whole(expr: Expr, dtype: str, names: Names) -> str:
    """An expression of which `is_whole` is true, in integers; its conditions as `render_c` does."""
    return _whole_text(expr, dtype, names)[0]


def is_whole(expr: Expr, whole: Collection[str]) -> bool:
    """Whether sums and choices of whole constants and of these variables are all that it is."""
    if isinstance(expr, Const):
        return not isinstance(expr.value, bool) and float(expr.value).is_integer()
    if isinstance(expr, Var):
        return expr.name in whole
    assert isinstance(expr, Call)
    return expr.function in _WHOLE and all(is_whole(item, whole) for item in _numbers_of(expr))


def _whole_text(expr: Expr, dtype: str, names: Names) -> Text:
    if isinstance(expr, Const):
        return str(int(expr.value)), UNARY if expr.value < 0 else PRIMARY
    if isinstance(expr, Var):
        return _name(expr.name, names.plain)
    assert isinstance(expr, Call)
    operands = [_whole_text(item, dtype, names) for item in _numbers_of(expr)]
    if expr.function == "select":
        condition = expr.arguments[0]
        named = isinstance(condition, Var)
        operands.insert(0, (_whole_text if named else _c_text)(condition, dtype, names))
    return _fill(FUNCTIONS[expr.function].c, operands)


def _numbers_of(expr: Call) -> Sequence[Expr]:
    """The arguments of a sum, or what a choice is between."""
    return expr.arguments[1:] if expr.function == "select" else expr.arguments


def _c_text(expr: Expr, dtype: str, names: Names) -> Text:
    texts: dict[Expr, Text] = {}
    for node in walk(expr):
        texts[node] = _c_node(node, texts, dtype, names)
    return texts[expr]


def _c_node(node: Expr, texts: Mapping[Expr, Text], dtype: str, names: Names) -> Text:
    if isinstance(node, Const):
        return _c_literal(node.value, dtype)
    if isinstance(node, Var):
        return _name(node.name, names.numbers)
    assert isinstance(node, Call)
    if node.function == "uniform":
        keys = ", ".join(_c_index(item, names.numbers)[0] for item in node.arguments)
        return f"bpc_uniform({keys})", PRIMARY
    row = FUNCTIONS[node.function]
    notation = row.c
    if node.function == "square" and isinstance(node.arguments[0], Var):
        notation = Notation("{0} * {0}", PRODUCT, (UNARY,))
    stays = row.conditions if not is_bool(node) else range(row.arity)
    compares = row.result == "bool" and not row.conditions
    if compares and all(is_whole(item, names.whole) for item in node.arguments):
        return _fill(notation, [_whole_text(item, dtype, names) for item in node.arguments])
    operands = [
        _name(item.name, names.plain or names.numbers)
        if isinstance(item, Var) and i in row.conditions
        else _c_operand(item, texts, dtype, as_number=compares or i not in stays)
        for i, item in enumerate(node.arguments)
    ]
    return _fill(notation, operands, one=_c_literal(1.0, dtype)[0])


def _c_operand(item: Expr, texts: Mapping[Expr, Text], dtype: str, as_number: bool) -> Text:
    if not as_number or not is_bool(item):
        return texts[item]
    if isinstance(item, Const):
        return _c_literal(float(item.value), dtype)
    one, zero = _c_literal(1.0, dtype)[0], _c_literal(0.0, dtype)[0]
    return f"({texts[item][0]} ? {one} : {zero})", PRIMARY


def _fill(notation: Notation, operands: list[Text], **words: str) -> Text:
    parts = [_bracket(text, level) for text, level in zip(operands, notation.operands, strict=True)]
    return notation.pattern.format(*parts, **words), notation.level


def _c_literal(value: Number, dtype: str) -> Text:
    """A literal that reads back as the same number of that type."""
    if isinstance(value, bool):
        return ("true" if value else "false"), PRIMARY
    with np.errstate(over="ignore"):
        number = float(np.float32(value)) if dtype == "f32" else float(value)
    prefix = "" if dtype == "f32" else "(double)"
    if math.isnan(number):
        return f"{prefix}NAN", UNARY if prefix else PRIMARY
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}{prefix}INFINITY", UNARY
    text = str(np.float32(number)) + "f" if dtype == "f32" else repr(number)
    return text, UNARY if text.startswith("-") else PRIMARY


def _c_index(expr: Expr, names: Mapping[str, str] | None) -> Text:
    """Index arithmetic, in integers."""
    if isinstance(expr, Const):
        return f"{int(expr.value)}{'ull' if expr.value >= 2**31 else ''}", PRIMARY
    if isinstance(expr, Var):
        return _name(expr.name, names)
    assert isinstance(expr, Call)
    return _fill(FUNCTIONS[expr.function].c, [_c_index(item, names) for item in expr.arguments])


def render_formula(expr: Expr, names: Mapping[str, str] | None = None) -> str:
    """The expression as a person writes it; `parse_formula` reads it back."""
    texts: dict[Expr, Text] = {}
    for node in walk(expr):
        if isinstance(node, Const):
            texts[node] = _formula_literal(node.value)
        elif isinstance(node, Var):
            texts[node] = _name(node.name, names)
        else:
            assert isinstance(node, Call)
            operands = [texts[item] for item in node.arguments]
            texts[node] = _fill(FUNCTIONS[node.function].formula, operands)
    return texts[expr][0]


def _formula_literal(value: Number) -> Text:
    text = repr(value).removesuffix(".0")
    return text, UNARY if text.startswith("-") else PRIMARY
