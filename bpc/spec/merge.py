"""`extends:` and `--set`: one tree out of several, each node keeping its own place."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bpc.errors import BpcError, Collector, Note, Span, SpecError
from bpc.spec import codes
from bpc.spec.model import SourceFile
from bpc.spec.setnames import name_entries, open_entry
from bpc.spec.source import read_text
from bpc.spec.words import show, suggest
from bpc.spec.yamlnodes import (
    MOST_NODES,
    Entry,
    Items,
    Node,
    Scalar,
    Table,
    is_null,
    make_items,
    make_table,
    read_yaml,
)
from bpc.types import LayerSchema

_MOST_BASES = 8
_MOST_KEYS = 16
# Here a mapping names one alternative, so that another alternative replaces it as a whole.
_ALTERNATIVES = (("loss",), ("train", "optimizer"), ("train", "schedule"), ("data", "split"))
_DATA_KEYS = ("source", "batch", "shuffle")


@dataclass(frozen=True, slots=True)
class Tree:
    """A merged spec: its tree and its files, the nearest first."""

    root: Table
    files: tuple[SourceFile, ...]


def read_tree(path: Path, file: str, text: str | None, errors: Collector) -> Tree:
    """The spec at `path` on top of what it extends; lesser faults of the YAML are recorded.

    Raises:
        SpecError: a file of the chain does not load, is no mapping, or the chain is a circle.
    """
    layers: list[Table] = []
    files: list[SourceFile] = []
    chain: list[tuple[Path, str]] = []
    asked_at: Span | None = None
    while True:
        chain.append((_resolve(path, file, asked_at), file))
        content = read_text(path, file, asked_at) if text is None else text
        files.append(SourceFile(file, content))
        root = _read_root(content, file, errors)
        layers.append(root)
        entry = root.find("extends")
        if entry is None or is_null(entry.value):
            break
        path, file = _next_base(entry, path, file, chain)
        asked_at, text = entry.value.span, None
    merged = layers[-1]
    for layer in reversed(layers[:-1]):
        merged = _merge_tables(merged, layer, ())
    if merged.size > MOST_NODES:
        message = f"the spec and what it extends have more than {MOST_NODES:,} values"
        raise SpecError.at(codes.LIMIT, message, merged.span)
    return Tree(_without(merged, "extends"), tuple(files))


def _read_root(content: str, file: str, errors: Collector) -> Table:
    root = read_yaml(content, file, errors)
    if isinstance(root, Table):
        return root
    help = "start with 'bpc: 1', then data, model, loss and train"
    raise SpecError.at(codes.WRONG_TYPE, "a spec is a mapping of keys", root.span, help=help)


def _resolve(path: Path, file: str, asked_at: Span | None) -> Path:
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        span = asked_at or Span(file, 1, 1)
        raise SpecError.at(codes.UNREADABLE, f"cannot read {file!r}", span) from None


def _next_base(
    entry: Entry, path: Path, file: str, chain: Sequence[tuple[Path, str]]
) -> tuple[Path, str]:
    node = entry.value
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        message = "extends must be the path of one file"
        raise SpecError.at(codes.EXTENDS, message, node.span, help="such as extends: base.yaml")
    base = path.parent / node.value
    shown = str(Path(file).parent / node.value)
    if _resolve(base, shown, node.span) in [seen for seen, _ in chain]:
        notes = [Note(f"{name} is read already") for _, name in chain]
        raise SpecError.at(codes.EXTENDS, "extends leads in a circle", node.span, notes)
    if len(chain) >= _MOST_BASES:
        message = f"more than {_MOST_BASES} files extend each other"
        raise SpecError.at(codes.EXTENDS, message, node.span)
    return base, shown


def _without(table: Table, key: str) -> Table:
    return make_table([entry for entry in table.entries if entry.key != key], table.span)


def _merge_tables(base: Table, child: Table, path: tuple[str, ...]) -> Table:
    if path == ("data",):
        base = _keep_common(base, child)
    if path in _ALTERNATIVES and not set(base.keys()) & (set(child.keys()) - {"from"}):
        return child
    changed = {entry.key: entry for entry in child.entries}
    entries = [
        _merge_entries(entry, changed.pop(entry.key), path) if entry.key in changed else entry
        for entry in base.entries
    ]
    return make_table([*entries, *changed.values()], child.span)


def _merge_entries(base: Entry, child: Entry, path: tuple[str, ...]) -> Entry:
    if isinstance(base.value, Table) and isinstance(child.value, Table):
        merged = _merge_tables(base.value, child.value, (*path, child.key))
        return Entry(child.key, child.key_span, merged)
    return child


def _keep_common(base: Table, child: Table) -> Table:
    """Without the options of the base's data source if the child takes another one."""
    old, new = base.get("source"), child.get("source")
    if new is None or (
        isinstance(old, Scalar) and isinstance(new, Scalar) and old.text == new.text
    ):
        return base
    return make_table([entry for entry in base.entries if entry.key in _DATA_KEYS], base.span)


def apply_set(
    root: Table, key: str, value: object, tables: Mapping[str, LayerSchema], place: str = ""
) -> Table:
    """The tree with the value at a dotted key, such as `train.lr` or `model.0.linear.out`.

    A key that does not exist is added with the place `--set key`, or `place`; whoever checks the
    tree then names the nearest one. Entries of a list go by number, layers also by name
    (`setnames.py`).

    Raises:
        SpecError: the key leads through a value that has no keys or past the end of a list, or
            the value cannot be read.
    """
    span = Span(place or f"--set {key}", 1, 1)
    parts = tuple(key.split("."))
    if not all(parts) or len(parts) > _MOST_KEYS or parts[0] == "extends":
        message = f"{show(key)} is not a key that can be set"
        raise SpecError.at(
            codes.BAD_SET, message, span, help="such as train.lr, or model.0.linear.out"
        )
    declared = root.get("parameters")
    taken = declared.keys() if isinstance(declared, Table) else ()
    merged = _Setting(span, tables, taken).put(root, parts, to_node(value, span), ())
    assert isinstance(merged, Table)
    return merged


def to_node(value: object, span: Span) -> Node:
    """A Python value, or text as YAML reads it, as a node that stands at `span`.

    Raises:
        SpecError: text that is not YAML, or a value that YAML has no form for.
    """
    if isinstance(value, str):
        return _read_text(value, span)
    return from_python(value, span, 0)


def _read_text(text: str, span: Span) -> Node:
    if not text.strip():
        return Scalar("", None, span, span)
    if text.lstrip().startswith("#"):
        message = f"the value {show(text)} cannot be read: it is a comment"
        raise SpecError.at(codes.BAD_SET, message, span, help="put it in quotes to mean text")
    try:
        errors = Collector()
        node = read_yaml(text, span.file, errors, null=True)
        errors.raise_if_any()
        return _move(node, span)
    except SpecError as fault:
        first = fault.diagnostics[0]
        message = f"the value {show(text)} cannot be read: {first.message}"
        raise SpecError.at(codes.BAD_SET, message, span, help=first.help) from None


def _move(node: Node, span: Span) -> Node:
    if isinstance(node, Scalar):
        return Scalar(node.text, node.value, span, span)
    if isinstance(node, Items):
        return make_items([_move(item, span) for item in node.items], span)
    return make_table([Entry(e.key, span, _move(e.value, span)) for e in node.entries], span)


def from_python(value: object, span: Span, depth: int = 0) -> Node:
    """A Python value as a node that stands at `span`; text stays text.

    Raises:
        SpecError: it is nested too deeply, or YAML has no form for it.
    """
    if depth > 16:
        raise SpecError.at(codes.LIMIT, "the value is nested too deeply", span)
    if value is None or isinstance(value, bool | int | float | str | Path):
        return _scalar_from(value, span)
    if isinstance(value, Mapping):
        entries = [Entry(str(k), span, from_python(v, span, depth + 1)) for k, v in value.items()]
        return make_table(entries, span)
    if isinstance(value, list | tuple):
        return make_items([from_python(item, span, depth + 1) for item in value], span)
    try:
        return _scalar_from(operator.index(value), span)  # type: ignore[arg-type]
    except TypeError:
        message = f"a value of type {type(value).__name__} cannot be in a spec"
        raise SpecError.at(codes.BAD_SET, message, span) from None


def _scalar_from(value: bool | int | float | str | Path | None, span: Span) -> Scalar:
    if isinstance(value, str | Path):
        return Scalar(str(value), str(value), span, span)
    if value is None or isinstance(value, bool):
        return Scalar({None: "null", True: "true", False: "false"}[value], value, span, span)
    number = int(value) if isinstance(value, int) else float(value)
    if isinstance(number, int) and number.bit_length() > 128:
        raise SpecError.at(codes.BAD_NUMBER, "the number is too long", span)
    return Scalar(repr(number), number, span, span)


@dataclass(frozen=True, slots=True)
class _Setting:
    """Puts one value into a tree; `span` is the place of everything that it adds."""

    span: Span
    tables: Mapping[str, LayerSchema]
    taken: tuple[str, ...] = ()

    def put(
        self, node: Node | None, keys: tuple[str, ...], value: Node, path: tuple[str, ...]
    ) -> Node:
        """The node with the value at `keys` below it; `path` led to the node."""
        if not keys:
            return value
        if isinstance(node, Items):
            return self._put_in_list(node, keys, value, path)
        if node is None or is_null(node):
            node = make_table((), self.span)
        if isinstance(node, Scalar):
            node = self._open_scalar(node, path)
        if path in _ALTERNATIVES and keys[0] not in (*node.keys(), "from"):
            node = make_table((), self.span)
        return self._put_in_table(node, keys, value, path)

    def _put_in_table(
        self, node: Table, keys: tuple[str, ...], value: Node, path: tuple[str, ...]
    ) -> Table:
        key, rest = keys[0], keys[1:]
        old = node.find(key)
        inside = self._open_shorthand(old, rest) if old else None
        new = Entry(key, self.span, self.put(inside, rest, value, (*path, key)))
        if old is None:
            return make_table([*node.entries, new], node.span)
        if rest:
            new = Entry(key, old.key_span, new.value)
        return make_table([new if e is old else e for e in node.entries], node.span)

    def _open_shorthand(self, entry: Entry, rest: tuple[str, ...]) -> Node:
        """`linear: 256` as `linear: {out: 256}` when a key below `linear` is to be set."""
        schema = self.tables.get(entry.key)
        single = not isinstance(entry.value, Table) and not is_null(entry.value)
        if not rest or rest[0].isdigit() or not single or schema is None or not schema.shorthand:
            return entry.value
        inner = Entry(schema.shorthand, entry.value.span, entry.value)
        return make_table((inner,), entry.value.span)

    def _open_scalar(self, node: Scalar, path: tuple[str, ...]) -> Table:
        """`relu` as `relu: ` when a key beside or below it is to be set."""
        if isinstance(node.value, str):
            nothing = Scalar("", None, node.span, node.span)
            return make_table((Entry(node.text, node.span, nothing),), node.span)
        raise self._fault(f"{'.'.join(path)} is a single value, it has no keys", node.span)

    def _put_in_list(
        self, node: Items, keys: tuple[str, ...], value: Node, path: tuple[str, ...]
    ) -> Items:
        index = self._find_index(node, keys[0], ".".join(path))
        item, rest = node.items[index], keys[1:]
        if path[0] in ("model", "blocks"):
            rest = open_entry(item, rest, self.tables)
        new = self.put(item, rest, value, (*path, keys[0]))
        return make_items(
            [new if i == index else item for i, item in enumerate(node.items)], node.span
        )

    def _find_index(self, node: Items, key: str, path: str) -> int:
        if key.isascii() and key.isdigit():
            if len(key) < 7 and int(key) < len(node.items):
                return int(key)
            entries = f"entries 0 to {len(node.items) - 1}" if node.items else "no entries"
            raise self._fault(f"{path} has {entries}, not {key[:20]}", node.span)
        names = name_entries(node, self.taken if path == "model" else ())
        if key in names:
            return names[key]
        help = suggest(key, names) or "name an entry by its number, from 0"
        raise self._fault(f"{path} has no entry named {show(key)}", node.span, help)

    def _fault(self, message: str, place: Span, help: str | None = None) -> BpcError:
        return SpecError.at(
            codes.BAD_SET, message, self.span, [Note("what stands there is", place)], help
        )
