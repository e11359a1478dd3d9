"""Metrics, gathered over batches of any size, against whole arrays and another library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpc.spec.model import LossSpec
from bpc.train.scores import make_scores, rank_targets

SIZES = (1, 7, 30, 12)


def loss(op: str, **options: object) -> LossSpec:
    return LossSpec(op, op, options, {}, None, ())  # type: ignore[arg-type]


def measure(prediction: Any, target: Any, names: list[str], given: LossSpec) -> dict[str, Any]:
    """The metrics of rows that come in batches of different sizes."""
    classes = np.issubdtype(target.dtype, np.integer)
    scores, start = make_scores(names, classes, given), 0
    while start < len(target):
        size = SIZES[start % len(SIZES)]
        scores.add(prediction[start : start + size], target[start : start + size])
        start += size
    return scores.result()


def test_ranks_by_sorting() -> None:
    draw = np.random.default_rng(0)
    scores = draw.integers(0, 5, (300, 9)).astype(np.float32)  # many are equal
    target = draw.integers(0, 9, 300)
    order = np.argsort(-scores, axis=1, kind="stable")
    wanted = (order == target[:, None]).argmax(axis=1)
    np.testing.assert_array_equal(rank_targets(scores, target), wanted)
    found = measure(scores, target, ["top3", "accuracy", "top9"], loss("cross_entropy"))
    assert list(found) == ["top3", "accuracy", "top9"]
    assert found == {
        **{"top3": (wanted < 3).mean(), "accuracy": (wanted == 0).mean()},
        "top9": 1.0,
    }
    right = scores.argmax(axis=1) == target
    some = measure(scores, target, ["accuracy"], loss("cross_entropy", ignore_index=3))
    assert some["accuracy"] == right[target != 3].mean()
    nothing = measure(scores[:4], np.full(4, 3), ["top2"], loss("cross_entropy", ignore_index=3))
    assert nothing == {"top2": None}
    scores[:, 0] = np.nan
    assert (rank_targets(scores, np.zeros(300, int)) == 8).all()


def test_targets_with_several_classes_a_row() -> None:
    draw = np.random.default_rng(2)
    scores, target = draw.standard_normal((40, 5, 4)), draw.integers(0, 4, (40, 5))
    found = measure(scores, target, ["accuracy"], loss("cross_entropy"))
    assert found["accuracy"] == (scores.argmax(axis=-1) == target).mean()
    assert measure(scores[:, :, 0], target[:, 0], ["accuracy"], loss("mse")) != {}
    assert measure(scores[:, 0, 0], target[:, 0], ["accuracy"], loss("cross_entropy")) == {}


@pytest.mark.parametrize("shift", [0.0, 1e6], ids=["around 0", "far from 0"])
def test_values(shift: float) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(1)
    target = shift + draw.standard_normal((50, 3))
    prediction = target + 0.3 * draw.standard_normal((50, 3))
    found = measure(prediction, target, ["mae", "rmse", "r2"], loss("mse"))
    assert found["mae"] == pytest.approx(sklearn.mean_absolute_error(target, prediction), rel=1e-9)
    squared = sklearn.mean_squared_error(target, prediction)
    assert found["rmse"] == pytest.approx(np.sqrt(squared), rel=1e-9)
    weighted = sklearn.r2_score(target, prediction, multioutput="variance_weighted")
    assert found["r2"] == pytest.approx(weighted, rel=1e-9)
    assert measure(target[:1], target[:1], ["r2"], loss("mse")) == {"r2": None}
    assert measure(target[:, :2], target, ["mae"], loss("mse")) == {}


def test_logits() -> None:
    logits, given = np.array([[1.0], [-1.0], [2.0]]), np.array([[1.0], [1.0], [1.0]])
    assert measure(logits, given, ["accuracy"], loss("bce_with_logits")) == {"accuracy": 2 / 3}
