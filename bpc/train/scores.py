"""How good predictions are, gathered batch by batch, in the measures that suit the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bpc.spec.evaluation import top_of
from bpc.spec.model import LossSpec

Array = NDArray[Any]
Metrics = Mapping[str, float | None]


class Scores(Protocol):
    """Sums over rows; batches come with the same shapes but for the number of rows."""

    def add(self, prediction: Array, target: Array) -> None:
        """Take in the rows of a batch."""

    def result(self) -> dict[str, float | None]:
        """Metrics by name; None where the rows leave one undefined, nothing where none suits."""


def make_scores(names: Sequence[str], classes: bool, loss: LossSpec) -> Scores:
    """What gathers the metrics with these names.

    Args:
        names: accuracy, top5 and its like, mae, rmse, r2.
        classes: targets are class numbers [rows, ...] and predictions scores [rows, ..., classes];
            otherwise both are values, or predictions logits, of the same shape.
        loss: what the model was trained with.
    """
    if classes:
        ignored: Any = loss.options.get("ignore_index")
        return ClassScores(names, ignored)
    return LogitScores() if loss.op == "bce_with_logits" else ValueScores(names)


class ClassScores:
    """Shares of the targets whose class is among the k with the largest scores."""

    def __init__(self, names: Sequence[str], ignored: int | None = None):
        """`ignored`: the class that does not count, if any."""
        self._tops = {name: top for name in names if (top := top_of(name)) is not None}
        self._ignored = ignored
        self._hits = dict.fromkeys(self._tops, 0)
        self._counted = 0
        self._suits = True

    def add(self, prediction: Array, target: Array) -> None:
        """Scores [..., classes] and class numbers [...]."""
        if prediction.shape[:-1] != target.shape:
            self._suits = False
            return
        counted = np.ones(target.shape, bool) if self._ignored is None else target != self._ignored
        rank = rank_targets(prediction[counted], target[counted])
        self._counted += rank.size
        for name, top in self._tops.items():
            self._hits[name] += int((rank < top).sum())

    def result(self) -> dict[str, float | None]:
        """The shares."""
        if not self._suits:
            return {}
        whole = self._counted
        return {name: hits / whole if whole else None for name, hits in self._hits.items()}


class LogitScores:
    """The share of logits on the side of 0 that their target, above or below 0.5, asks for."""

    def __init__(self) -> None:
        self._right = self._counted = 0
        self._suits = True

    def add(self, prediction: Array, target: Array) -> None:
        """Logits and targets of one shape."""
        if prediction.shape != target.shape:
            self._suits = False
            return
        self._right += int(((prediction > 0) == (target > 0.5)).sum())
        self._counted += target.size

    def result(self) -> dict[str, float | None]:
        """The accuracy."""
        if not self._suits:
            return {}
        return {"accuracy": self._right / self._counted if self._counted else None}


class ValueScores:
    """Mean absolute error, root of the mean squared error, and R^2 = 1 - sum of squared errors /
    sum of squared distances from the mean of each value, over all values together.

    Means are joined batch by batch in f64. Source: Chan, Golub and LeVeque 1983, "Algorithms for
    computing the sample variance".
    """

    def __init__(self, names: Sequence[str]):
        self._names = [name for name in names if top_of(name) is None]
        self._rows = self._elements = 0
        self._absolute = self._squares = self._spread = 0.0
        self._mean: Any = 0.0
        self._suits = True

    def add(self, prediction: Array, target: Array) -> None:
        """Predictions and targets of one shape [rows, ...]."""
        if prediction.shape != target.shape:
            self._suits = False
            return
        if not target.size:
            return
        wanted = target.astype(np.float64)
        error = prediction.astype(np.float64) - wanted
        self._absolute += float(np.abs(error).sum())
        self._squares += float(np.square(error).sum())
        self._elements += target.size
        self._add_spread(wanted)

    def _add_spread(self, target: Array) -> None:
        mean = target.mean(axis=0)
        rows, total = len(target), self._rows + len(target)
        apart = mean - self._mean if self._rows else np.zeros_like(mean)
        between = float(np.square(apart).sum()) * (self._rows * rows / total)
        self._spread += float(np.square(target - mean).sum()) + between
        self._mean = self._mean + apart * (rows / total) if self._rows else mean
        self._rows = total

    def result(self) -> dict[str, float | None]:
        """The metrics; `r2` is None where targets do not differ."""
        if not self._suits:
            return {}
        if not self._elements:
            return dict.fromkeys(self._names)
        found = {
            "mae": self._absolute / self._elements,
            "rmse": float(np.sqrt(self._squares / self._elements)),
            "r2": 1 - self._squares / self._spread if self._spread > 0 else None,
        }
        return {name: found[name] for name in self._names}


def rank_targets(scores: Array, target: Array) -> NDArray[np.int64]:
    """How many classes stand before the right one; of equal scores the first class is better.

    Args:
        scores: [rows, classes].
        target: class numbers [rows].
    """
    own = np.take_along_axis(scores, target[:, None], axis=-1)
    earlier = np.arange(scores.shape[-1]) < target[:, None]
    # A score that is no number is not below any other.
    before = (scores > own) | ((scores == own) & earlier) | np.isnan(own)
    before[np.arange(len(target)), target] = False
    rank: NDArray[np.int64] = before.sum(axis=-1)
    return rank
