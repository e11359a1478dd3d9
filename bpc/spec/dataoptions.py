"""Options that data sources alone have: paths, columns, splits, scales and classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from bpc.errors import BpcError, Span, SpecError
from bpc.spec import codes
from bpc.spec.found import check_finite, describe, number_help, read_array
from bpc.spec.words import check_name, join, show, suggest
from bpc.spec.yamlnodes import Items, Node, Scalar, Table
from bpc.types import Option

_SCALES = ("standard", "minmax", "none")
_LONGEST_PATH = 4096


def places_of(table: Table) -> dict[str, Span]:
    """Where options stand, and the entries of those that are lists or mappings: `inputs.1`."""
    found: dict[str, Span] = {}
    for entry in table.entries:
        found[entry.key] = _span(entry.value)
        if isinstance(entry.value, Items):
            inner = {str(at): item for at, item in enumerate(entry.value.items)}
        elif isinstance(entry.value, Table):
            inner = {e.key: e.value for e in entry.value.entries}
        else:
            continue
        found |= {f"{entry.key}.{key}": _span(node) for key, node in inner.items()}
    return found


def _span(node: Node) -> Span:
    return node.text_span if isinstance(node, Scalar) else node.span


def _wrong(needed: str, node: Node, what: str, help: str | None) -> BpcError:
    message = f"{what} must be {needed}, found {describe(node)}"
    return SpecError.at(codes.WRONG_TYPE, message, node.span, help=help)


def _path(scope: object, option: Option, node: Node, what: str) -> str:
    """The path, relative ones taken from the folder of the file in which they stand.

    What the command line sets is relative to the working folder, as the command line is.
    """
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value:
        raise _wrong("the path of a file", node, what, f"such as {option.name}: numbers.npz")
    if len(node.value) > _LONGEST_PATH or "\0" in node.value:
        raise SpecError.at(codes.OUT_OF_RANGE, f"{what}: no file can have that name", node.span)
    if node.span.file.startswith("--"):
        return node.value
    return os.path.join(os.path.dirname(node.span.file), node.value)


def _paths(scope: object, option: Option, node: Node, what: str) -> object:
    if not isinstance(node, Table):
        return _path(scope, option, node, what)
    _refuse_empty(node, what)
    return {
        _input_name(entry.key, entry.key_span): _path(
            scope, option, entry.value, f"{what}.{entry.key}"
        )
        for entry in node.entries
    }


def _words(scope: object, option: Option, node: Node, what: str) -> object:
    """A column or array, a list of them, or a mapping of inputs to either."""
    if isinstance(node, Table):
        _refuse_empty(node, what)
        return {
            _input_name(e.key, e.key_span): _word_or_list(e.value, f"{what}.{e.key}")
            for e in node.entries
        }
    return _word_or_list(node, what)


def _word_or_list(node: Node, what: str) -> object:
    if not isinstance(node, Items):
        return _word(node, what)
    _refuse_empty(node, what)
    return tuple(_word(item, what) for item in node.items)


def _word(node: Node, what: str) -> str | int:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    if isinstance(node, Scalar) and type(node.value) is int and abs(node.value) < 1 << 31:
        return node.value
    help = "a name, or a number from 0; a name that looks like a number stands in quotes"
    raise _wrong("a name or a number", node, what, help)


def _refuse_empty(node: Items | Table, what: str) -> None:
    if not (node.items if isinstance(node, Items) else node.entries):
        raise SpecError.at(codes.OUT_OF_RANGE, f"{what} is empty", node.span)


def _input_name(text: object, span: Span) -> str:
    name = check_name(text, span, "the name of an input")
    if name == "target":
        message = "no input can be called 'target', which is what is learnt"
        raise SpecError.at(codes.BAD_NAME, message, span)
    return name


def _fill(scope: object, option: Option, node: Node, what: str) -> float | str:
    if isinstance(node, Scalar) and node.text == "mean":
        return "mean"
    if isinstance(node, Scalar) and type(node.value) in (int, float):
        return check_finite(float(node.value), node, what)  # type: ignore[arg-type]
    raise _wrong("mean or a number", node, what, number_help(node))


def _classes(scope: object, option: Option, node: Node, what: str) -> int | tuple[str, ...]:
    if isinstance(node, Scalar) and type(node.value) is int:
        if 2 <= node.value <= 1 << 16:
            return node.value
        message = f"{what} must be from 2 to {1 << 16:,}, found {node.text[:40]}"
        raise SpecError.at(codes.OUT_OF_RANGE, message, node.span)
    if not isinstance(node, Items):
        raise _wrong("a number or a list of names", node, what, "such as 10, or [cat, dog]")
    names = tuple(_class_name(item, what) for item in node.items)
    if len(names) < 2 or len(set(names)) < len(names):
        twice = next((name for name in names if names.count(name) > 1), None)
        why = "needs at least two names" if twice is None else f"has {show(twice)} twice"
        raise SpecError.at(codes.CONFLICT, f"{what} {why}", node.span)
    return names


def _class_name(node: Node, what: str) -> str:
    """The text as it stands: a file has text, and 01 there is not 1."""
    if isinstance(node, Scalar) and node.text:
        return node.text
    raise _wrong("names", node, what, None)


def _split(scope: object, option: Option, node: Node, what: str) -> object:
    if isinstance(node, Scalar) and type(node.value) in (int, float):
        share = float(node.value)  # type: ignore[arg-type]
        if 0 <= share < 1:
            return share
        message = f"{what} must be at least 0 and less than 1, found {node.text[:40]}"
        help = "a share of the rows; {every: n} and {rows: [[first, end]]} count rows"
        raise SpecError.at(codes.OUT_OF_RANGE, message, node.span, help=help)
    forms = "such as 0.2, {every: 5} or {rows: [[0, 1000]]}"
    if not isinstance(node, Table) or len(node.entries) != 1:
        raise _wrong("a share or a rule", node, what, forms)
    entry = node.entries[0]
    if entry.key not in ("every", "rows"):
        message = f"{what} has no rule {show(entry.key)}"
        near = suggest(entry.key, ("every", "rows"))
        raise SpecError.at(codes.UNKNOWN_KEY, message, entry.key_span, help=near or forms)
    read = _every if entry.key == "every" else _ranges
    return {entry.key: read(entry.value, f"{what}.{entry.key}")}


def _every(node: Node, what: str) -> int:
    if not isinstance(node, Scalar) or type(node.value) is not int:
        raise _wrong("an integer", node, what, number_help(node))
    if not 2 <= node.value < 1 << 62:
        message = f"{what} must be at least 2, found {node.text[:40]}"
        raise SpecError.at(codes.OUT_OF_RANGE, message, node.span)
    return node.value


def _ranges(node: Node, what: str) -> tuple[tuple[int, int], ...]:
    help = "[first, one behind the last] each, counted from 0: such as [[0, 1000], [5000, 6000]]"
    items = node.items if isinstance(node, Items) else ()
    if not items:
        raise _wrong("a list of ranges", node, what, help)
    return tuple(_range(item, what, help) for item in items)


def _range(node: Node, what: str, help: str) -> tuple[int, int]:
    ends = node.items if isinstance(node, Items) else ()
    numbers = [end.value for end in ends if isinstance(end, Scalar) and type(end.value) is int]
    if len(ends) != 2 or len(numbers) != 2 or not all(0 <= int(n) < 1 << 62 for n in numbers):
        raise _wrong("a list of ranges", node, what, help)
    return int(numbers[0]), int(numbers[1])


def _normalise(scope: object, option: Option, node: Node, what: str) -> object:
    if not isinstance(node, Table):
        return _scale(node, what)
    _refuse_empty(node, what)
    if any(entry.key in ("mean", "std") for entry in node.entries):
        return _given(node, what)
    return {
        check_name(entry.key, entry.key_span, "the name of an input"): _scale(
            entry.value, f"{what}.{entry.key}"
        )
        for entry in node.entries
    }


def _scale(node: Node, what: str) -> object:
    if isinstance(node, Table):
        _refuse_empty(node, what)
        return _given(node, what)
    if not isinstance(node, Scalar):
        forms = "such as standard, minmax or {mean: 0, std: 255}"
        raise _wrong("a word or mean and std", node, what, forms)
    if node.text in _SCALES:
        return node.text
    message = f"{what} must be {join(_SCALES)}, or mean and std; found {show(node.text)}"
    help = suggest(node.text, _SCALES, listed=0)
    raise SpecError.at(codes.NOT_A_CHOICE, message, node.span, help=help)


def _given(node: Table, what: str) -> dict[str, object]:
    for entry in node.entries:
        if entry.key not in ("mean", "std"):
            message = f"{what} has no key {show(entry.key)}"
            help = suggest(entry.key, ("mean", "std"))
            raise SpecError.at(codes.UNKNOWN_KEY, message, entry.key_span, help=help)
    return {e.key: read_array(e.value, f"{what}.{e.key}") for e in node.entries}


Convert = Callable[[object, Option, Node, str], object]
DATA_KINDS: Mapping[str, Convert] = {
    "path": _path,
    "paths": _paths,
    "words": _words,
    "fill": _fill,
    "classes": _classes,
    "split": _split,
    "normalise": _normalise,
}
DATA_NEEDED = {
    "path": "the path of a file",
    "paths": "a path, or a mapping of names to paths",
    "words": "a name, a number, or a list of them",
    "fill": "mean or a number",
    "classes": "a number or a list of names",
    "split": "a share or a rule",
    "normalise": "a word, or mean and std",
}
