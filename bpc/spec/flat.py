"""A spec as flat dotted keys with plain values, and what two of them differ in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpc.errors import Span
from bpc.spec.model import GroupSpec, InitSpec, LayerSpec, Spec

Flat = dict[str, str]

_LONGEST = 120
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs; None where it does not exist. `span`: where the new one is."""

    key: str
    old: str | None
    new: str | None
    span: Span | None

    def __str__(self) -> str:
        """`train.lr: 0.001 -> 0.003`."""
        return f"{self.key}: {_show(self.old)} -> {_show(self.new)}"


def flatten(spec: Spec) -> Flat:
    """Every value that decides what a run computes, as JSON text by dotted key.

    The keys are those of `Spec.origins`, and more for names, connections, declared parameters and
    functions; `train.memory` and `train.checkpoint`, which change no number, are left out. A long
    value is shortened to its beginning and a digest.
    """
    return {key: _encode(value) for key, value in _values(spec)}


def plain_values(spec: Spec) -> dict[str, object]:
    """What `flatten` has, in full and as JSON has it."""
    return {key: _plain(value) for key, value in _values(spec)}


def shorten(values: Flat) -> Flat:
    """The values, or where they are very many, one digest of them all under the key `spec`."""
    text = json.dumps(values)
    if len(text) <= _MOST:
        return values
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"spec": f"{len(values)} values, sha256 {digest}"}


def compare(old: Mapping[str, str], new: Mapping[str, str], spec: Spec) -> list[Change]:
    """What differs between values that were written down and those of a spec, in its order."""
    keys = [*new, *(key for key in old if key not in new)]
    return [
        Change(key, old.get(key), new.get(key), place_of(spec, key))
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _values(spec: Spec) -> Iterator[tuple[str, object]]:
    yield "name", spec.name
    yield "seed", spec.seed
    data = spec.data
    yield from (("data.source", data.source), ("data.batch", data.batch))
    yield "data.shuffle", data.shuffle
    yield from _options("data", data.options)
    for parameter in spec.parameters:
        yield f"parameters.{parameter.name}.shape", parameter.shape
        yield f"parameters.{parameter.name}.init", parameter.init
    for function in spec.functions:
        yield f"functions.{function.name}", (function.arguments, function.formula)
    yield "model", [layer.full_name for layer in spec.layers]
    for layer in spec.layers:
        yield from _layer(layer)
    yield "loss", spec.loss.op
    yield "loss.from", spec.loss.inputs
    yield from _options("loss", spec.loss.options)
    yield from _train(spec)


def _layer(layer: LayerSpec) -> Iterator[tuple[str, object]]:
    path = f"model.{layer.full_name}"
    yield path, layer.op
    yield f"{path}.from", layer.inputs
    if layer.precision is not None:
        yield f"{path}.precision", layer.precision
    yield from _options(path, layer.options)


def _train(spec: Spec) -> Iterator[tuple[str, object]]:
    train = spec.train
    for key in ("epochs", "steps", "precision", "lr", "accumulate", "nonfinite"):
        yield f"train.{key}", getattr(train, key)
    yield "train.optimizer", train.optimizer.kind
    yield from _options("train.optimizer", train.optimizer.options)
    yield "train.clip.global_norm", train.clip
    yield "train.clip.value", train.clip_value
    yield "train.clip.groups", {item.pattern.text: item.norm for item in train.clip_groups}
    yield "train.groups", [_group(group) for group in train.groups]
    yield "train.gradients", train.gradients
    yield "train.warmup.steps", train.warmup_steps
    yield "train.warmup.share", train.warmup_share
    yield "train.schedule", train.schedule.kind
    yield "train.schedule.final", train.schedule.final
    for key, value in train.schedule.options.items():
        if key != "final":
            yield f"train.schedule.{key}", value
    for key in ("start", "growth_interval", "backoff", "growth", "floor"):
        yield f"train.loss_scale.{key}", getattr(train.loss_scale, key)
    yield from (("train.log_every", train.log_every), ("train.eval_every", train.eval_every))
    metrics = train.metrics
    yield "train.metrics", None if metrics is None else [metric.name for metric in metrics]
    for key in ("metric", "patience", "min_delta") if train.early_stopping else ():
        yield f"train.early_stopping.{key}", getattr(train.early_stopping, key)


def _group(group: GroupSpec) -> dict[str, object]:
    names = ("lr", "lr_factor", "weight_decay")
    match = [pattern.text for pattern in group.patterns]
    return {"match": match, **{name: getattr(group, name) for name in names}}


def _options(path: str, options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in options.items():
        yield f"{path}.{name}", value


def _encode(value: object) -> str:
    text = json.dumps(_plain(value))
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[:40]}... (sha256 {digest})"


def _plain(value: object) -> object:
    if isinstance(value, InitSpec):
        return {value.kind: _plain(value.options)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def place_of(spec: Spec, key: str) -> Span | None:
    """Where a value stands, or the layer or section that it belongs to."""
    origin = spec.origins.get(key)
    if isinstance(origin, Span):
        return origin
    places = {layer.full_name: layer.span for layer in spec.layers}
    name = key.removeprefix("model.").rsplit(".", 1)[0]
    sections = {"train": spec.train.span, "data": spec.data.span, "loss": spec.loss.span}
    return (
        places.get(name)
        or places.get(key.removeprefix("model."))
        or sections.get(key.split(".")[0])
    )


def _show(text: str | None) -> str:
    return "(absent)" if text is None else text
