"""Every value of a spec in one list, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bpc.errors import Span
from bpc.spec.flat import place_of, plain_values
from bpc.spec.model import Spec


@dataclass(frozen=True, slots=True)
class Listed:
    """A value as JSON has it. `span`: in a file or on the command line; None is a default."""

    key: str
    value: object
    span: Span | None


def list_values(spec: Spec) -> list[Listed]:
    """The values of a loaded spec by dotted key, sections in the order of the language."""
    values = {**plain_values(spec), **dict(_unchanging(spec))}
    if "final" not in spec.train.schedule.options:
        values.pop("train.schedule.final")
    return [Listed(key, value, _origin(spec, key)) for key, value in values.items()]


def _unchanging(spec: Spec) -> Iterator[tuple[str, object]]:
    """What changes no number, which `plain_values` leaves out."""
    yield "train.memory", spec.train.memory_bytes
    yield "train.tensorboard", spec.train.tensorboard
    kept = spec.train.checkpoint
    for key in ("every", "keep", "best") if kept else ():
        yield f"train.checkpoint.{key}", getattr(kept, key)


def _origin(spec: Spec, key: str) -> Span | None:
    """Layers, connections, parameters and functions stand where their layer or name stands."""
    origin = spec.origins.get(key)
    if origin is not None or key.split(".")[0] in ("train", "data"):
        return origin if isinstance(origin, Span) else None
    declared = {f"parameters.{item.name}": item.span for item in spec.parameters}
    declared |= {f"functions.{item.name}": item.span for item in spec.functions}
    if key == "model":
        return spec.layers[0].span
    return declared.get(".".join(key.split(".")[:2])) or place_of(spec, key)
