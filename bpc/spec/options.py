"""Options as tables declare them: checked and converted, one function for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bpc.errors import BpcError, Collector, Span, SpecError
from bpc.spec import codes
from bpc.spec.found import check_finite, describe, number_help, read_array
from bpc.spec.inits import INITS
from bpc.spec.integers import compute, has_expression
from bpc.spec.model import InitSpec
from bpc.spec.words import check_name, is_name, join, show, suggest
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table, is_null, make_table
from bpc.types import LayerSchema, Option

# Looking for the nearest word takes time; nobody reads that many messages.
_MOST_SUGGESTED = 500
_OLD_BOOLEANS = {
    "yes": "true",
    "on": "true",
    "y": "true",
    "no": "false",
    "off": "false",
    "n": "false",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What converting needs: where errors go, values of block arguments, known initialisers."""

    errors: Collector
    values: Mapping[str, int] = field(default_factory=dict)
    inits: Mapping[str, LayerSchema] = field(default_factory=lambda: INITS)


@dataclass(frozen=True, slots=True)
class Options:
    """Options with defaults filled in, and the places of those that were written."""

    values: Mapping[str, object]
    spans: Mapping[str, Span]


def read_options(
    scope: Scope, schema: LayerSchema, node: Node | None, span: Span, fill: bool = True
) -> Options:
    """Convert what stands under a layer's name; faults are gathered, good options kept.

    Args:
        scope: where faults go and what `${...}` may name.
        schema: the options that exist.
        node: a mapping of options, one value for the shorthand option, or nothing.
        span: the place of the layer's name, for what is missing.
        fill: whether options that were not written get their default.
    """
    table = _as_table(scope, schema, node)
    known = {option.name: option for option in schema.options}
    values: dict[str, object] = {}
    spans: dict[str, Span] = {}
    for entry in table.entries:
        option = known.get(entry.key)
        if option is None:
            refuse_key(scope.errors, entry, known, schema.name)
            continue
        spans[entry.key] = _value_span(option, entry)
        try:
            values[entry.key] = convert(scope, option, entry.value, f"{schema.name}: {entry.key}")
        except SpecError as fault:
            scope.errors.found.extend(fault.diagnostics)
    if fill:
        _fill(scope, schema, values, spans, span)
    return Options(values, spans)


def refuse_key(errors: Collector, entry: Entry, known: Iterable[str], where: str) -> None:
    """Record that a key does not exist, with the nearest one that does."""
    names = tuple(known)
    message = f"{where} has no option {show(entry.key)}"
    help = None
    if len(errors.found) < _MOST_SUGGESTED:
        help = suggest(entry.key, names) or ("it takes no options" if not names else None)
    errors.add(codes.UNKNOWN_KEY, message, entry.key_span, help=help)


def _as_table(scope: Scope, schema: LayerSchema, node: Node | None) -> Table:
    if node is None or is_null(node):
        return make_table((), node.span if node else Span("", 1, 1))
    if isinstance(node, Table):
        return node
    if schema.shorthand is not None:
        return make_table((Entry(schema.shorthand, node.span, node),), node.span)
    names = [option.name for option in schema.options]
    example = f"write {{{schema.name}: {{{names[0]}: ...}}}}" if names else "leave the value out"
    message = f"{schema.name} takes no single value"
    scope.errors.add(codes.WRONG_TYPE, message, node.span, help=example)
    return make_table((), node.span)


def _value_span(option: Option, entry: Entry) -> Span:
    node = entry.value
    if isinstance(node, Scalar):
        return entry.key_span if is_null(node) else node.text_span
    return node.span


def _fill(
    scope: Scope,
    schema: LayerSchema,
    values: dict[str, object],
    written: Mapping[str, Span],
    span: Span,
) -> None:
    for option in schema.options:
        if option.name in written:
            continue
        if option.required:
            message = f"{schema.name} needs {option.name!r}"
            scope.errors.add(codes.MISSING_KEY, message, span, help=_example(schema, option))
        else:
            values[option.name] = _default(scope, option, span)


def _example(schema: LayerSchema, option: Option) -> str:
    examples = {"int": "10", "float": "0.1", "shape": "[8, 8]", "ints": "3", "bool": "true"}
    value = option.choices[0] if option.choices else examples.get(option.kind, "...")
    about = f" ({option.help})" if option.help else ""
    return f"write {schema.name}: {{{option.name}: {value}}}{about}"


def _default(scope: Scope, option: Option, span: Span) -> object:
    value = option.default
    if option.kind == "init" and isinstance(value, str):
        found = read_options(scope, scope.inits[value], None, span)
        return InitSpec(value, found.values, span)
    return tuple(value) if isinstance(value, list) else value


def convert(scope: Scope, option: Option, node: Node, what: str) -> object:
    """The node as a value of the option's kind and within its bounds.

    Raises:
        SpecError: it is not; `what` names the option in the message.
    """
    if is_null(node):
        if option.default is None and not option.required:
            return None
        raise _wrong(what, option, node)
    value = _KINDS[option.kind](scope, option, node, what)
    _check_bounds(option, value, node, what)
    return value


def _check_bounds(option: Option, value: object, node: Node, what: str) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    nodes = node.items if isinstance(node, Items) else (node,)
    for number, place in zip(numbers, nodes, strict=False):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        low, high = option.minimum, option.maximum
        if low is not None and number < low:
            message = f"{what} must be at least {low:g}, found {number:g}"
            raise SpecError.at(codes.OUT_OF_RANGE, message, place.span)
        if high is not None and number > high:
            message = f"{what} must be at most {high:g}, found {number:g}"
            raise SpecError.at(codes.OUT_OF_RANGE, message, place.span)
        if option.below is not None and number >= option.below:
            message = f"{what} must be less than {option.below:g}, found {number:g}"
            raise SpecError.at(codes.OUT_OF_RANGE, message, place.span)


_NEEDED = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "text": "text",
    "choice": "a word",
    "ints": "an integer or a list of integers",
    "shape": "a list of extents, without the batch",
    "shapes": "a mapping of names to lists of extents",
    "numbers": "numbers in nested lists",
    "init": "an initialiser",
    "formula": "a formula",
    "name": "a name",
}


def _wrong(what: str, option: Option, node: Node, help: str | None = None) -> BpcError:
    message = f"{what} must be {_NEEDED[option.kind]}, found {describe(node)}"
    return SpecError.at(codes.WRONG_TYPE, message, node.span, help=help)


def _integer(scope: Scope, option: Option, node: Node, what: str) -> int:
    if isinstance(node, Scalar):
        if isinstance(node.value, str) and has_expression(node.text):
            return compute(node.text, scope.values, node.text_span)
        if type(node.value) is int:
            if abs(node.value) >= 2**63:
                message = f"{what} must be smaller than 2^63"
                raise SpecError.at(codes.OUT_OF_RANGE, message, node.span)
            return node.value
    raise _wrong(what, option, node, number_help(node))


def _number(scope: Scope, option: Option, node: Node, what: str) -> float:
    if isinstance(node, Scalar):
        if isinstance(node.value, str) and has_expression(node.text):
            return float(compute(node.text, scope.values, node.text_span))
        if type(node.value) in (int, float):
            assert isinstance(node.value, int | float)
            return check_finite(float(node.value), node, what)
    raise _wrong(what, option, node, number_help(node))


def _boolean(scope: Scope, option: Option, node: Node, what: str) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    meant = _OLD_BOOLEANS.get(node.text.lower()) if isinstance(node, Scalar) else None
    help = f"in YAML 1.2 {show(node.text)} is text; write {meant}" if meant else None  # type: ignore[union-attr]
    raise _wrong(what, option, node, help)


def _text(scope: Scope, option: Option, node: Node, what: str) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    quoted = isinstance(node, Scalar) and len(node.text) < 40
    help = f'write "{node.text}" for text' if quoted else None  # type: ignore[union-attr]
    raise _wrong(what, option, node, help)


def _choice(scope: Scope, option: Option, node: Node, what: str) -> str:
    if not isinstance(node, Scalar):
        raise _wrong(what, option, node, f"write {join(option.choices)}")
    if node.text in option.choices:
        return node.text
    message = f"{what} must be {join(option.choices)}, found {show(node.text)}"
    help = suggest(node.text, option.choices, listed=0)
    raise SpecError.at(codes.NOT_A_CHOICE, message, node.span, help=help)


def _integers(scope: Scope, option: Option, node: Node, what: str) -> int | tuple[int, ...]:
    if isinstance(node, Items):
        return tuple(_integer(scope, option, item, what) for item in node.items)
    return _integer(scope, option, node, what)


def _shape(scope: Scope, option: Option, node: Node, what: str) -> tuple[int, ...]:
    if not isinstance(node, Items):
        raise _wrong(what, option, node, "such as [784] or [1, 28, 28]")
    extents = tuple(_integer(scope, option, item, what) for item in node.items)
    for extent, item in zip(extents, node.items, strict=True):
        if extent < 1 and not (extent == -1 and option.minimum == -1):
            message = f"{what}: an extent must be at least 1, found {extent}"
            raise SpecError.at(codes.OUT_OF_RANGE, message, item.span)
    if math.prod(extents) >= 2**63:
        message = f"{what}: the product of the extents is 2^63 or more"
        raise SpecError.at(codes.OUT_OF_RANGE, message, node.span)
    return extents


def _shapes(scope: Scope, option: Option, node: Node, what: str) -> dict[str, tuple[int, ...]]:
    if not isinstance(node, Table) or not node.entries:
        raise _wrong(what, option, node, "such as {x: [784]}")
    return {
        check_name(entry.key, entry.key_span, "the name of an input"): _shape(
            scope, option, entry.value, f"{what}.{entry.key}"
        )
        for entry in node.entries
    }


def _numbers(scope: Scope, option: Option, node: Node, what: str) -> object:
    if isinstance(node, Table) and node.entries:
        return {
            check_name(entry.key, entry.key_span, "the name of an input"): read_array(
                entry.value, what
            )
            for entry in node.entries
        }
    if isinstance(node, Items):
        return read_array(node, what)
    raise _wrong(what, option, node, "such as [[0.5, 1.0], [2.0, 0.1]]")


def _init(scope: Scope, option: Option, node: Node, what: str) -> InitSpec:
    if isinstance(node, Items):
        return InitSpec("values", {"values": read_array(node, what)}, node.span)
    if isinstance(node, Scalar) and type(node.value) in (int, float):
        value = _number(scope, option, node, what)
        return InitSpec("constant", {"value": value}, node.span)
    kind, kind_span, body = _read_init_kind(node, what, option)
    schema = scope.inits.get(kind)
    if schema is None:
        message = f"{what}: there is no initialiser {show(kind)}"
        help = suggest(kind, scope.inits)
        raise SpecError.at(codes.NOT_A_CHOICE, message, kind_span, help=help)
    found = read_options(scope, schema, body, kind_span)
    return InitSpec(kind, found.values, kind_span)


def _read_init_kind(node: Node, what: str, option: Option) -> tuple[str, Span, Node | None]:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value, node.span, None
    if isinstance(node, Table) and len(node.entries) == 1:
        entry = node.entries[0]
        return entry.key, entry.key_span, entry.value
    help = "such as he, {normal: {std: 0.02}}, {constant: 0.1} or [[0.5, 0.1]]"
    raise _wrong(what, option, node, help)


def _formula(scope: Scope, option: Option, node: Node, what: str) -> str:
    if isinstance(node, Scalar) and node.value is not None:
        return node.text
    raise _wrong(what, option, node, 'such as "x * sigmoid(x)"')


def _name(scope: Scope, option: Option, node: Node, what: str) -> str:
    if not isinstance(node, Scalar):
        raise _wrong(what, option, node, "such as w2, or fc1.weight")
    return check_dotted(node, what)


def check_dotted(node: Scalar, what: str) -> str:
    """The text if it is a name, or names and numbers joined by dots, of at most 16 parts.

    Raises:
        SpecError: it is not.
    """
    first, *rest = node.text.split(".")
    if len(rest) < 16 and is_name(first) and all(is_name(part) or _is_index(part) for part in rest):
        return node.text
    message = f"{what} must be a name, found {show(node.text)}"
    raise SpecError.at(codes.BAD_NAME, message, node.span, help="such as fc1, or blocks.3.fc1")


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 8


_Convert = Callable[[Scope, Option, Node, str], object]
_KINDS: dict[str, _Convert] = {
    "int": _integer,
    "float": _number,
    "bool": _boolean,
    "text": _text,
    "choice": _choice,
    "ints": _integers,
    "shape": _shape,
    "shapes": _shapes,
    "numbers": _numbers,
    "init": _init,
    "formula": _formula,
    "name": _name,
}
