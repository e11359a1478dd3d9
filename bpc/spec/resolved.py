"""A spec as one YAML file: what it extends, what the command line sets and defaults put in.

The file loads to the same spec. Blocks, repeats and functions stay as they are written, since the
full names of layers, which draws and weights go by, come from them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict

from bpc.data.describe import SOURCES
from bpc.errors import Span
from bpc.spec.merge import from_python
from bpc.spec.model import DataSpec, GroupSpec, Spec, TrainSpec
from bpc.spec.scalars import NumberFault, resolve
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table, make_table

_WIDTH = 96
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def write_resolved(spec: Spec) -> str:
    """The YAML text of a loaded spec with everything in one place."""
    assert spec.tree is not None, "a loaded spec keeps its tree"
    names = ", ".join(_one_line(file.name) for file in spec.files)
    head = f"# All of {names} in one file, with what the command line set and with defaults.\n"
    return head + "".join(f"{line}\n" for line in _block(_fill(spec, spec.tree)))


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _fill(spec: Spec, root: Table) -> Table:
    """The tree with the version first, and name, seed, data and train in full."""
    data = root.get("data")
    assert isinstance(data, Table), "a spec that loads has data"
    shared = {"batch": spec.data.batch, "shuffle": spec.data.shuffle}
    sections: dict[str, Node] = {
        "bpc": from_python(1, root.span),
        "name": from_python(spec.name, root.span),
        "seed": from_python(spec.seed, root.span),
        "data": _put(data, {**_paths(spec.data), **shared}),
    }
    for entry in root.entries:
        sections.setdefault(entry.key, entry.value)
    sections["train"] = from_python(_train_values(spec.train), root.span)
    return _table(sections, root.span)


def _paths(data: DataSpec) -> dict[str, object]:
    """Paths of data in full, since the resolved spec lies in another folder."""
    kinds = {option.name: option.kind for option in SOURCES[data.source]}
    return {
        name: {key: os.path.abspath(path) for key, path in value.items()}
        if isinstance(value, Mapping)
        else os.path.abspath(str(value))
        for name, value in data.options.items()
        if kinds.get(name) in ("path", "paths")
    }


def _table(values: Mapping[str, Node], span: Span) -> Table:
    return make_table([Entry(key, span, node) for key, node in values.items()], span)


def _put(table: Table, values: Mapping[str, object]) -> Table:
    nodes: dict[str, Node] = {entry.key: entry.value for entry in table.entries}
    nodes |= {key: from_python(value, table.span) for key, value in values.items()}
    return _table(nodes, table.span)


def _train_values(train: TrainSpec) -> dict[str, object]:
    """The section `train` that reads as these values; one without a value is left out."""
    schedule = {key: _listed(value) for key, value in train.schedule.options.items()} or None
    values: dict[str, object] = {
        "epochs": train.epochs,
        "steps": train.steps,
        "precision": train.precision,
        "gradients": train.gradients,
        "optimizer": {train.optimizer.kind: dict(train.optimizer.options)},
        "lr": train.lr,
        "groups": [_group_values(group) for group in train.groups] or None,
        "clip": _clip_values(train) or None,
        "warmup": _warmup_values(train),
        "schedule": {train.schedule.kind: schedule},
        "accumulate": train.accumulate,
        "memory": train.memory_bytes,
        "loss_scale": asdict(train.loss_scale),
        "nonfinite": train.nonfinite,
        "log_every": train.log_every,
        "eval_every": train.eval_every,
        "metrics": None if train.metrics is None else [metric.name for metric in train.metrics],
        "early_stopping": _stopping_values(train),
        "tensorboard": train.tensorboard,
        "checkpoint": _checkpoint_values(train),
    }
    return {key: value for key, value in values.items() if value is not None}


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _without_gaps(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def _group_values(group: GroupSpec) -> dict[str, object]:
    names = ("lr", "lr_factor", "weight_decay")
    match = [pattern.text for pattern in group.patterns]
    return {"match": match, **_without_gaps({name: getattr(group, name) for name in names})}


def _clip_values(train: TrainSpec) -> dict[str, object]:
    groups = {item.pattern.text: item.norm for item in train.clip_groups} or None
    return _without_gaps({"global_norm": train.clip, "value": train.clip_value, "groups": groups})


def _warmup_values(train: TrainSpec) -> dict[str, object]:
    if train.warmup_share is not None:
        return {"share": train.warmup_share}
    return {"steps": train.warmup_steps}


def _checkpoint_values(train: TrainSpec) -> dict[str, object] | None:
    if train.checkpoint is None:
        return None
    return {key: value for key, value in asdict(train.checkpoint).items() if value is not None}


def _stopping_values(train: TrainSpec) -> dict[str, object] | None:
    stopping = train.early_stopping
    if stopping is None:
        return None
    return {name: getattr(stopping, name) for name in ("metric", "patience", "min_delta")}


def _block(node: Node) -> list[str]:
    """The lines of a node, on one line where it is short."""
    if isinstance(node, Table) and node.entries:
        return [line for entry in node.entries for line in _entry(entry)]
    if isinstance(node, Items) and node.items:
        return [line for item in node.items for line in _item(item)]
    return [_flow(node)]


def _entry(entry: Entry) -> list[str]:
    key, flow = _text(entry.key), _flow(entry.value)
    if isinstance(entry.value, Scalar) or _is_short(entry.value, f"{key}: {flow}"):
        return [f"{key}: {flow}"]
    return [f"{key}:", *(f"  {line}" for line in _block(entry.value))]


def _item(item: Node) -> list[str]:
    flow = _flow(item)
    if isinstance(item, Scalar) or _is_short(item, f"- {flow}"):
        return [f"- {flow}"]
    first, *rest = _block(item)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _is_short(node: Node, line: str) -> bool:
    """A list of layers takes a line each; other lists and mappings share one where they fit."""
    inner = node.items if isinstance(node, Items) else ()
    listed = any(isinstance(item, Table) for item in inner)
    return (not inner and node.height == 1) or (len(line) <= _WIDTH and not listed)


def _flow(node: Node) -> str:
    if isinstance(node, Items):
        return f"[{', '.join(_flow(item) for item in node.items)}]"
    if isinstance(node, Table):
        inner = (f"{_text(entry.key)}: {_flow(entry.value)}" for entry in node.entries)
        return f"{{{', '.join(inner)}}}"
    return _text(node.value) if isinstance(node.value, str) else _plain(node)


def _plain(node: Scalar) -> str:
    """A number, truth value or null as it was written, where that means the same again."""
    value = node.value
    try:
        if node.text and resolve(node.text) == value:
            return node.text
    except NumberFault:
        pass
    if isinstance(value, float) and value - value != 0:
        return ".nan" if value != value else (".inf" if value > 0 else "-.inf")
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)


def _text(text: str) -> str:
    """Text as it is where it is a plain word, else in double quotes."""
    if _PLAIN.fullmatch(text) and resolve(text) == text:
        return text
    return '"' + "".join(_escape(c) for c in text) + '"'


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
