"""What may change between the parts of a run, who may train into a folder, and the commands."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import SMALL, STEPS, compile_small, contents_of, stop_at, train_straight, write_spec

from bpc import continued
from bpc.errors import SpecError, UsageError
from bpc.train.faults import CheckpointError
from bpc.train.lock import FolderLock, is_locked

LAST = f"checkpoints/step-{STEPS:06d}"
ROOT = Path(__file__).resolve().parents[2]



@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped after step 5."""
    monkeypatch.chdir(tmp_path)
    stop_at(compile_small(write_spec(Path())), Path("run"), 5)
    return Path("run")


def test_a_changed_spec_is_refused_with_every_difference(run: Path, bpc: Any) -> None:
    text = SMALL.replace("lr: 0.01", "lr: 0.02").replace("batch: 4", "batch: 5")
    write_spec(Path(), text.replace("- relu: {name: act}", "- tanh: {name: act}"))
    code, out, err = bpc("train", "--resume", "run")
    assert (code, out) == (1, "")
    assert "BPC0652: 3 values of the spec changed since the run was at step 5" in err
    assert "data.batch: 4 -> 5 at net.yaml:3:" in err
    assert 'model.act: "relu" -> "tanh" at net.yaml:6:' in err
    assert "train.lr: 0.01 -> 0.02 at net.yaml:12:" in err
    assert "--allow data.batch --allow model.act --allow train.lr" in err


def test_changed_groups_are_named_at_their_own_lines(run: Path, bpc: Any) -> None:
    more = '  groups:\n    "fc1.*": {lr_factor: 0.5}\n  clip:\n    groups: {"fc1.*": 1}\n'
    write_spec(Path(), SMALL + more + "  schedule: {cosine: 0.1}\n")
    code, _, err = bpc("train", "--resume", "run")
    assert code == 1
    for key, line in (("clip.groups", 17), ("groups", 14), ("schedule.final", 18)):
        assert re.search(rf"train\.{key}: .* at net\.yaml:{line}:", err)


def test_allowed_changes_take_effect_and_are_said(run: Path, bpc: Any) -> None:
    words = ("train", "--resume", "run", "--set", "train.lr=0.5", "--allow", "train.lr")
    code, _, err = bpc(*words, "--json")
    assert code == 0 and err == ""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {row["lr"] for row in rows if row["step"] > 5} == {0.5}
    # What was allowed belongs to the run from then on.
    state = json.loads((run / LAST / "state.json").read_text())
    assert state["run"]["sets"] == {"train.lr": "0.5"}
    code, _, err = bpc("train", "--resume", "run", "--quiet")
    assert (code, err) == (0, "")


def test_a_longer_run_goes_on_where_the_shorter_one_ended(run: Path, bpc: Any) -> None:
    assert bpc("train", "--resume", "run", "--quiet")[0] == 0
    words = ("train", "--resume", "run", "--set", "train.steps=45", "--json")
    assert bpc(*words)[0] == 1
    code, out, _ = bpc(*words, "--allow", "train.steps")
    assert (code, json.loads(out)["steps"]) == (0, 45)


def test_an_allowed_key_must_exist(run: Path) -> None:
    with pytest.raises(UsageError, match=r"--allow train\.rl: there is no such key"):
        continued.resume(run, allow=["train.rl"])
    with pytest.raises(SpecError):
        continued.resume(run, set={"train.rl": 1}, allow=["train"])


def test_device_memory_and_checkpoints_may_change(run: Path) -> None:
    result = continued.resume(
        run, memory="1GiB", set={"train.checkpoint": "{every: 11, keep: 3}"}, device="reference"
    )
    assert result["steps"] == STEPS
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-000022", "step-000033", "step-000040"]


def test_what_the_run_was_started_with_is_remembered(tmp_path: Path) -> None:
    """`--set` in every form that Python has, a number of steps, and a spec that moved."""
    spec = write_spec(tmp_path)
    sets = {"train.lr": np.float64(0.03), "train.clip": {"global_norm": 1.0}, "data.batch": 6}
    straight = tmp_path / "straight"
    train_straight(compile_small(spec, sets), straight, steps=9)
    from bpc.errors import Interrupted

    with pytest.raises(Interrupted):
        compile_small(spec, sets).train(steps=9, run_dir=tmp_path / "run", stop_after=4)
    moved = tmp_path / "elsewhere.yaml"
    spec.rename(moved)
    with pytest.raises(CheckpointError, match=r"1 value .*"):
        continued.resume(tmp_path / "run", spec=moved, steps=10)
    continued.resume(tmp_path / "run")  # from its own copy of the spec
    name = "checkpoints/step-000009"
    assert contents_of(tmp_path / "run" / name) == contents_of(straight / name)


def test_other_data_under_the_same_spec_is_noticed(run: Path, monkeypatch: Any) -> None:
    from bpc.data.read import Dataset

    def read_otherwise(*words: Any) -> Dataset:
        found = read(*words)
        return Dataset({**found.train, "x": found.train["x"] + 1}, found.test)

    from bpc import api

    read = api.read
    monkeypatch.setattr(api, "read", read_otherwise)
    with pytest.raises(CheckpointError) as caught:
        continued.resume(run)
    (note,) = caught.value.diagnostics[0].notes
    assert note.text.startswith('data.contents: "22 rows, sha256 ')
    continued.resume(run, allow=["data.contents"])


def test_another_network_does_not_get_the_weights(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"\d tensors of it") as caught:
        continued.resume(run, set={"model.fc1.linear.out": 7}, allow=["model"])
    assert "the file has F32 [5, 6], the network F32 [5, 7]" in str(
        [note.text for note in caught.value.diagnostics[0].notes]
    )


def test_nothing_to_resume(tmp_path: Path, bpc: Any) -> None:
    code, _, err = bpc("train", "--resume", str(tmp_path / "none"))
    assert code == 1 and "there is no such run" in err
    code, _, err = bpc("train", "--resume", str(tmp_path))
    assert code == 1 and "has no checkpoint to continue from" in err
    for words in (("train",), ("train", "x.yaml", "--allow", "seed")):
        assert bpc(*words)[0] == 2
    assert bpc("train", "--resume", "x", "--run-dir", "y")[0] == 2


# -- one process at a time ------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(run: Path, bpc: Any) -> None:
    """Another process holds the lock, as a run of its own would."""
    program = (
        "import sys; from pathlib import Path; from bpc.train.lock import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(run)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        for words in (("--resume", "run"), ("net.yaml", "--run-dir", "run")):
            code, _, err = bpc("train", *words, "--device", "reference")
            assert code == 2, err
            assert f"run is in use: process {process.pid} on" in err
        assert is_locked(run)
        process.kill()  # dead processes hold nothing, though their file is still there
    assert (run / ".lock").exists() and not is_locked(run)
    assert bpc("train", "--resume", "run", "--quiet")[0] == 0
    assert not (run / ".lock").exists()


@pytest.mark.parametrize(
    ("content", "held"),
    [
        ("{host} {pid} {start}", True),
        ("{host} {pid} 1", False),  # the number is another process's by now
        ("{host} 999999999 5", False),
        ("elsewhere 1 5", True),  # nobody can tell from here
        ("nonsense", False),
        ("", False),
    ],
)
def test_where_the_file_system_has_no_locks_the_file_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, held: bool
) -> None:
    import errno
    import socket

    from bpc.train.lock import _start_of

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    pid = os.getpid()
    text = content.format(host=socket.gethostname(), pid=pid, start=_start_of(pid))
    (tmp_path / ".lock").write_text(text)
    if held:
        with pytest.raises(UsageError, match="in use"):
            FolderLock(tmp_path)
    else:
        FolderLock(tmp_path).release()
        assert not (tmp_path / ".lock").exists()


# -- the commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_said_command_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    text = SMALL.replace("steps: 40", "steps: 100000").replace("every: 1,", "every: 50000,")
    write_spec(tmp_path, text)
    words = [sys.executable, "-m", "bpc.cli.main", "train"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*words, "net.yaml", "--device", "reference", "--run-dir", "my run"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, deadline = tmp_path / "my run/metrics.jsonl", time.monotonic() + 30
    while not (metrics.exists() and metrics.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "go on with: bpc train --resume 'my run'" in err
    (checkpoint,) = (tmp_path / "my run/checkpoints").iterdir()
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    result = continued.resume(tmp_path / "my run", steps=step + 3, allow=["steps"])
    assert result["steps"] == step + 3


def test_export_and_verify_as_a_person_sees_them(run: Path, bpc: Any) -> None:
    code, out, _ = bpc("export", "run", "-o", "net.safetensors")
    assert code == 0
    assert out == (
        "net.safetensors: 4 tensors, 57 parameters, "
        f"{Path('net.safetensors').stat().st_size} bytes, from run/model.safetensors\n"
    )
    net = compile_small(Path("net.yaml"), {"seed": 8})
    net.load("net.safetensors")
    again = compile_small(Path("net.yaml"), {"seed": 9})
    again.load("run")
    for name, value in net.parameters().items():
        assert (again.parameters()[name] == value).all()
    (run / "model.safetensors").unlink()  # as if the run had been killed
    code, out, _ = bpc("export", "run", "-o", "other.safetensors", "--json")
    assert (
        code == 0 and json.loads(out)["source"] == "run/checkpoints/step-000005/model.safetensors"
    )
    assert Path("other.safetensors").read_bytes() == Path("net.safetensors").read_bytes()
    assert bpc("export", "run", "-o", "best.safetensors", "--best")[0] == 1  # never evaluated
    code, out, err = bpc("verify-resume", "net.yaml", "--at", "4", "--device", "reference")
    assert (
        code == 0
        and out.startswith("equal: ")
        and out.endswith("after 8 steps straight and after 4 + 4\n")
    )
    assert "4 steps in a new process" in err
    assert bpc("verify-resume", "net.yaml", "--at", "4", "--steps", "4")[0] == 2
