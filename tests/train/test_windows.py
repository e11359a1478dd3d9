from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bpc.data.batches import Batches
from bpc.train.control import LossTerms, initial_control
from bpc.train.windows import plan_windows


def batches(rows: int = 50, batch: int = 16) -> Batches:
    return Batches({"target": np.arange(rows)}, batch)


@pytest.mark.parametrize(
    ("epochs", "steps", "accumulate", "asked", "expected"),
    [
        (None, None, 1, None, 4),  # one epoch of 16, 16, 16, 2 rows
        (2.0, None, 1, None, 8),
        (0.5, None, 1, None, 2),
        (2.0, 5, 1, None, 5),
        (1.0, 5, 1, None, 4),
        (None, 7, 1, None, 7),
        (2.0, None, 3, None, 3),  # 3 + 3 + 2 batches
        (None, 2, 3, None, 2),
        (1.0, 2, 1, 9, 9),  # what the call says counts
    ],
)
def test_what_ends_first_ends_the_run(
    make: Any, epochs: Any, steps: Any, accumulate: int, asked: Any, expected: int
) -> None:
    train = replace(make().spec.train, epochs=epochs, steps=steps, accumulate=accumulate)
    assert len(plan_windows(batches(), train, asked)) == expected


def test_windows_follow_the_batches_across_epochs(make: Any) -> None:
    train = replace(make().spec.train, epochs=2.0, steps=None, accumulate=3)
    windows = [plan_windows(batches(), train, None)[i] for i in range(3)]
    assert [[len(rows) for rows in window.batches] for window in windows] == [
        [16, 16, 16],
        [2, 16, 16],
        [16, 2],
    ]
    assert [window.epoch for window in windows] == [1, 2, 2]
    assert [window.ends_epoch for window in windows] == [False, True, True]


def test_terms_are_counted_before_the_loss_is_computed(make: Any) -> None:
    spec = make().spec
    rows = [np.array([0, 1, 2]), np.array([4])]
    classes = np.array([2, 0, 2, 1, 0])
    assert LossTerms(spec, classes).count(rows) == 4
    assert LossTerms(spec, np.zeros((5, 3, 2))).count(rows) == 24
    options = {**spec.loss.options, "ignore_index": 2}
    ignoring = replace(spec, loss=replace(spec.loss, options=options))
    assert LossTerms(ignoring, classes).count(rows) == 2


def test_the_scale_starts_at_one_unless_storage_is_fp16(make: Any) -> None:
    assert initial_control(make().spec, 10)["control.scale"] == 1
    assert initial_control(make(train__precision="bf16").spec, 10)["control.scale"] == 1
    control = initial_control(make(train__precision="fp16", seed=2**64 - 1).spec, 10)
    assert control["control.scale"] == 65536
    assert (control["control.seed"], control["control.total"]) == (-1, 10)
