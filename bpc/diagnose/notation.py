"""Formulas as text and as LaTeX, and arrays as small tables of numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.expr import FUNCTIONS, Call, Const, Expr, Var, walk
from bpc.expr.table import CHOICE, POWER, PRIMARY, PRODUCT, SUM, UNARY

Array = NDArray[Any]
Text = tuple[str, int]

MOST_SHOWN = 64
"""Elements of the largest array that is written out."""


def bracket(text: Text, level: int) -> str:
    """The text, in brackets where it binds less tightly than `level`."""
    return text[0] if text[1] >= level else f"({text[0]})"


def render_text(expr: Expr, names: Mapping[str, str], scalar: bool) -> str:
    """One line of text. `scalar`: all tensors hold one element, so a (1 - a) is a product."""
    texts: dict[Expr, Text] = {}
    for node in walk(expr):
        texts[node] = _text(node, texts, names, scalar)
    return texts[expr][0]


def _text(node: Expr, texts: Mapping[Expr, Text], names: Mapping[str, str], scalar: bool) -> Text:
    if isinstance(node, Var):
        return names.get(node.name, node.name), PRIMARY
    if isinstance(node, Const):
        text = format_number(float(node.value))
        return text, UNARY if text.startswith("-") else PRIMARY
    assert isinstance(node, Call)
    parts = [texts[item] for item in node.arguments]
    if node.function in ("mul", "masked_mul"):
        return _text_product(node, parts, scalar)
    if node.function == "matmul":
        return f"{bracket(parts[0], PRODUCT)} {bracket(parts[1], UNARY)}", PRODUCT
    if node.function == "transpose":
        return f"{bracket(parts[0], PRIMARY)}^T", POWER
    row = FUNCTIONS.get(node.function)
    if row is None:
        return f"{node.function}({', '.join(text for text, _ in parts)})", PRIMARY
    levels = list(row.formula.operands)
    if node.function == "add":
        levels[1] = SUM
    if node.function == "select":
        levels[2] = CHOICE
    filled = (bracket(text, level) for text, level in zip(parts, levels, strict=True))
    return row.formula.pattern.format(*filled), row.formula.level


def _text_product(node: Call, parts: list[Text], scalar: bool) -> Text:
    """A factor 1 / n is written as a division; a bracket follows its factor without a sign."""
    for factor, other in (node.arguments, node.arguments[::-1]):
        divisor = whole_divisor(factor)
        if divisor is not None:
            at = node.arguments.index(other)
            return f"{bracket(parts[at], PRODUCT)} / {divisor}", PRODUCT
    left, right = bracket(parts[0], PRODUCT), bracket(parts[1], PRODUCT)
    sign = " " if scalar and parts[1][1] < PRODUCT and parts[0][1] == PRIMARY else " * "
    return f"{left}{sign}{right}", PRODUCT


def whole_divisor(expr: Expr) -> int | None:
    """n where the expression is the constant 1 / n, to its last digit."""
    if not isinstance(expr, Const) or isinstance(expr.value, bool):
        return None
    value = float(expr.value)
    if not 0 < value < 1:
        return None
    divisor = round(1 / value)
    return divisor if abs(divisor * value - 1) <= 2.0**-52 else None


def format_number(value: float) -> str:
    """Exact where six places suffice, else six places, or six digits for what is small or large."""
    if not np.isfinite(value):
        return str(value)
    if value == round(value, 5) and abs(value) < 1e6:
        return f"{value:.5f}".rstrip("0").rstrip(".") or "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:.6f}"
    return f"{value:.6g}"


def format_array(array: Array) -> str:
    """A number, or rows between brackets: `[1 2; 3 4]`; further axes nest."""
    if array.size == 1:
        return format_number(float(array.reshape(-1)[0]))
    if array.ndim <= 2:
        lines = array.reshape(-1, array.shape[-1])
        return "[" + "; ".join(" ".join(_cell(x) for x in line) for line in lines) + "]"
    return "[" + ", ".join(format_array(part) for part in array) + "]"


def _cell(value: Any) -> str:
    return format_number(float(value))


# -- LaTeX ----------------------------------------------------------------------------------------

_TEX = {
    "div": r"\frac{{{0}}}{{{1}}}",
    "exp": r"\exp\left({0}\right)",
    "log": r"\log\left({0}\right)",
    "sqrt": r"\sqrt{{{0}}}",
    "sigmoid": r"\sigma\left({0}\right)",
    "tanh": r"\tanh\left({0}\right)",
    "sin": r"\sin\left({0}\right)",
    "cos": r"\cos\left({0}\right)",
    "abs": r"\left|{0}\right|",
    "select": r"\begin{{cases}} {1} & {0} \\ {2} & \text{{otherwise}} \end{{cases}}",
}
_TEX_SIGNS = {"lt": "<", "le": r"\le", "gt": ">", "ge": r"\ge", "eq": "=", "ne": r"\ne"}
_TEX_INFIX = {"add": ("+", SUM, SUM, SUM), "sub": ("-", SUM, SUM, SUM + 1)}
_LOWER = re.compile(r"[a-zA-Z]\d*")


def tex_symbol(symbol: str) -> str:
    """`W1` as W_{1}, `dL/dz` as a fraction of differentials, a longer name upright."""
    head, slash, of = symbol.partition("/d")
    if slash and head == "dL":
        return rf"\frac{{\partial L}}{{\partial {tex_symbol(of)}}}"
    stem, _, index = symbol.partition("_")
    if _LOWER.fullmatch(symbol):
        return symbol[0] if len(symbol) == 1 else f"{symbol[0]}_{{{symbol[1:]}}}"
    if index and len(stem) == 1:
        return rf"{stem}_{{\mathrm{{{tex_escape(index)}}}}}"
    return rf"\mathrm{{{tex_escape(symbol)}}}"


def tex_escape(text: str) -> str:
    """Text with the characters that LaTeX reads as commands made plain."""
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
    return "".join(special.get(character, character) for character in text)


def render_tex(expr: Expr, names: Mapping[str, str], scalar: bool) -> str:
    """The formula for LaTeX's display mode."""
    texts: dict[Expr, Text] = {}
    for node in walk(expr):
        texts[node] = _tex(node, texts, names, scalar)
    return texts[expr][0]


def _tex(node: Expr, texts: Mapping[Expr, Text], names: Mapping[str, str], scalar: bool) -> Text:
    if isinstance(node, Var):
        return tex_symbol(names.get(node.name, node.name)), PRIMARY
    if isinstance(node, Const):
        return tex_number(float(node.value)), UNARY if float(node.value) < 0 else PRIMARY
    assert isinstance(node, Call)
    function, parts = node.function, [texts[item] for item in node.arguments]
    if function in _TEX_INFIX:
        sign, level, first, second = _TEX_INFIX[function]
        return f"{_wrap(parts[0], first)} {sign} {_wrap(parts[1], second)}", level
    if function in ("mul", "masked_mul"):
        return _tex_product(node, parts, scalar)
    if function == "matmul":
        return rf"{_wrap(parts[0], PRODUCT)}\, {_wrap(parts[1], PRODUCT)}", PRODUCT
    if function == "transpose":
        return rf"{_wrap(parts[0], PRIMARY)}^{{\top}}", POWER
    if function == "square":
        return f"{_wrap(parts[0], PRIMARY)}^{{2}}", POWER
    if function == "pow":
        return f"{_wrap(parts[0], PRIMARY)}^{{{parts[1][0]}}}", POWER
    if function == "neg":
        return f"-{_wrap(parts[0], POWER)}", UNARY
    if function in _TEX_SIGNS:
        return f"{parts[0][0]} {_TEX_SIGNS[function]} {parts[1][0]}", CHOICE
    if function in _TEX:
        return _TEX[function].format(*(text for text, _ in parts)), PRIMARY
    return _tex_call(function, [text for text, _ in parts])


def _tex_product(node: Call, parts: list[Text], scalar: bool) -> Text:
    for factor, other in (node.arguments, node.arguments[::-1]):
        divisor = whole_divisor(factor)
        if divisor is not None:
            return rf"\frac{{{parts[node.arguments.index(other)][0]}}}{{{divisor}}}", PRIMARY
    numbers = scalar or any(isinstance(item, Const) for item in node.arguments)
    sign = r"\," if numbers else r" \odot "
    return f"{_wrap(parts[0], PRODUCT)}{sign} {_wrap(parts[1], PRODUCT)}", PRODUCT


def _tex_call(function: str, parts: list[str]) -> Text:
    inside = ", ".join(parts)
    name, _, letters = function.partition("_")
    if name == "sum" and letters:
        return rf"\sum_{{{letters}}} \left({inside}\right)", PRIMARY
    if name == "max" and letters:
        return rf"\max_{{{letters}}} \left({inside}\right)", PRIMARY
    return rf"\operatorname{{{tex_escape(function)}}}\left({inside}\right)", PRIMARY


def _wrap(text: Text, level: int) -> str:
    return text[0] if text[1] >= level else rf"\left({text[0]}\right)"


def tex_number(value: float) -> str:
    """A number; a power of ten is written as one."""
    text = format_number(value)
    digits, e, power = text.partition("e")
    return rf"{digits} \cdot 10^{{{int(power)}}}" if e else text.replace("inf", r"\infty")


def tex_array(array: Array) -> str:
    """A number, or a matrix; more than two axes are laid one below the other."""
    if array.size == 1:
        return tex_number(float(array.reshape(-1)[0]))
    lines = array.reshape(-1, array.shape[-1])
    rows = (" & ".join(tex_number(float(x)) for x in line) for line in lines)
    return r"\begin{pmatrix} " + r" \\ ".join(rows) + r" \end{pmatrix}"
