"""YAML text -> a tree whose every node knows its place.

The rules are those of YAML 1.2's core schema (`scalars.py`). Beyond them: tags, several documents
and repeated keys are refused, and a key that a merge (`<<`) brings counts as a key of the mapping,
so that nothing is overridden in silence. Aliases share nodes, but each use counts in full towards
the node and depth limits, which stops alias bombs before anything walks the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from bpc.errors import BpcError, Collector, Note, Span, SpecError
from bpc.spec import codes
from bpc.spec.scalars import NumberFault, Plain, resolve
from bpc.spec.source import check_characters, split_lines
from bpc.spec.words import show
from bpc.spec.yamlfaults import explain

MOST_DEPTH = 64
MOST_NODES = 100_000
MOST_KEYS = 1000
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value. `text_span` is the first character inside quotes or a block."""

    text: str
    value: Plain
    span: Span
    text_span: Span
    size: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class Items:
    """A list. `size` counts nodes with aliases in full, `height` the levels below and itself."""

    items: tuple[Node, ...]
    span: Span
    size: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping and its value."""

    key: str
    key_span: Span
    value: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping, in the order of the file, without repeated keys."""

    entries: tuple[Entry, ...]
    span: Span
    size: int = 1
    height: int = 1

    def find(self, key: str) -> Entry | None:
        """The entry of that key."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def get(self, key: str) -> Node | None:
        """The value of that key."""
        entry = self.find(key)
        return entry.value if entry else None

    def keys(self) -> tuple[str, ...]:
        """All keys, in order."""
        return tuple(entry.key for entry in self.entries)


Node = Scalar | Items | Table


def is_null(node: Node | None) -> bool:
    """Whether nothing stands there: no node, or an empty or null scalar."""
    return node is None or (isinstance(node, Scalar) and node.value is None)


def read_yaml(text: str, file: str, errors: Collector, null: bool = False) -> Node:
    """The tree of the only document in `text`; `null`: that document may be null.

    What leaves a usable tree (repeated keys, tags, numbers that are too large) is recorded in
    `errors`, so that the rest of the file is checked too.

    Raises:
        SpecError: it does not parse or breaks a limit; carries what was recorded as well.
    """
    check_characters(text, file)
    composer = _Composer(_Loader(text), file, split_lines(text), null)
    tree: Node | None = None
    try:
        tree = composer.compose_document()
    except yaml.MarkedYAMLError as fault:
        composer.errors.found.append(explain(fault, file, composer.lines))
    except SpecError as fault:
        composer.errors.found.extend(fault.diagnostics)
    finally:
        composer.loader.dispose()
    if tree is None:
        composer.errors.raise_if_any()
    assert tree is not None
    errors.found.extend(composer.errors.found)
    return tree


@dataclass(slots=True)
class _Composer:
    """Builds the tree from parser events; recursion is bounded by the depth limit."""

    loader: Any
    file: str
    lines: list[str]
    null: bool = False
    errors: Collector = field(default_factory=Collector)
    anchors: dict[str, tuple[Node | None, Span]] = field(default_factory=dict)
    count: int = 0

    def compose_document(self) -> Node:
        self.loader.get_event()  # start of the stream
        event = self.loader.get_event()
        if isinstance(event, yaml.StreamEndEvent):
            raise self._empty()
        tree = self._compose(self.loader.get_event(), 1)
        self.loader.get_event()  # end of the document
        event = self.loader.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            message = "a second document starts here; a spec is one document"
            raise SpecError.at(codes.SYNTAX, message, self._span(event), help="remove the '---'")
        if is_null(tree) and not self.null:
            raise self._empty()
        return tree

    def _compose(self, event: Any, depth: int) -> Node:
        span = self._span(event)
        if isinstance(event, yaml.AliasEvent):
            assert event.anchor is not None
            return self._follow(event.anchor, span, depth)
        self._count(1, depth, span)
        if event.tag is not None:
            self._refuse_tag(event, span)
        if event.anchor is not None:
            self._open_anchor(event.anchor, span)
        node = self._build(event, span, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, span)
        return node

    def _build(self, event: Any, span: Span, depth: int) -> Node:
        if isinstance(event, yaml.SequenceStartEvent):
            return self._compose_items(span, depth)
        if isinstance(event, yaml.MappingStartEvent):
            return self._compose_table(span, depth)
        return self._compose_scalar(event, span)

    def _compose_scalar(self, event: Any, span: Span) -> Scalar:
        value: Plain = event.value
        if event.implicit[0]:
            try:
                value = resolve(event.value)
            except NumberFault as fault:
                self.errors.add(codes.BAD_NUMBER, f"{fault}: {show(event.value)}", span)
        return Scalar(event.value, value, span, self._text_span(event, span))

    def _compose_items(self, span: Span, depth: int) -> Items:
        items: list[Node] = []
        while True:
            event = self.loader.get_event()
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._compose(event, depth + 1))
        return make_items(items, self._widen(span, event))

    def _compose_table(self, span: Span, depth: int) -> Table:
        entries: list[Entry] = []
        while True:
            event = self.loader.get_event()
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._compose(event, depth + 1)
            value = self._compose(self.loader.get_event(), depth + 1)
            entries.append(Entry(self._key_text(key), key.span, value))
            if len(entries) > MOST_KEYS:
                message = f"a mapping has at most {MOST_KEYS:,} keys"
                raise SpecError.at(codes.LIMIT, message, key.span)
        return make_table(self._without_repeats(entries), self._widen(span, event))

    def _key_text(self, key: Node) -> str:
        if isinstance(key, Scalar):
            return key.text
        self.errors.add(codes.BAD_KEY, "a key must be a word, not a list or mapping", key.span)
        return ""

    def _without_repeats(self, entries: Sequence[Entry]) -> list[Entry]:
        kept: dict[str, Entry] = {}
        for entry in entries:
            if entry.key == "<<":
                if "<<" in kept:
                    self._refuse_repeat(entry, kept["<<"])
                kept["<<"] = entry
        merged = [item for entry in kept.values() for item in self._merged(entry)]
        kept.clear()
        for entry in (*(item for item in entries if item.key != "<<"), *merged):
            if entry.key in kept:
                self._refuse_repeat(entry, kept[entry.key])
            else:
                kept[entry.key] = entry
        return list(kept.values())

    def _merged(self, merge: Entry) -> list[Entry]:
        parts = merge.value.items if isinstance(merge.value, Items) else (merge.value,)
        found: list[Entry] = []
        for part in parts:
            if isinstance(part, Table):
                found.extend(part.entries)
            else:
                message = "'<<' merges a mapping or a list of mappings"
                self.errors.add(codes.WRONG_TYPE, message, part.span)
        return found

    def _refuse_repeat(self, entry: Entry, first: Entry) -> None:
        later, earlier = entry.key_span, first.key_span
        if (later.line, later.column) < (earlier.line, earlier.column):
            later, earlier = earlier, later
        self.errors.add(
            codes.DUPLICATE_KEY,
            f"the key {show(entry.key)} is written twice",
            later,
            [Note("the other is here", earlier)],
            "keep one of them",
        )

    def _open_anchor(self, anchor: str, span: Span) -> None:
        if anchor in self.anchors:
            message = f"the anchor {show(anchor)} is defined twice"
            notes = [Note("first here", self.anchors[anchor][1])]
            raise SpecError.at(codes.ALIAS, message, span, notes, "give one of them another name")
        self.anchors[anchor] = (None, span)

    def _follow(self, anchor: str, span: Span, depth: int) -> Node:
        if anchor not in self.anchors:
            message = f"{show('*' + anchor)} refers to an anchor that is not defined above"
            raise SpecError.at(codes.ALIAS, message, span, help=f"define it with &{anchor[:40]}")
        node, defined = self.anchors[anchor]
        if node is None:
            message = f"{show('*' + anchor)} lies inside what it refers to"
            raise SpecError.at(codes.ALIAS, message, span, [Note("the anchor is here", defined)])
        self._count(node.size, depth + node.height - 1, span)
        return node

    def _count(self, nodes: int, depth: int, span: Span) -> None:
        self.count += nodes
        if depth > MOST_DEPTH:
            message = f"nested more than {MOST_DEPTH} levels deep"
            raise SpecError.at(codes.LIMIT, message, span)
        if self.count > MOST_NODES:
            message = f"the file has more than {MOST_NODES:,} values, aliases counted in full"
            raise SpecError.at(codes.LIMIT, message, span)

    def _refuse_tag(self, event: Any, span: Span) -> None:
        message = f"the tag {show(event.tag)} has no meaning in a spec"
        help = "remove it; put text in quotes if it looks like a number"
        self.errors.add(codes.TAG, message, span, help=help)

    def _empty(self) -> BpcError:
        help = "start with 'bpc: 1', then data, model, loss and train"
        return SpecError.at(codes.EMPTY, "the file is empty", Span(self.file, 1, 1), help=help)

    def _span(self, event: Any) -> Span:
        start = event.start_mark
        span = Span(self.file, start.line + 1, start.column + 1)
        if isinstance(event, yaml.ScalarEvent) and event.style in ("|", ">"):
            return span
        return self._widen(span, event)

    def _widen(self, span: Span, last: Any) -> Span:
        end = last.end_mark
        if end.line + 1 != span.line or end.column < span.column:
            return span
        return Span(span.file, span.line, span.column, end.column + 1 - span.column)

    def _text_span(self, event: Any, span: Span) -> Span:
        if event.style in ("'", '"'):
            return Span(span.file, span.line, span.column + 1, max(1, span.width - 2))
        if event.style not in ("|", ">"):
            return span
        for number in range(span.line, len(self.lines)):
            line = self.lines[number]
            if line.strip():
                indent = len(line) - len(line.lstrip(" "))
                return Span(span.file, number + 1, indent + 1, len(line) - indent)
        return span


def make_items(items: Sequence[Node], span: Span) -> Items:
    """A list node with its size and height."""
    size = 1 + sum(item.size for item in items)
    return Items(tuple(items), span, size, 1 + max((item.height for item in items), default=0))


def make_table(entries: Sequence[Entry], span: Span) -> Table:
    """A mapping node with its size and height."""
    size = 1 + sum(1 + entry.value.size for entry in entries)
    height = 1 + max((entry.value.height for entry in entries), default=0)
    return Table(tuple(entries), span, size, height)
