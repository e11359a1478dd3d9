"""`blocks:` and `functions:` as declared: sub-models with arguments, functions by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bpc.errors import Collector, Span, SpecError
from bpc.spec import codes
from bpc.spec.found import describe
from bpc.spec.model import FunctionSpec
from bpc.spec.options import Scope, convert, refuse_key
from bpc.spec.schema import check_kind
from bpc.spec.words import check_name, show
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table, is_null
from bpc.types import Option

_ARGUMENT = Option("args", "int", required=True)
_FORMULA = Option("formula", "formula", required=True)
_LONGEST_FORMULA = 2000


@dataclass(frozen=True, slots=True)
class Block:
    """A sub-model. `arguments` maps each to its default, None where a use must give it.

    `inputs` names what uses pass in with `from:`; a block that declares none has `input`.
    """

    name: str
    arguments: Mapping[str, int | None]
    inputs: tuple[str, ...]
    layers: Items
    span: Span


def read_blocks(node: Node | None, taken: Mapping[str, str], errors: Collector) -> dict[str, Block]:
    """All blocks that are well declared; faults are recorded.

    Args:
        node: the section `blocks`, if there is one.
        taken: names that a block cannot have, each with what it is.
        errors: where faults go.
    """
    if node is None or is_null(node) or not check_kind(node, Table, "blocks", node.span, errors):
        return {}
    assert isinstance(node, Table)
    found: dict[str, Block] = {}
    for entry in node.entries:
        try:
            _check_free(entry, taken, "a block")
            found[entry.key] = _read_block(entry, errors)
        except SpecError as fault:
            errors.found.extend(fault.diagnostics)
    return found


def _check_free(entry: Entry, taken: Mapping[str, str], what: str) -> None:
    check_name(entry.key, entry.key_span, f"the name of {what}")
    if entry.key in taken:
        message = f"{show(entry.key)} cannot be the name of {what}: it is {taken[entry.key]}"
        raise SpecError.at(
            codes.DUPLICATE_NAME, message, entry.key_span, help="choose another name"
        )


def _read_block(entry: Entry, errors: Collector) -> Block:
    node = entry.value
    if isinstance(node, Items):
        return Block(entry.key, {}, (), node, entry.key_span)
    if not isinstance(node, Table):
        message = f"a block is a list of layers, or args and layers, found {describe(node)}"
        help = "such as {args: {dim: 64}, layers: [...]}"
        raise SpecError.at(codes.WRONG_TYPE, message, node.span, help=help)
    for inner in node.entries:
        if inner.key not in ("args", "inputs", "layers"):
            refuse_key(errors, inner, ("args", "inputs", "layers"), f"block {entry.key}")
    layers = node.get("layers")
    if not isinstance(layers, Items):
        message = f"block {entry.key} needs a list of layers"
        raise SpecError.at(codes.MISSING_KEY, message, layers.span if layers else entry.key_span)
    arguments = _read_arguments(node.get("args"), errors)
    inputs = _read_names(node.get("inputs"), "an input")
    return Block(entry.key, arguments, inputs, layers, entry.key_span)


def _read_arguments(node: Node | None, errors: Collector) -> dict[str, int | None]:
    if not isinstance(node, Table):
        return dict.fromkeys(_read_names(node, "an argument"))
    found: dict[str, int | None] = {}
    for entry in node.entries:
        name = check_name(entry.key, entry.key_span, "the name of an argument")
        found[name] = None
        if not is_null(entry.value):
            value = convert(Scope(errors), _ARGUMENT, entry.value, f"the argument {name}")
            assert isinstance(value, int)
            found[name] = value
    return found


def _read_names(node: Node | None, what: str) -> tuple[str, ...]:
    if node is None or is_null(node):
        return ()
    if not isinstance(node, Items):
        message = f"a list of names is needed, found {describe(node)}"
        raise SpecError.at(codes.WRONG_TYPE, message, node.span)
    names: list[str] = []
    for item in node.items:
        value = item.value if isinstance(item, Scalar) else describe(item)
        name = check_name(value, item.span, f"the name of {what}")
        if name in names:
            message = f"the name {show(name)} is given twice"
            raise SpecError.at(codes.DUPLICATE_NAME, message, item.span)
        names.append(name)
    return tuple(names)


def read_functions(
    node: Node | None, taken: Mapping[str, str], errors: Collector
) -> dict[str, FunctionSpec]:
    """All functions that are well declared, formulas still as text; faults are recorded."""
    if node is None or is_null(node) or not check_kind(node, Table, "functions", node.span, errors):
        return {}
    assert isinstance(node, Table)
    found: dict[str, FunctionSpec] = {}
    for entry in node.entries:
        try:
            _check_free(entry, taken, "a function")
            # Stands in where the formula is at fault, so that uses of the name are no faults too.
            found[entry.key] = FunctionSpec(entry.key, "0", ("x",), entry.key_span)
            found[entry.key] = _read_function(entry, errors)
        except SpecError as fault:
            errors.found.extend(fault.diagnostics)
    return found


def _read_function(entry: Entry, errors: Collector) -> FunctionSpec:
    node: Node | None = entry.value
    arguments: tuple[str, ...] = ("x",)
    if isinstance(node, Table):
        for inner in node.entries:
            if inner.key not in ("args", "formula"):
                refuse_key(errors, inner, ("args", "formula"), f"function {entry.key}")
        arguments = _read_names(node.get("args"), "an argument") or arguments
        node = node.get("formula")
    if node is None:
        message = f"function {entry.key} needs a formula"
        raise SpecError.at(codes.MISSING_KEY, message, entry.key_span)
    formula = convert(Scope(errors), _FORMULA, node, f"function {entry.key}")
    assert isinstance(formula, str) and isinstance(node, Scalar)
    if len(formula) > _LONGEST_FORMULA:
        message = f"a formula has at most {_LONGEST_FORMULA:,} characters, found {len(formula):,}"
        raise SpecError.at(codes.LIMIT, message, node.text_span)
    return FunctionSpec(entry.key, formula, arguments, node.text_span)
