"""One entry of a model, as written: which kind of layer, its name, its inputs, its options."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from bpc.errors import Note, Span, SpecError
from bpc.spec import codes
from bpc.spec.found import describe
from bpc.spec.options import check_dotted
from bpc.spec.words import check_name, join, show, suggest
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table, is_null, make_table
from bpc.types import PRECISIONS

COMPOSITES = ("repeat", "residual", "layers")
_BESIDE = ("name", "from", "precision")
_MOST_SOURCES = 64


@dataclass(frozen=True, slots=True)
class Source:
    """A value that `from:` names, and where."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """An entry taken apart. `body` is what stands under `kind`; `layers` belongs to `repeat`."""

    kind: str
    kind_span: Span
    body: Node | None
    name: str | None
    name_span: Span
    sources: tuple[Source, ...] | None
    layers: Node | None
    precision: str | None = None


def read_entry(node: Node, kinds: Container[str], keep: Container[tuple[str, str]]) -> LayerEntry:
    """Take an entry apart.

    Args:
        node: `relu`, `{linear: 256}`, `{name: fc, linear: {out: 256}}` or a composite.
        kinds: the layers, blocks and functions that exist, and the composites.
        keep: pairs of kind and option, where `name`, `from` or `precision` is an option of the
            layer's own.

    Raises:
        SpecError: not a layer, an unknown kind or key, or a name that is not usable.
    """
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return LayerEntry(node.text, node.span, None, None, node.span, None, None)
    if not isinstance(node, Table) or not node.entries:
        message = f"an entry of a model is a layer, found {describe(node)}"
        help = "such as relu, or {linear: 256}"
        raise SpecError.at(codes.BAD_ENTRY, message, node.span, help=help)
    main = _find_kind(node, kinds)
    allowed = (main.key, *_BESIDE, "layers") if main.key == "repeat" else (main.key, *_BESIDE)
    _refuse_others(node, allowed, main)
    body, inside = _split_body(main, keep)
    name = _pick(node.find("name"), inside.find("name"))
    sources = _pick(node.find("from"), inside.find("from"))
    precision = _pick(node.find("precision"), inside.find("precision"))
    return LayerEntry(
        main.key,
        main.key_span,
        body,
        _read_name(name) if name else None,
        name.value.span if name else main.key_span,
        read_sources(sources.value) if sources else None,
        node.get("layers") if main.key == "repeat" else None,
        _read_precision(precision.value) if precision else None,
    )


def _find_kind(node: Table, kinds: Container[str]) -> Entry:
    """The entry whose key says what the layer is."""
    others = [entry for entry in node.entries if entry.key not in _BESIDE]
    if not others:
        message = "this entry has no kind of layer"
        raise SpecError.at(codes.BAD_ENTRY, message, node.span, help="such as {linear: 256}")
    found = [entry for entry in others if entry.key in kinds]
    if any(entry.key == "repeat" for entry in found):
        found = [entry for entry in found if entry.key != "layers"]
    if len(found) > 1:
        names = join((entry.key for entry in found[:4]), "and")
        notes = [Note(f"{found[0].key} is here", found[0].key_span)]
        help = "start each layer with '- ', and indent options below the layer's name"
        message = f"one entry is one layer, found {names}"
        raise SpecError.at(codes.BAD_ENTRY, message, found[1].key_span, notes, help)
    return found[0] if found else others[0]


def _refuse_others(node: Table, allowed: Sequence[str], main: Entry) -> None:
    for entry in node.entries:
        if entry.key not in allowed:
            message = f"{show(entry.key)} cannot stand beside {show(main.key)}"
            near = suggest(entry.key, allowed, listed=0)
            help = near or f"options go inside: {{{main.key[:20]}: {{{entry.key[:20]}: ...}}}}"
            raise SpecError.at(codes.UNKNOWN_KEY, message, entry.key_span, help=help)


def _split_body(main: Entry, keep: Container[tuple[str, str]]) -> tuple[Node | None, Table]:
    """What stands under the kind without `name` and `from`, and those two."""
    body = main.value
    if not isinstance(body, Table) or main.key in COMPOSITES:
        return body, make_table((), body.span)
    beside = [e for e in body.entries if e.key in _BESIDE and (main.key, e.key) not in keep]
    if not beside:
        return body, make_table((), body.span)
    rest = [entry for entry in body.entries if entry not in beside]
    return make_table(rest, body.span), make_table(beside, body.span)


def _pick(outer: Entry | None, inner: Entry | None) -> Entry | None:
    if outer is not None and inner is not None:
        message = f"the key {show(inner.key)} is written twice"
        notes = [Note("the other is here", outer.key_span)]
        raise SpecError.at(codes.DUPLICATE_KEY, message, inner.key_span, notes, "keep one of them")
    return outer or inner


def _read_name(entry: Entry) -> str:
    node = entry.value
    text = node.value if isinstance(node, Scalar) else None
    return check_name(text if text is not None else "", node.span, "the name of a layer")


def _read_precision(node: Node) -> str | None:
    """The type that a layer computes in and stores; None where the run's is meant."""
    if is_null(node):
        return None
    text = node.value if isinstance(node, Scalar) else None
    if isinstance(text, str) and text in PRECISIONS:
        return text
    message = f"precision must be {join(PRECISIONS)}, found {describe(node)}"
    help = suggest(text, PRECISIONS, listed=0) if isinstance(text, str) else None
    raise SpecError.at(codes.NOT_A_CHOICE, message, node.span, help=help)


def read_sources(node: Node) -> tuple[Source, ...]:
    """The names after `from:`: one, or a list.

    Raises:
        SpecError: something else than names, or more than 64 of them.
    """
    items = node.items if isinstance(node, Items) else (node,)
    if not 0 < len(items) <= _MOST_SOURCES:
        message = f"from: names 1 to {_MOST_SOURCES} values"
        raise SpecError.at(codes.INPUT_COUNT, message, node.span)
    found: list[Source] = []
    for item in items:
        if not isinstance(item, Scalar):
            message = f"from: names values, found {describe(item)}"
            raise SpecError.at(codes.WRONG_TYPE, message, item.span, help="such as from: [x, fc1]")
        found.append(Source(check_dotted(item, "from:"), item.span))
    return tuple(found)
