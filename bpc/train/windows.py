"""Which batches make up which window: a window is one step of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from bpc.data.batches import Batches
from bpc.spec.model import TrainSpec


@dataclass(frozen=True, slots=True)
class Window:
    """The row numbers of each batch of a window, and where in the run it is.

    `number` counts from 1. `epoch`, from 1, is that of its last batch; `ends_epoch` says that a
    batch of it is the last one of an epoch.
    """

    number: int
    epoch: int
    batches: tuple[NDArray[np.int64], ...]
    ends_epoch: bool


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a run. They follow the batches across epochs; the last may be shorter."""

    source: Batches
    batch_count: int
    accumulate: int

    def __len__(self) -> int:
        return -(-self.batch_count // self.accumulate)

    def __getitem__(self, index: int) -> Window:
        """The window at `index`, from 0."""
        start = index * self.accumulate
        stop = min(start + self.accumulate, self.batch_count)
        assert 0 <= start < stop, f"window {index} of {len(self)}"
        places = [self.source.locate(batch) for batch in range(start, stop)]
        last = len(self.source) - 1
        return Window(
            index + 1,
            places[-1][0] + 1,
            tuple(self.source.rows(epoch, step) for epoch, step in places),
            any(step == last for _, step in places),
        )


def plan_windows(source: Batches, train: TrainSpec, steps: int | None) -> Windows:
    """The windows of a run.

    Args:
        source: batches of the training part.
        train: `epochs` and `steps` of the spec; whichever ends first ends the run, and without
            either it lasts one epoch.
        steps: the number of windows in place of both.
    """
    most = None if steps is None else steps * train.accumulate
    if most is None and train.steps is not None:
        most = train.steps * train.accumulate
    epochs = train.epochs if steps is None else None
    if epochs is None and most is None:
        epochs = 1.0
    limits = [] if most is None else [most]
    if epochs is not None:
        limits.append(max(1, ceil(epochs * len(source))))
    return Windows(source, min(limits), train.accumulate)
