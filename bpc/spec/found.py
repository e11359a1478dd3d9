"""What the user wrote: in words of YAML, and as literal arrays of numbers."""

from __future__ import annotations

import math

from bpc.errors import SpecError
from bpc.spec import codes
from bpc.spec.words import show
from bpc.spec.yamlnodes import Items, Node, Scalar, Table


def describe(node: Node) -> str:
    """What the user wrote, in words of YAML."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a mapping"
    if node.value is None:
        return "nothing"
    return f"the text {show(node.text)}" if isinstance(node.value, str) else node.text[:40]


def number_help(node: Node) -> str | None:
    """What to do about text that was meant as a number or a truth value."""
    if not isinstance(node, Scalar):
        return None
    bare = node.text.strip().replace("_", "").replace(",", "")
    if isinstance(node.value, float) and node.value.is_integer() and abs(node.value) < 1e15:
        return f"write {int(node.value)}"
    if isinstance(node.value, str) and bare and all(c in "0123456789.eE+-" for c in bare):
        return f"write {bare}, without quotes" if len(bare) < 40 else None
    return None


def check_finite(value: float, node: Node, what: str) -> float:
    """The value itself; raises SpecError for an inf or a NaN."""
    if math.isfinite(value):
        return value
    message = f"{what} must be a finite number, found {describe(node)}"
    raise SpecError.at(codes.OUT_OF_RANGE, message, node.span)


def read_array(node: Node, what: str) -> object:
    """Nested tuples of numbers, a rectangle.

    Raises:
        SpecError: ragged, empty, or something else than finite numbers in it.
    """
    value, _ = _measure(node, what)
    return value


def _measure(node: Node, what: str) -> tuple[object, tuple[int, ...]]:
    """The nested tuples of a literal array and its shape; raises SpecError unless rectangular."""
    if isinstance(node, Scalar) and type(node.value) in (int, float):
        assert isinstance(node.value, int | float)
        check_finite(float(node.value), node, what)
        return node.value, ()
    if not isinstance(node, Items):
        message = f"{what}: a number is needed here, found {describe(node)}"
        raise SpecError.at(codes.BAD_ARRAY, message, node.span, help=number_help(node))
    if not node.items:
        raise SpecError.at(codes.BAD_ARRAY, f"{what}: a list here is empty", node.span)
    parts = [_measure(item, what) for item in node.items]
    for (_, shape), item in zip(parts, node.items, strict=True):
        if shape != parts[0][1]:
            found, first = _say_shape(shape), _say_shape(parts[0][1])
            message = f"{what}: the rows differ, here is {found}, the first is {first}"
            raise SpecError.at(codes.BAD_ARRAY, message, item.span)
    return tuple(value for value, _ in parts), (len(parts), *parts[0][1])


def _say_shape(shape: tuple[int, ...]) -> str:
    return f"an array {list(shape)}" if shape else "a number"
