"""Nobody can read the table any more: the run goes on and keeps what it learns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bpc.cli import progress
from bpc.cli.progress import TableProgress

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
bpc: 1
name: small
data: {source: synthetic, shape: [5], classes: 3, rows: 24, test_rows: 9, batch: 8}
model: [linear: 3]
loss: cross_entropy
train: {steps: 300, optimizer: {sgd: {lr: 0.1}}, eval_every: 1, checkpoint: {every: 100}}
"""
TRAIN = [sys.executable, "-m", "bpc", "train", "net.yaml", "--device", "reference"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
NEEDS_FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk at hand")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(SPEC)


def check_finished() -> None:
    run = Path("runs/small-1")
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("done", 300)
    assert (run / "model.safetensors").exists() and (run / "checkpoints/step-000300").is_dir()


@pytest.mark.parametrize("errors_too", [False, True])
def test_a_reader_that_has_seen_enough(errors_too: bool) -> None:
    process = subprocess.Popen(
        TRAIN,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline().startswith("small   18 parameters")
    process.stdout.close()
    noise = process.stderr.read() if process.stderr else ""
    if process.stderr:
        process.stderr.close()
    assert (process.wait(), noise) == (1, "")
    check_finished()


@NEEDS_FULL
def test_a_full_disk_is_said_once() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            TRAIN, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    reason = "standard output can no longer be written: No space left on device"
    assert done.stderr == f"note: {reason}; the run goes on without its table\n"
    assert done.returncode == 1
    check_finished()


@NEEDS_FULL
def test_notes_that_cannot_be_written_stop_nothing() -> None:
    Path("net.yaml").write_text(
        SPEC.replace("300,", "300, precision: fp16, loss_scale: {start: 1e30},")
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            TRAIN, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.returncode == 0
    check_finished()
    assert json.loads(Path("runs/small-1/result.json").read_text())["skipped_steps"] > 0


@pytest.mark.parametrize("words", [TRAIN[3:], ["config", "net.yaml"]], ids=lambda words: words[0])
def test_output_that_was_closed_before_is_no_fault(words: list[str]) -> None:
    line = '"$@" >&-'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *TRAIN[:3], *words],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if words[0] == "train":
        check_finished()


def test_a_table_ends_with_its_first_line_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fail(text: str) -> Any:
        tried.append(text)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(progress, "show", fail)
    monkeypatch.setattr(progress, "give_up_stdout", lambda: None)
    table = TableProgress()
    assert not table.lost
    for step in (1, 2, 3):
        table.on_evaluation({"epoch": 1, "step": step})
    assert table.lost and len(tried) == 1
