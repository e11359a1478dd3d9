"""Loss and metrics over a whole part of the data, the short last batch counted right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.batches import Batches
from bpc.data.feeder import iterate
from bpc.entries import EVALUATE
from bpc.runtime.device import Device
from bpc.spec.model import LossSpec
from bpc.train.scores import make_scores

Part = Mapping[str, NDArray[Any]]
ACCURACY = "accuracy"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss over all terms; the share of right classes, or None where there is none; metrics
    by name, None where the rows leave one undefined."""

    loss: float
    accuracy: float | None
    rows: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def results(self) -> dict[str, float | None]:
        """`test_loss`, `test_accuracy`, and each metric after `test_`."""
        named = {f"test_{name}": value for name, value in self.metrics.items()}
        return {"test_loss": self.loss, "test_accuracy": self.accuracy, **named}


def evaluate(device: Device, part: Part, loss: LossSpec, metrics: Sequence[str] = ()) -> Evaluation:
    """Run `evaluate` over a part in batches, dropout off.

    Args:
        device: where parameters are.
        part: inputs by name, and `target`: int64 [rows] for classes.
        loss: what the model is trained with.
        metrics: what to measure beside loss and accuracy.
    """
    source = Batches(part, device.rows)
    total = weight = 0.0
    classes = bool(np.issubdtype(part["target"].dtype, np.integer))
    wanted = tuple(dict.fromkeys((ACCURACY, *metrics)))
    scores = make_scores(wanted, classes, loss)
    for batch in iterate(part, source):
        rows = feed(device, batch)
        device.run(EVALUATE, rows)
        total += float(device.read_output(EVALUATE, "loss", rows))
        weight += float(device.read_output(EVALUATE, "weight", rows))
        scores.add(device.read_output(EVALUATE, "prediction", rows), batch["target"])
    found = scores.result()
    return Evaluation(
        total / weight if weight else 0.0,
        found.get(ACCURACY),
        source.row_count,
        {name: found[name] for name in metrics if name in found},
    )


def feed(device: Device, batch: Part) -> int:
    """Write a batch into the input slots; the number of its rows."""
    for name, array in batch.items():
        device.write_input(name, array)
    return len(batch["target"])
