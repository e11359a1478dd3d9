"""A run that is stopped anywhere and goes on is the run that was never stopped, byte by byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import (
    CONFIGURATIONS,
    SMALL,
    STEPS,
    compile_small,
    contents_of,
    go_on,
    metrics_of,
    resume_at,
    states_of,
    stop_at,
    train_straight,
    write_spec,
)

from bpc import continued
from bpc.data.feeder import Feeder
from bpc.data.stored import StoredRows
from bpc.errors import Interrupted
from bpc.train.faults import CheckpointError
from bpc.train.progress import NoProgress
from bpc.verify import verify_resume

ROOT = Path(__file__).resolve().parents[2]


def copy_until(straight: Path, step: int, run: Path) -> Path:
    """The run as a process left it that died after the checkpoint of `step`, its metrics ahead."""
    (run / "checkpoints").mkdir(parents=True)
    checkpoint = run / "checkpoints" / f"step-{step:06d}"
    shutil.copytree(straight / "checkpoints" / checkpoint.name, checkpoint)
    shutil.copy(straight / "metrics.jsonl", run)
    return checkpoint


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_stopped_at_every_step(tmp_path: Path, name: str) -> None:
    spec, straight = write_spec(tmp_path), tmp_path / "straight"
    net = compile_small(spec, CONFIGURATIONS[name])
    result = train_straight(net, straight)
    end = result["steps"]
    last = f"checkpoints/step-{end:06d}"
    expected, states = contents_of(straight / last), states_of(net)
    net = compile_small(spec, {**CONFIGURATIONS[name], "train.checkpoint.every": STEPS})
    if "overflows" in name:
        assert 3 < result["skipped_steps"] < STEPS - 3
    assert (end < STEPS - 3) == ("early" in name)
    for step in range(1, end):
        run = tmp_path / f"stopped-{step}"
        again = go_on(net, run, copy_until(straight, step, run))
        assert states_of(net) == states, f"stopped after step {step}"
        assert contents_of(run / last) == expected, f"stopped after step {step}"
        assert metrics_of(run) == metrics_of(straight)
        for key in ("final", "best", "skipped_steps", "steps", "stopped_early"):
            assert again[key] == result[key]
        assert (run / "best.safetensors").read_bytes() == (
            straight / "best.safetensors"
        ).read_bytes()


def test_rows_that_stay_in_a_file_go_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped rows, each batch read ahead by the thread: within an epoch and over its end."""
    monkeypatch.setattr("bpc.data.read_files.MOST_HELD", 0)
    monkeypatch.setattr("bpc.data.feeder.HANDOVER_SECONDS", -1.0)
    monkeypatch.setattr("bpc.data.feeder._SLOW_ENOUGH", 1)
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=draw.normal(size=(22, 5)), y=draw.integers(0, 3, 22))
    text = SMALL.replace("{source: synthetic, shape: [5], classes: 3, rows: 22, test_rows: 9, ", "")
    text = text.replace("data: batch: 4}", "data: {source: npz, file: rows.npz, batch: 4}")
    spec, straight = write_spec(tmp_path, text), tmp_path / "straight"
    settings = {"train.steps": 13, "train.accumulate": 2}
    net = compile_small(spec, settings)
    assert isinstance(net.data.train["x"], StoredRows)
    ahead: list[bool] = []
    take = Feeder.take

    def watched(self: Feeder, rows: Any) -> Any:
        ahead.append(self.reads_ahead)
        return take(self, rows)

    monkeypatch.setattr(Feeder, "take", watched)
    train_straight(net, straight)
    assert sum(ahead) > 13
    last = "checkpoints/step-000013"
    for step in (1, 4, 5, 8, 12):
        run = tmp_path / f"stopped-{step}"
        go_on(net, run, copy_until(straight, step, run))
        assert contents_of(run / last) == contents_of(straight / last), f"after step {step}"
        assert metrics_of(run) == metrics_of(straight)


@pytest.mark.parametrize("name", ["dropout", "early stopping", "fp16 with overflows", "bf16"])
def test_a_new_process_goes_on(tmp_path: Path, name: str) -> None:
    spec = write_spec(tmp_path)
    net = compile_small(spec, CONFIGURATIONS[name])
    train_straight(net, tmp_path / "straight")
    stop_at(compile_small(spec, CONFIGURATIONS[name]), tmp_path / "run", 17)
    words = [sys.executable, "-m", "bpc.cli.main", "train", "--resume", "run", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)["steps"]
    assert (steps < STEPS) == ("early" in name)
    last = f"checkpoints/step-{steps:06d}"
    assert contents_of(tmp_path / "run" / last) == contents_of(tmp_path / "straight" / last)


def test_resumed_twice_reads_every_row_as_often(tmp_path: Path) -> None:
    """20 rows in batches of 4, three epochs, stopped after 4 and after 9 steps."""
    settings = {"data.rows": 20, "train.steps": None, "train.epochs": 3}
    net = compile_small(write_spec(tmp_path), settings)
    seen: list[np.ndarray] = []
    write = net.device.write_rows

    def watch(name: str, array: np.ndarray, rows: np.ndarray) -> None:
        if name == "target":
            seen.append(np.array(rows))
        write(name, array, rows)

    net.device.write_rows = watch  # type: ignore[method-assign]
    train_straight(net, tmp_path / "straight")
    straight, seen[:] = [*seen], []
    stop_at(net_again(net), tmp_path / "run", 4)
    run, checkpoints = tmp_path / "run", tmp_path / "run" / "checkpoints"
    try:
        net.train(resume=resume_at(run, 4), stop_after=9)
    except Interrupted:
        go_on(net, run, checkpoints / "step-000009")
    assert [rows.tolist() for rows in seen] == [rows.tolist() for rows in straight]
    epochs = [np.concatenate(straight[k : k + 5]) for k in (0, 5, 10)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({epoch.tobytes() for epoch in epochs}) == 3


def test_the_scale_does_not_know_of_restarts(tmp_path: Path) -> None:
    """The counter since the last overflow goes on: 1024 until step 3, then 5 good steps of 512."""
    settings = {
        **{"train.precision": "fp16", "train.steps": 12, "train.log_every": 1},
        "train.loss_scale": "{start: 1024, growth_interval: 5}",
    }
    net = compile_small(write_spec(tmp_path), settings)
    net.data  # noqa: B018 (read now, spoilt below)
    straight = tmp_path / "straight"
    overflow_in(net, step=3)
    train_straight(net, straight)
    scales = [row["scale"] for row in metrics_of(straight) if "event" not in row]
    assert scales == [1024, 1024, *[512] * 5, *[1024] * 5]  # after each step
    for step in range(1, 12):
        run = tmp_path / f"run-{step}"
        go_on(net, run, copy_until(straight, step, run))
        assert metrics_of(run) == metrics_of(straight)
        assert contents_of(run / "checkpoints/step-000012") == contents_of(
            straight / "checkpoints/step-000012"
        )


def overflow_in(net: Any, step: int) -> None:
    """Make the gradients of one step overflow, by the number of the window."""
    device = net.device
    run = device.run

    def spoilt(entry: str, rows: int) -> None:
        run(entry, rows)
        if entry == "micro_step" and device.read_scalar("control.window") == step - 1:
            gradient = device.read_state("grad.fc2.weight")
            device.write_state("grad.fc2.weight", np.full_like(gradient, np.inf))

    device.run = spoilt


def net_again(net: Any) -> Any:
    """The same network with its initial weights."""
    net._set_initial(net.device)
    return net


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    net = compile_small(write_spec(tmp_path))
    result = train_straight(net, tmp_path / "run")
    before = metrics_of(tmp_path / "run")
    again = continued.resume(tmp_path / "run")
    assert again["final"] == result["final"] and again["steps"] == STEPS
    assert metrics_of(tmp_path / "run") == before


def test_a_damaged_checkpoint_is_passed_over_and_written_anew(tmp_path: Path) -> None:
    class Notes(NoProgress):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def on_note(self, text: str) -> None:
            self.texts.append(text)

    spec, run = write_spec(tmp_path), tmp_path / "run"
    train_straight(compile_small(spec), tmp_path / "straight")
    stop_at(compile_small(spec), run, 12)
    victim = run / "checkpoints/step-000012/model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\x55")
    notes = Notes()
    continued.resume(run, progress=notes)
    assert "passed over a damaged checkpoint" in notes.texts[0]
    assert "step-000012/model.safetensors" in notes.texts[0]
    for step in (12, STEPS):
        name = f"checkpoints/step-{step:06d}"
        assert contents_of(run / name) == contents_of(tmp_path / "straight" / name)


def test_verify_resume_compares_the_compiled_program(tmp_path: Path) -> None:
    settings = {**CONFIGURATIONS["dropout"], "train.checkpoint": None}
    found = verify_resume(write_spec(tmp_path), 3, 8, set=settings, device="cpu", threads=1)
    assert (found["at"], found["steps"], found["tensors"]) == (3, 8, 12)
    assert found["bytes"] > 3 * 4 * (5 * 6 + 6 + 6 * 3 + 3)


def test_verify_resume_names_the_first_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume_differently(run: Path, wishes: Any) -> None:
        continued.resume(run, set={"train.lr": 0.011}, allow=["train.lr", "train.optimizer"])

    monkeypatch.setattr("bpc.verify.resume_in_new_process", resume_differently)
    with pytest.raises(CheckpointError, match=r"first in reals: norm\.fc1\.weight: ") as caught:
        verify_resume(write_spec(tmp_path), 2, 5, device="reference")
    assert caught.value.exit_code == 1
