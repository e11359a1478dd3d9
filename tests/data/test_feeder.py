"""Reading ahead: the same batches in the same order, one ahead, faults carried, threads ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import api
from bpc.data import feeder, read_files
from bpc.data.batches import Batches
from bpc.data.feeder import Feeder, iterate
from bpc.data.sources.records import Half, Records, Rows, column_of
from bpc.data.stored import StoredRows
from bpc.errors import DataError, Interrupted, Span
from bpc.train.progress import NoProgress
from bpc.train.tensorfile import read_tensors

Make = Callable[..., api.Net]


class Watched:
    """A column that notes what is taken of it, and may wait first."""

    def __init__(self, array: np.ndarray, seconds: float = 0.0):
        self.inner = column_of(array)
        self.shape, self.dtype = self.inner.shape, self.inner.dtype
        self.row_bytes = self.inner.row_bytes
        self.seconds = seconds
        self.taken: list[list[int]] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self.inner)

    def take(self, rows: Rows) -> np.ndarray:
        self.taken.append(rows.tolist())
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)
        return self.inner.take(rows)


def stored(array: np.ndarray, seconds: float = 0.0) -> tuple[StoredRows, Watched]:
    column = Watched(array, seconds)
    records = Records({"x": column}, lambda row: f"'d.npy', row {row}", Span("net.yaml", 3, 1))
    half = Half({"x": column}, records, np.arange(len(array), dtype=np.int64))
    return StoredRows("x", half, None, checked=False), column


def batches(count: int = 10, size: int = 4) -> list[np.ndarray]:
    return [np.arange(at * size, (at + 1) * size) for at in range(count)]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("bpc-data")]


@pytest.mark.parametrize("threaded", [True, False, None])
def test_batches_come_in_order_and_whole(threaded: bool | None) -> None:
    x = np.arange(80.0).reshape(40, 2)
    rows, column = stored(x)
    source = Feeder({"x": rows, "target": np.zeros(40)}, threaded)
    source.follow(batches())
    for batch in batches():
        assert (source.take(batch)["x"] == x[batch]).all()
    source.close()
    assert [row for taken in column.taken for row in taken] == list(range(40))
    assert any(name.startswith("bpc-data") for name in column.threads) is (threaded is True)


def test_one_batch_is_read_ahead_and_no_more() -> None:
    rows, column = stored(np.arange(80.0).reshape(40, 2))
    source = Feeder({"x": rows}, threaded=True)
    source.follow(batches())
    for asked, batch in enumerate(batches()[:6], start=1):
        source.take(batch)
        time.sleep(0.02)
        assert len(column.taken) == asked + 1
    source.close()


def test_what_was_not_foretold_is_right_too() -> None:
    x = np.arange(80.0).reshape(40, 2)
    rows, _ = stored(x)
    source = Feeder({"x": rows}, threaded=True)
    source.follow(batches())
    for batch in [batches()[0], np.array([7, 3]), batches()[5], batches()[1], batches()[2]]:
        assert (source.take(batch)["x"] == x[batch]).all()
    source.follow(batches()[3:])
    for batch in batches()[3:]:
        assert (source.take(batch)["x"] == x[batch]).all()
    source.close()


@pytest.mark.parametrize("threaded", [True, False])
def test_a_fault_shows_with_its_own_batch(threaded: bool) -> None:
    x = np.arange(80.0).reshape(40, 2)
    x[13, 1] = np.nan
    rows, _ = stored(x)
    source = Feeder({"x": rows}, threaded)
    source.follow(batches())
    for batch in batches()[:3]:
        source.take(batch)
        time.sleep(0.01)
    with pytest.raises(DataError) as caught:
        source.take(batches()[3])
    source.close()
    (found,) = caught.value.diagnostics
    assert found.message == "'d.npy', row 13: x is nan at element [1], not a finite number"
    assert found.span == Span("net.yaml", 3, 1) and "on_bad: skip" in str(found.help)


def test_a_thread_is_used_where_batches_are_slow_and_not_where_they_are_fast() -> None:
    x = np.arange(400.0).reshape(200, 2)
    for seconds, wanted in ((0.0, False), (10 * feeder.HANDOVER_SECONDS, True)):
        rows, column = stored(x, seconds)
        source = Feeder({"x": rows})
        source.follow(batches(50))
        for batch in batches(50):
            source.take(batch)
        assert any(name.startswith("bpc-data") for name in column.threads) is wanted
        if wanted:  # and no longer than that
            column.seconds = 0.0
            source.follow(batches(50))
            for batch in batches(50):
                source.take(batch)
            column.threads.clear()
            source.follow(batches(5))
            for batch in batches(5):
                source.take(batch)
            assert column.threads == {"MainThread"}
        source.close()


def test_arrays_are_taken_without_a_thread() -> None:
    assert not Feeder({"x": np.zeros((4, 2)), "target": np.zeros(4)}).needed


def test_a_pass_gives_all_columns() -> None:
    x, y = np.arange(22.0).reshape(11, 2), np.arange(11)
    rows, _ = stored(x)
    part: dict[str, Any] = {"x": rows, "target": y}
    found = list(iterate(part, Batches(part, 4)))
    assert [len(batch["x"]) for batch in found] == [4, 4, 3]
    assert (np.concatenate([batch["x"] for batch in found]) == x).all()
    assert (np.concatenate([batch["target"] for batch in found]) == y).all()


def test_stored_rows_behave_like_an_array() -> None:
    x = np.arange(40.0, dtype=np.float32).reshape(10, 2, 2)
    rows, _ = stored(x)
    assert (rows.shape, rows.ndim, rows.dtype, len(rows)) == ((10, 2, 2), 3, np.float32, 10)
    for index in (slice(2, 5), np.array([3, 1]), slice(None, None, -1), np.arange(10) > 7, 4):
        assert (rows[index] == x[index]).all()
    assert (np.asarray(rows) == x).all() and np.asarray(rows, float).dtype == float


# -- in the training loop -------------------------------------------------------------------------


def write(folder: Path, bad: int | None = None) -> str:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(203, 6)).astype(np.float32)
    if bad is not None:
        x[bad, 2] = np.inf
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", rng.integers(0, 3, 203))
    return "{source: npy, inputs: x.npy, target: y.npy, batch: 16, split: {rows: [[150, 203]]}"


def force(monkeypatch: pytest.MonkeyPatch, threaded: bool | None) -> None:
    """Feeders of the loop that always or never use their thread, over columns that stay stored."""
    monkeypatch.setattr(read_files, "MOST_HELD", 0)
    made = Feeder.__init__
    monkeypatch.setattr(Feeder, "__init__", lambda s, part, t=None: made(s, part, threaded))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("more", ["", ", normalise: standard"])
def test_reading_ahead_changes_no_bit(
    work: Path, make: Make, monkeypatch: pytest.MonkeyPatch, device: str, more: str
) -> None:
    found = []
    for threaded in ("held", False, True):
        with monkeypatch.context() as patch:
            if threaded != "held":
                force(patch, bool(threaded))
            net = make(
                f"{write(work)}{more}}}", device=device, train__accumulate=3, train__epochs=3.5
            )
            final = net.train()["final"]
            found.append((final, {k: v.tobytes() for k, v in net.parameters().items()}))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("threaded", [True, False])
def test_ignored_targets_that_stay_stored_are_counted_alike(
    work: Path, make: Make, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    loss = "{cross_entropy: {ignore_index: 1}}"
    wanted = make(write(work) + "}", loss=loss)
    wanted.train()
    force(monkeypatch, threaded)
    found = make(write(work) + "}", loss=loss)
    found.train()
    assert {k: v.tobytes() for k, v in found.parameters().items()} == {
        k: v.tobytes() for k, v in wanted.parameters().items()
    }


@pytest.mark.parametrize("threaded", [True, False])
def test_a_bad_row_ends_the_run_and_keeps_the_weights(
    work: Path, make: Make, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    force(monkeypatch, threaded)
    net = make(write(work, bad=100) + ", shuffle: false}")
    with pytest.raises(DataError) as caught:
        net.train(run_dir="run")
    (found,) = caught.value.diagnostics
    assert found.message.startswith("'x.npy', row 100: x is inf at element [2]")
    assert found.notes[0].text == "the weights after step 6 are in run"
    weights = read_tensors(work / "run" / "model.safetensors")
    assert {name: weights[name].tobytes() for name in weights} == {
        name: value.tobytes() for name, value in net.parameters().items()
    }


def test_an_interrupted_run_ends_its_thread(
    work: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import signal

    class Stop(NoProgress):
        def on_step(self, step: int, total: int, loss: float | None) -> None:
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    force(monkeypatch, True)
    with pytest.raises(Interrupted):
        make(write(work) + "}").train(progress=Stop())
