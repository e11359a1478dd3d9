"""Event files hold what `metrics.jsonl` holds; without the package a run says what to install."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpc import api, continued
from bpc.cli.main import main
from bpc.errors import Interrupted
from bpc.train.tensorboard import list_scalars

SPEC = """\
bpc: 1
name: small
data: {source: synthetic, shape: [5], classes: 3, rows: 24, test_rows: 9, batch: 8}
model: [linear: 6, relu, linear: 3]
loss: cross_entropy
train: {steps: 12, lr: 0.05, log_every: 2, eval_every: 4, checkpoint: {every: 4}}
"""


def write_spec(folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(SPEC)
    return path


def read_events(folder: Path) -> Iterator[Any]:
    """The events of all files in the order in which they were made."""
    from tensorboardX.proto.event_pb2 import Event

    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in files:
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            event = Event()
            event.ParseFromString(content[12 : 12 + size])
            content = content[16 + size :]
            yield event


def scalars_of(folder: Path) -> dict[tuple[str, int], float]:
    """The last value of each scalar at each step, purged ones left out."""
    found: dict[tuple[str, int], float] = {}
    for event in read_events(folder):
        if event.HasField("session_log"):
            found = {key: value for key, value in found.items() if key[1] < event.step}
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    return found


def logged(run: Path) -> dict[tuple[str, int], float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        (name, row["step"]): struct.unpack("f", struct.pack("f", value))[0]
        for row in rows
        for name, value in list_scalars(row)
    }


def test_event_files_say_what_the_log_says(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    net = api.compile(write_spec(tmp_path), set={"train.tensorboard": True}, device="reference")
    net.train(run_dir=tmp_path / "run")
    found = scalars_of(tmp_path / "run" / "tensorboard")
    assert found == logged(tmp_path / "run")
    names = {name for name, _ in found}
    assert {"loss/train", "loss/test", "metrics/accuracy", "train/lr", "train/scale"} <= names
    assert {"train/gradient_norm", "gradient_norm/linear1.weight", "zero_units/relu1"} <= names
    assert {step for name, step in found if name == "loss/test"} == {4, 8, 12}


def test_a_run_that_goes_on_has_one_curve(tmp_path: Path) -> None:
    """Stopped after step 6, whose checkpoint is lost: it goes on from step 4."""
    pytest.importorskip("tensorboardX")
    spec, run, events = write_spec(tmp_path), tmp_path / "run", tmp_path / "events"
    with pytest.raises(Interrupted):
        net = api.compile(spec, device="reference")
        net.train(run_dir=run, stop_after=6, tensorboard=events)
    (run / "checkpoints" / "step-000006" / "state.json").write_bytes(b"")
    continued.resume(run, tensorboard=events, device="reference")
    found = scalars_of(events)
    assert len(list(events.iterdir())) == 2 and found == logged(run)
    assert not (run / "tensorboard").exists()


def test_without_the_package_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bpc.train.tensorboard.PACKAGE", "no_package_of_this_name")
    words = ["train", str(write_spec(tmp_path)), "--device", "reference", "--run-dir"]
    run = tmp_path / "run"
    assert main([*words, str(run), "--tensorboard", str(tmp_path / "events")]) == 1
    assert 'help: pip install "bpc[tensorboard]"' in capsys.readouterr().err
    assert main([*words, str(run), "--set", "train.tensorboard=true"]) == 1
    assert not run.exists()
