"""Loss and accuracy over a whole part of the data, the short last batch counted right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.batches import Batches
from bpc.data.feeder import iterate
from bpc.entries import EVALUATE
from bpc.runtime.device import Device

Part = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss over all terms; the share of right classes, or None for value targets."""

    loss: float
    accuracy: float | None
    rows: int


def evaluate(device: Device, part: Part, ignored: int | None = None) -> Evaluation:
    """Run `evaluate` over a part in batches.

    Args:
        device: where parameters are.
        part: inputs by name, and `target`: int64 [rows] for classes.
        ignored: the class that does not count, if any.
    """
    source = Batches(part, device.rows)
    loss = weight = 0.0
    right = counted = 0
    classes = np.issubdtype(part["target"].dtype, np.integer)
    for batch in iterate(part, source):
        rows = feed(device, batch)
        device.run(EVALUATE, rows)
        loss += float(device.read_output(EVALUATE, "loss", rows))
        weight += float(device.read_output(EVALUATE, "weight", rows))
        if classes:
            hits, of = _count_right(device, batch["target"], rows, ignored)
            right, counted = right + hits, counted + of
    return Evaluation(
        loss / weight if weight else 0.0,
        right / counted if counted else None,
        source.row_count,
    )


def feed(device: Device, batch: Part) -> int:
    """Write a batch into the input slots; the number of its rows."""
    for name, array in batch.items():
        device.write_input(name, array)
    return len(batch["target"])


def _count_right(
    device: Device, target: NDArray[Any], rows: int, ignored: int | None
) -> tuple[int, int]:
    """Rows whose largest score is that of their class, of the rows that count."""
    scores = device.read_output(EVALUATE, "prediction", rows)
    if scores.shape[:-1] != target.shape:
        return 0, 0
    right = scores.argmax(axis=-1) == target
    counted = np.ones(target.shape, bool) if ignored is None else target != ignored
    return int((right & counted).sum()), int(counted.sum())
