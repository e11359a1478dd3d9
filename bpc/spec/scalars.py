"""What a plain YAML scalar means under the core rules of YAML 1.2."""

from __future__ import annotations

import re

Plain = None | bool | int | float | str

_WORDS: dict[str, Plain] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_MOST_DIGITS = 40


class NumberFault(ValueError):
    """A number that is too long or too large to be meant."""


def resolve(text: str) -> Plain:
    """The value of an unquoted scalar.

    Numbers are decimal unless they start with 0o or 0x, so `010` is ten; `1e-4` is a float;
    `no`, `on`, `1_000`, `1:30` and dates are text.

    Raises:
        NumberFault: more than 40 digits, or too large for a float64.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return _read_integer(text)
    if _FLOAT.fullmatch(text):
        return _read_float(text)
    return text


def _read_integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise NumberFault(f"a number of {len(text)} digits is too long")
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base)


def _read_float(text: str) -> float:
    if len(text) > _MOST_DIGITS:
        raise NumberFault(f"a number of {len(text)} digits is too long")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NumberFault("the number is larger than a float64 can hold")
    return value
