"""`bpc train` on the reference, through the whole program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bpc.resources import spec_root

ROOT = Path(__file__).resolve().parents[2]
DIGITS = str(spec_root() / "digits_mlp.yaml")
LOG = """\
bpc: 1
name: logs
data: {source: inline, batch: 1, x: [[0]], y: [[1]]}
model:
  - log
  - linear: 1
loss: mse
train: {optimizer: {sgd: {lr: 0.1}}}
"""


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_of_a_run(run: Any) -> None:
    code, out, err = run("train", DIGITS, "--device", "reference", "--steps", "3", "--json")
    answer = json.loads(out)
    assert (code, err, answer["ok"]) == (0, "", True)
    assert (answer["steps"], answer["device"]) == (3, "reference")
    assert answer["planned_peak_bytes"] == answer["arena_bytes"] > 0
    assert set(answer["final"]) == {"train_loss", "test_loss", "test_accuracy"}
    assert answer["step_ms_median"] > 0 and answer["seconds"] > 0
    stored = json.loads((Path(answer["run_dir"]) / "result.json").read_text())
    assert stored["final"] == answer["final"]


def test_a_run_as_a_person_sees_it(run: Any) -> None:
    code, out, err = run("train", DIGITS, "--device", "reference", "--steps", "24")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("digits-mlp   50,826 parameters   fp32   reference (NumPy")
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "23"], ["2", "24"]]
    assert "on 359 held-out rows, 24 steps" in lines[4]
    assert lines[5] == "run: runs/digits-mlp-1"


def test_numbers_that_are_not_finite_end_with_4(run: Any) -> None:
    Path("logs.yaml").write_text(LOG)
    code, out, err = run("train", "logs.yaml", "--device", "reference", "--quiet")
    assert (code, out) == (4, "")
    assert "logs.yaml:5:5: error BPC0603: step 1: log1 is -inf at [0, 0]" in err
    code, out, _ = run("train", "logs.yaml", "--device", "reference", "--json")
    answer = json.loads(out)
    assert code == 4 and answer["errors"][0]["place"]["line"] == 5
    assert [answer[key] for key in ("node", "step", "element", "value")] == [
        *("log1", 1, [0, 0], "-inf")
    ]


def test_skipped_steps_are_said_on_stderr(run: Any) -> None:
    Path("logs.yaml").write_text(LOG)
    words = ("train", "logs.yaml", "--device", "reference", "--set", "train.nonfinite=skip")
    code, out, err = run(*words)
    assert code == 0 and err.startswith("note: step 1, skipped: log1 is -inf")
    assert "1 of 1 step was skipped" in out


def test_a_folder_in_use_is_wrong_usage(run: Any) -> None:
    Path("there").mkdir()
    Path("there/file").touch()
    code, _, err = run("train", DIGITS, "--device", "reference", "--run-dir", "there")
    assert code == 2 and "there is not an empty folder" in err


def test_sigterm_finishes_the_step_saves_and_ends_with_130() -> None:
    words = [sys.executable, "-m", "bpc.cli.main", "train", DIGITS, "--device", "reference"]
    words += ["--set", "train.log_every=1", "--set", "train.epochs=10000", "--run-dir", "there"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = Path("there/metrics.jsonl")
    deadline = time.monotonic() + 30
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    stored = json.loads(Path("there/result.json").read_text())
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert (stored["status"], stored["steps"]) == ("interrupted", steps[-1])
    assert f"interrupted after step {steps[-1]} of 230000" in err
    assert "bpc train --resume there" in err
    assert Path("there/model.safetensors").is_file()
    assert Path(f"there/checkpoints/step-{steps[-1]:06d}/state.json").is_file()
