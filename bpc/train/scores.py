"""How good predictions are, in the measures that suit the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.spec.model import LossSpec

Array = NDArray[Any]

TOP = 5


def measure(prediction: Array, target: Array, loss: LossSpec) -> dict[str, float | None]:
    """Metrics by name; None where the data leaves one undefined, nothing where none suits.

    Args:
        prediction: the model's result: scores [rows, classes], logits or values [rows, ...].
        target: class numbers [rows], or what `prediction` should be.
        loss: what the model was trained with.
    """
    if np.issubdtype(target.dtype, np.integer):
        ignored: Any = loss.options.get("ignore_index")
        return _measure_classes(prediction, target, ignored)
    if prediction.shape != target.shape:
        return {}
    if loss.op == "bce_with_logits":
        return {"accuracy": float(((prediction > 0) == (target > 0.5)).mean())}
    return _measure_values(prediction.astype(np.float64), target.astype(np.float64))


def _measure_classes(scores: Array, target: Array, ignored: int | None) -> dict[str, float | None]:
    if scores.shape[:-1] != target.shape:
        return {}
    counted = np.ones(target.shape, bool) if ignored is None else target != ignored
    if not counted.any():
        return {"accuracy": None}
    rank = rank_targets(scores[counted], target[counted])
    found: dict[str, float | None] = {"accuracy": float((rank == 0).mean())}
    if scores.shape[-1] > TOP:
        found[f"top{TOP}"] = float((rank < TOP).mean())
    return found


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


def _measure_values(prediction: Array, target: Array) -> dict[str, float | None]:
    """Mean absolute error, root of the mean squared error, and R^2 = 1 - sum of squared errors /
    sum of squared distances from the mean of each value, over all values together."""
    error = prediction - target
    spread = float(np.square(target - target.mean(axis=0)).sum())
    squares = float(np.square(error).sum())
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(squares / error.size)),
        "r2": 1 - squares / spread if spread > 0 else None,
    }
