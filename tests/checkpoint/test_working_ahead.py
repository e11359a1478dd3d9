"""A step is issued before the last one's values are read: no number, message or file differs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from late_device import LateDevice
from nets import CONFIGURATIONS, SMALL, Unsynced, contents_of, metrics_of, states_of, write_spec

from bpc import api, continued
from bpc.data import read_files
from bpc.errors import BpcError, DataError, Interrupted, NonFiniteError
from bpc.runtime import select
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
    for name in ("model.safetensors",):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    ended = [states_of(net) for net in nets]
    assert [name for name in ended[0] if ended[0][name] != ended[1][name]] == []


def train_both(nets: tuple[api.Net, api.Net], **wishes: Any) -> list[dict[str, Any]]:
    """Train each in a folder of its own, and compare all that is left."""
    folders = (Path("plain"), Path("late"))
    results = [
        net.train(run_dir=run, files=Unsynced(), **wishes)
        for net, run in zip(nets, folders, strict=True)
    ]
    assert_same_run(nets, folders)
    for result in results:
        for key in ("run_dir", "seconds", "step_ms_median", "device_summary"):
            del result[key]
    assert str(results[0]) == str(results[1])  # a loss that is nan equals itself there
    return results


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
    nets = compile_both(data=data, train__accumulate=accumulate, train__eval_every=100)
    (error, _) = fail_both(nets, DataError)
    assert "row 41" in error.diagnostics[0].message


class Striker(NoProgress):
    """Asks for the end after a step, as a signal does."""

    def __init__(self, at: int):
        self.at = at

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_ends_the_run_after_the_steps_that_were_issued(
    compile_both: Runs, be_late: Callable[[bool], None]
) -> None:
    """One further step is on the device by then; the run goes on from there to the same end."""
    straight, late = compile_both(train__checkpoint="{every: 1000}", train__eval_every=100)
    straight.train(run_dir="plain", files=Unsynced())
    with pytest.raises(Interrupted, match="after step 10 of 40"):
        late.train(run_dir="late", files=Unsynced(), progress=Striker(9))
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


def test_single_steps_wait(compile_both: Runs) -> None:
    """`Stepper.step` says whether the weights moved, so that it cannot be late."""
    plain, late = compile_both()
    told = []
    for net in (plain, late):
        stepper = net.stepper()
        told.append([(stepper.step([at, at + 1]), stepper.loss()) for at in range(6)])
    assert told[0] == told[1]
    assert set(device_of(late).waits) == {1}
