"""What `--set` may call the entries of a model: names given and default names, as tools print them.

`model.linear1.out`, `model.linear1.linear.out` and `model.0.linear.out` lead to the same place; so
do `model.repeat1.3.fc.out` and `model.repeat1.layers.fc.linear.out`, for every round at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bpc.spec.entries import COMPOSITES
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table
from bpc.types import LayerSchema

_BESIDE = ("name", "from", "precision")


def find_kind(item: Node) -> str | None:
    """What kind of layer an entry of a model is."""
    if isinstance(item, Scalar):
        return item.value if isinstance(item.value, str) else None
    if not isinstance(item, Table):
        return None
    keys = [key for key in map(_key_of, item.entries) if key not in _BESIDE]
    return "repeat" if "repeat" in keys else next(iter(keys), None)


def _key_of(entry: Entry) -> str:
    return entry.key


def find_name(item: Node) -> str | None:
    """The name that an entry gives itself, beside its kind or inside."""
    if not isinstance(item, Table):
        return None
    inside = next((e.value for e in item.entries if isinstance(e.value, Table)), None)
    for table in (item, inside):
        node = table.get("name") if table else None
        if isinstance(node, Scalar):
            return node.text
    return None


def name_entries(items: Items, taken: Collection[str] = ()) -> Mapping[str, int]:
    """Names of a list of layers, given or by default, each with its place in the list.

    `taken`: names of the same scope that no layer has by default.
    """
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    for index, item in enumerate(items.items):
        name, kind = find_name(item), find_kind(item)
        while name is None and kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
            wanted = f"{kind}{counts[kind]}"
            name = wanted if wanted not in found and wanted not in taken else None
        if name is not None:
            found.setdefault(name, index)
    return found


def open_entry(
    item: Node, keys: Sequence[str], tables: Mapping[str, LayerSchema]
) -> tuple[str, ...]:
    """The keys below an entry with those in between that a full name leaves out."""
    kind = find_kind(item)
    if not keys or kind is None or keys[0] in (kind, *_BESIDE):
        return tuple(keys)
    if kind == "repeat":
        if keys[0] == "layers":
            return tuple(keys)
        return ("layers", *(keys[1:] if keys[0].isdigit() and len(keys) > 1 else keys))
    schema = tables.get(kind)
    options = {option.name for option in schema.options} if schema else set()
    leads_on = len(keys) > 1 and kind not in COMPOSITES and keys[0] not in options
    return tuple(keys) if leads_on else (kind, *keys)
