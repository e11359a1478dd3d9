from __future__ import annotations

import numpy as np
import pytest

from bpc.data import batches
from bpc.data.batches import Batches


def part(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(2.0 * rows).reshape(rows, 2), "target": np.arange(rows)}


@pytest.mark.parametrize(("rows", "batch"), [(10, 4), (8, 4), (3, 5), (1, 1), (1438, 64)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_holds_every_row_once(rows: int, batch: int, shuffle: bool) -> None:
    source = Batches(part(rows), batch, seed=3, shuffle=shuffle)
    sizes = [len(source.rows(0, step)) for step in range(len(source))]
    assert sum(sizes) == rows
    assert all(size == batch for size in sizes[:-1])
    assert sizes[-1] == rows - batch * (len(source) - 1)
    read = np.concatenate([source.rows(0, step) for step in range(len(source))])
    assert sorted(read.tolist()) == list(range(rows))


def test_steps_are_counted_across_epochs() -> None:
    source = Batches(part(10), 4)
    assert [source.locate(step) for step in (0, 2, 3, 7)] == [(0, 0), (0, 2), (1, 0), (2, 1)]


def test_take_keeps_inputs_and_targets_together() -> None:
    source = Batches(part(10), 4, seed=1, shuffle=True)
    taken = source.take(2, 1)
    assert (taken["x"][:, 0] == 2 * taken["target"]).all()
    assert taken["target"].tolist() == source.rows(2, 1).tolist()


def test_epochs_have_their_own_order_in_any_sequence_of_access() -> None:
    source = Batches(part(50), 8, seed=9, shuffle=True)
    forth = [source.rows(epoch, 1).tolist() for epoch in range(5)]
    back = [source.rows(epoch, 1).tolist() for epoch in reversed(range(5))]
    assert forth == back[::-1]
    assert len({tuple(rows) for rows in forth}) == 5


def test_batches_may_cross_the_blocks_in_which_an_order_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = [Batches(part(100), 9, 4, True).rows(1, step).tolist() for step in range(12)]
    monkeypatch.setattr(batches, "_BLOCK", 7)
    assert [Batches(part(100), 9, 4, True).rows(1, step).tolist() for step in range(12)] == whole
