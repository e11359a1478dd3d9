"""Names of values that are computed more than once."""

from __future__ import annotations

REPEAT = "~"
"""Separates a value's name from the number of its repetition: `relu1~2`."""


def original(name: str) -> str:
    """A value's name without the number of its repetition."""
    return name.split(REPEAT, 1)[0]
