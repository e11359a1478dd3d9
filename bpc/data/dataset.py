"""What was read of a source: two parts, and what is known of how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.scale import Scale, scale_from_json
from bpc.errors import Note

Part = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the training part said, so that other rows can be treated alike.

    `classes` are their names by number, None for value targets. `fills` are the values for
    elements that an input lacks, in the order of a row. `rows` are those trained on and held out.
    """

    classes: tuple[str, ...] | None = None
    scales: Mapping[str, Scale] = field(default_factory=dict)
    fills: Mapping[str, list[float]] = field(default_factory=dict)
    rows: tuple[int, int] = (0, 0)

    def prepare(self, raw: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Inputs [rows, ...] of a file, NaN for what is missing, as the model takes them."""
        return {name: self._prepare(name, np.asarray(values)) for name, values in raw.items()}

    def _prepare(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        if name in self.fills:
            fill = np.asarray(self.fills[name]).reshape(values.shape[1:])
            values = np.where(np.isnan(values), fill, values)
        return self.scales[name].apply(values) if name in self.scales else values

    def to_json(self) -> dict[str, object]:
        """The facts as plain data."""
        return {
            "classes": None if self.classes is None else list(self.classes),
            "normalise": {name: scale.to_json() for name, scale in self.scales.items()},
            "missing": dict(self.fills),
            "rows": list(self.rows),
        }


def facts_from_json(found: Mapping[str, Any]) -> Facts:
    """What `Facts.to_json` wrote, as a run keeps it in `data.json`."""
    classes = found.get("classes")
    scales = {name: scale_from_json(scale) for name, scale in found["normalise"].items()}
    names = None if classes is None else tuple(classes)
    train, test = found["rows"]
    return Facts(names, scales, dict(found["missing"]), (train, test))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Two parts, each the inputs by name and "target", all with the same number of rows.

    Class targets are int64 [rows]; everything else is float32 or float64. What is too large to
    be held is a `bpc.data.stored.StoredRows`, of which rows are taken like those of an array.
    `left_out` counts rows that could not be used.
    """

    train: Part
    test: Part
    notes: tuple[Note, ...] = ()
    facts: Facts = field(default_factory=Facts)
    left_out: int = 0
