"""A step is issued before the last one's values are read: no number, message or file differs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from late_device import LateDevice
from nets import (
    CONFIGURATIONS,
    SMALL,
    Unsynced,
    contents_of,
    metrics_of,
    resume_at,
    states_of,
    write_spec,
)

from bpc import api, continued
from bpc.data import read_files
from bpc.data.feeder import Feeder
from bpc.entries import UPDATE
from bpc.errors import BpcError, DataError, Interrupted, NonFiniteError
from bpc.runtime import select
from bpc.train import pipeline
from bpc.train.progress import NoProgress

LOG = """\
bpc: 1
name: logs
data: {source: inline, batch: 2, shuffle: false,
       x: [[1, 2], [3, 4], [1, 7], [2, 2], [5, 0], [7, 8]], y: [0, 1, 0, 1, 0, 1], classes: 2}
model:
  - linear: {name: same, out: 2, init: [[1, 0], [0, 1]], bias: false}
  - log: {name: ln}
  - linear: {name: out, out: 2}
loss: cross_entropy
train: {steps: 11, eval_every: 100, log_every: 1, optimizer: {sgd: {lr: 0.001}}}
"""
Runs = Callable[..., tuple[api.Net, api.Net]]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def be_late(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Has `reference` be late or not from here on."""
    plain = select.MAKERS["reference"]

    def choose(late: bool) -> None:
        maker = (lambda entries, wishes: LateDevice(entries)) if late else plain
        monkeypatch.setitem(select.MAKERS, "reference", maker)

    return choose


@pytest.fixture
def compile_both(be_late: Callable[[bool], None]) -> Runs:
    """The same network on a device that waits for each step, and on one that works ahead."""

    def build(text: str = SMALL, **settings: object) -> tuple[api.Net, api.Net]:
        spec = write_spec(Path(), text)
        sets = {key.replace("__", "."): value for key, value in settings.items()}
        nets = []
        for late in (False, True):
            be_late(late)
            nets.append(api.compile(spec, set=sets, device="reference"))
            assert isinstance(nets[-1].device, LateDevice) == late  # which makes the device
        return nets[0], nets[1]

    return build


def device_of(net: api.Net) -> LateDevice:
    assert isinstance(net.device, LateDevice)
    return net.device


def assert_same_run(nets: tuple[api.Net, api.Net], folders: tuple[Path, Path]) -> None:
    """Lines, weights, moments, counters and every checkpoint."""
    assert metrics_of(folders[0]) == metrics_of(folders[1])
    kept = [sorted(path.name for path in run.glob("checkpoints/*")) for run in folders]
    assert kept[0] == kept[1]
    for name in kept[0]:
        found = [contents_of(run / "checkpoints" / name) for run in folders]
        assert found[0] == found[1], name
    weights = [(run / "model.safetensors").read_bytes() for run in folders]
    assert weights[0] == weights[1]
    ended = [states_of(net) for net in nets]
    assert [name for name in ended[0] if ended[0][name] != ended[1][name]] == []


def train_both(nets: tuple[api.Net, api.Net], **wishes: Any) -> list[dict[str, Any]]:
    """Train each in a folder of its own, and compare all that is left."""
    folders = (Path("plain"), Path("late"))
    watchers = [Told() for _ in nets]
    results = [
        net.train(run_dir=run, files=Unsynced(), progress=watcher, **wishes)
        for net, run, watcher in zip(nets, folders, watchers, strict=True)
    ]
    assert_same_run(nets, folders)
    assert str(watchers[0].told) == str(watchers[1].told)  # a loss that is nan equals itself there
    assert timeless(results[0]) == timeless(results[1])
    return results


def timeless(result: dict[str, Any]) -> str:
    """What two equal runs share of a result."""
    left_out = ("run_dir", "seconds", "step_ms_median")
    return str({key: value for key, value in result.items() if key not in left_out})


class Told(NoProgress):
    """Keeps what a watcher is told, but for times."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        self.told.append((step, total, loss))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self.told.append({key: row[key] for key in row if key != "step_ms"})

    def on_note(self, text: str) -> None:
        self.told.append(text)


def fail_both(nets: tuple[api.Net, api.Net], kind: type[BpcError]) -> list[BpcError]:
    """Train each until it fails, and compare what they say and leave."""
    folders = (Path("plain"), Path("late"))
    errors = []
    for net, run in zip(nets, folders, strict=True):
        with pytest.raises(kind) as caught:
            net.train(run_dir=run, files=Unsynced())
        errors.append(caught.value)
    assert_same_run(nets, folders)
    told = [str(error.diagnostics[0].to_json()) for error in errors]
    assert told[0].replace("plain", "late") == told[1]
    results = [timeless(json.loads((run / "result.json").read_text())) for run in folders]
    assert results[0].replace("plain", "late") == results[1]
    return errors


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_number_and_file_is_the_same(compile_both: Runs, name: str) -> None:
    settings = {"train.checkpoint": "{every: 7, keep: 1000}", **CONFIGURATIONS[name]}
    nets = compile_both(**settings)
    train_both(nets)
    assert max(device_of(nets[1]).waits) == 2, "one was issued while another one was not settled"


def test_values_are_read_one_step_late_and_nothing_else_is(compile_both: Runs) -> None:
    """All but the first wait of each stretch comes after the next step was issued."""
    nets = compile_both(train__checkpoint="{every: 1000}", train__eval_every=20, train__log_every=3)
    train_both(nets)
    late = device_of(nets[1])
    # 40 steps in two stretches: each wait but the last of a stretch finds two steps issued.
    assert late.waits == ([2] * 19 + [1]) * 2


def test_a_pause_is_where_somebody_looks_at_states(compile_both: Runs) -> None:
    _, net = compile_both(train__checkpoint="{every: 5}", train__eval_every=100)
    net.train(files=Unsynced())
    assert device_of(net).waits == ([2] * 4 + [1]) * 8


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_is_not_finite(compile_both: Runs, nonfinite: str, accumulate: int) -> None:
    nets = compile_both(LOG, train__nonfinite=nonfinite, train__accumulate=accumulate)
    if nonfinite == "skip":
        results = train_both(nets)
        assert results[0]["skipped_steps"] >= 3
    else:
        errors = fail_both(nets, NonFiniteError)
        assert errors[0].diagnostics[0].message.startswith(f"step {2 if accumulate == 2 else 3}:")
    assert max(device_of(nets[1]).waits) == 2


def test_the_scale_at_its_floor(compile_both: Runs) -> None:
    """One row overflows at any scale: the scale falls each time, then the run ends."""
    data = "{source: inline, batch: 1, x: [[1], [1], [1], [1e6]], y: [[1], [1], [1], [1]]}"
    settings = {"train__precision": "fp16", "train__loss_scale": "{start: 8}", "loss": "mse"}
    nets = compile_both(LOG, data=data, model="[{linear: 1}]", train__steps=40, **settings)
    errors = fail_both(nets, NonFiniteError)
    assert "below its floor" in errors[0].diagnostics[0].message


def test_after_a_skipped_step_the_next_one_is_watched(compile_both: Runs) -> None:
    """Else a scale that has to fall by a factor of 2^10 would run each step twice."""
    scale = f"{{start: {2.0**28}}}"
    nets = compile_both(
        train__precision="fp16",
        train__loss_scale=scale,
        train__checkpoint="{every: 1000}",
        train__eval_every=100,
    )
    train_both(nets)
    rows = metrics_of(Path("late"))
    bad = {row["step"] for row in rows if row.get("event") == "skipped"}
    skipped = next(step for step in range(1, 41) if step not in bad) - 1
    assert skipped >= 3
    # The first bad step has another one behind it, both of which are void, and is run again behind
    # that one; those after it run alone, up to the first good one.
    assert device_of(nets[1]).waits[: skipped + 3] == [2, 2, *[1] * (skipped - 1), 1, 2]


def test_a_run_that_goes_on_behind_a_skipped_step_takes_each_step_once(compile_both: Runs) -> None:
    """What its checkpoint has of `found_inf` holds nothing."""
    settings = {"train__precision": "fp16", "train__loss_scale": f"{{start: {2.0**28}}}"}
    settings |= {"train__steps": "24", "train__eval_every": "100"}
    plain, _ = compile_both(train__checkpoint="{every: 1, keep: 99}", **settings)
    plain.train(run_dir="plain", files=Unsynced())
    events = [row["step"] for row in metrics_of(Path("plain")) if row.get("event") == "skipped"]
    last = max(events)
    assert 1 < last < 22
    _, late = compile_both(train__checkpoint="{every: 1000}", **settings)
    late.train(resume=resume_at(Path("plain"), last), files=Unsynced())
    assert device_of(late).waits == [2] * (24 - last - 1) + [1]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_row_that_cannot_be_used(
    compile_both: Runs, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_files, "MOST_HELD", 0)
    values = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    values[41, 1] = np.inf
    np.save("x.npy", values)
    np.save("y.npy", np.arange(60) % 3)
    data = "{source: npy, inputs: x.npy, target: y.npy, batch: 4, shuffle: false, "
    data += "split: {rows: [[50, 60]]}}"
    settings = {"train__eval_every": 100, "train__checkpoint": "{every: 1000}"}
    nets = compile_both(data=data, train__accumulate=accumulate, **settings)
    (error, _) = fail_both(nets, DataError)
    assert "row 41" in error.diagnostics[0].message
    assert max(device_of(nets[1]).waits) == 2


@pytest.mark.parametrize("bad", [None, 27])
def test_rows_that_stay_in_files_are_read_ahead_to_the_end(
    compile_both: Runs, bad: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a step that is run again, whose rows are read a second time."""
    monkeypatch.setattr(read_files, "MOST_HELD", 0)
    made = Feeder.__init__
    monkeypatch.setattr(Feeder, "__init__", lambda self, part, _=None: made(self, part, True))
    values = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    if bad is not None:
        values[bad] = 1e30
    np.save("x.npy", values)
    np.save("y.npy", np.arange(60) % 3)
    data = "{source: npy, inputs: x.npy, target: y.npy, batch: 4, shuffle: false, "
    data += "split: {rows: [[50, 60]]}}"
    settings: dict[str, object] = {"train__checkpoint": "{every: 1000}", "train__eval_every": 100}
    settings |= {"train__precision": "fp16", "train__steps": 12}
    nets = compile_both(data=data, train__nonfinite="skip", **settings)
    unforeseen: list[bool] = []
    taken = Feeder.take

    def take(self: Feeder, rows: np.ndarray) -> Any:
        unforeseen.append(self._ahead is None)
        return taken(self, rows)

    monkeypatch.setattr(Feeder, "take", take)
    results = train_both(nets)
    assert results[0]["skipped_steps"] == (0 if bad is None else 1)
    # Of each run the first batch and that of the evaluation; and the one that is read again.
    assert sum(unforeseen) == 2 * 2 + (bad is not None)


class Striker(NoProgress):
    """Does something after a step."""

    def __init__(self, at: int, action: Callable[[], object]):
        self.at, self.action = at, action

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        if step == self.at:
            self.action()


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def fail() -> None:
    raise RuntimeError("of the caller's own")


@pytest.mark.parametrize("how", ["a bad row", "a watcher that raises", "stop_after"])
def test_a_run_that_ends_early_leaves_no_late_device(
    compile_both: Runs, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stepper made before the run goes on as ever: a bad step does not hold what follows."""
    monkeypatch.setattr(read_files, "MOST_HELD", 0)
    values = np.ones((60, 3), np.float32)
    values[41, 1] = np.inf if how == "a bad row" else 1
    np.save("x.npy", values)
    np.save("y.npy", np.arange(60) % 3)
    data = "{source: npy, inputs: x.npy, target: y.npy, batch: 4, split: {rows: [[50, 60]]}}"
    settings = {"train__eval_every": 100, "train__checkpoint": "{every: 1000}"}
    for net in compile_both(data=data, **settings):
        good, bad = np.ones((4, 3), np.float32), np.full((4, 3), np.inf, np.float32)
        part = {"x": np.concatenate([good, bad]), "target": np.array([0, 1, 2, 0] * 2)}
        stepper = net.stepper(part)
        wishes = {"stop_after": 5} if how == "stop_after" else {"progress": Striker(5, fail)}
        # An error that is kept keeps the frames that it went through.
        with pytest.raises((DataError, Interrupted, RuntimeError)) as _kept:
            net.train(run_dir=type(net.device).__name__, files=Unsynced(), **wishes)
        rows = ([0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [0, 1, 2, 3])
        assert [stepper.step(batch) for batch in rows] == [True, False, True, True]
        assert net.device.read_scalar("control.late") == 0


def test_a_signal_ends_the_run_after_the_steps_that_were_issued(
    compile_both: Runs, be_late: Callable[[bool], None]
) -> None:
    """One further step is on the device by then; the run goes on from there to the same end."""
    straight, late = compile_both(train__checkpoint="{every: 1000}", train__eval_every=100)
    straight.train(run_dir="plain", files=Unsynced())
    with pytest.raises(Interrupted, match="after step 10 of 40"):
        late.train(run_dir="late", files=Unsynced(), progress=Striker(9, terminate))
    be_late(True)
    continued.resume("late", device="reference")
    names = [f"{run}/checkpoints/step-000040" for run in ("plain", "late")]
    found = [contents_of(Path(name)) for name in names]
    assert found[0] == found[1]


def test_a_run_stops_after_the_step_that_was_named(compile_both: Runs) -> None:
    _, late = compile_both(train__checkpoint="{every: 1000}", train__eval_every=100)
    with pytest.raises(Interrupted, match="after step 9 of 40"):
        late.train(run_dir="late", files=Unsynced(), stop_after=9)
    assert late.device.read_scalar("control.window") == 9


def test_time_is_counted_once(compile_both: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody does between two steps is time of a step where the device is at work then.

    A clock that each look moves by 1, and a watcher that looks 100 times.
    """
    ticks = itertools.count()
    monkeypatch.setattr(pipeline.time, "perf_counter", lambda: float(next(ticks)))
    nets = compile_both(train__checkpoint="{every: 1000}", train__eval_every=10)
    seconds = []
    for net, run in zip(nets, ("plain", "late"), strict=True):

        class Slow(NoProgress):
            def on_step(self, step: int, total: int, loss: float | None) -> None:
                for _ in range(100):
                    next(ticks)

        seconds.append(net.train(run_dir=run, files=Unsynced(), progress=Slow())["seconds"])
    # 40 steps, each of two looks at the clock; ahead, nine waits of ten lie within others' work.
    assert seconds[0] == 40
    assert seconds[1] == 4 * (10 + 9 * 100)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_mean_loss_beyond_all_numbers_skips_the_step(tmp_path: Path, device: str) -> None:
    """Of a finite sum and a total weight below 1: no weight moves."""
    net = api.compile(write_spec(tmp_path), device=device)
    net.stepper()
    before = net.parameters()
    for weight, found in ((0.5, 1), (2.0, 0), (0.0, 0)):
        net.device.write_scalar("control.loss", 0.9 * sys.float_info.max)
        net.device.write_scalar("control.weight", weight)
        net.device.run(UPDATE, net.device.rows)
        assert net.device.read_scalar("control.found_inf") == found
        if found:
            for name, value in net.parameters().items():
                assert (value == before[name]).all()


def test_single_steps_wait(compile_both: Runs) -> None:
    """`Stepper.step` says whether the weights moved, so that it cannot be late."""
    plain, late = compile_both()
    told = []
    for net in (plain, late):
        stepper = net.stepper()
        told.append([(stepper.step([at, at + 1]), stepper.loss()) for at in range(6)])
    assert told[0] == told[1]
    assert set(device_of(late).waits) == {1}
