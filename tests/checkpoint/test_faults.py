"""Every write, sync and rename fails in turn: what is loaded is the whole old or new state."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from nets import (
    STEPS,
    FailingFiles,
    compile_small,
    contents_of,
    go_on,
    metrics_of,
    resume_at,
    stop_at,
    train_straight,
    write_spec,
)

from bpc.errors import Interrupted
from bpc.train.checkpoint import find_checkpoint, list_checkpoints
from bpc.train.files import ASIDE
from bpc.train.progress import NoProgress

KEEP = {"train.checkpoint.keep": 2, "train.eval_every": 1, "train.log_every": 1}
RARE = "{every: 40, keep: 2}"
AT = 12


class Notes(NoProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("straight")
    net = compile_small(write_spec(folder), {**KEEP, "train.checkpoint.keep": 1000})
    train_straight(net, folder / "run")
    return folder


def step_onto(net: Any, run: Path, files: FailingFiles, told: NoProgress | None = None) -> None:
    """Go on from step AT by one step, with its evaluation, best model and checkpoint."""
    with pytest.raises(Interrupted):
        net.train(resume=resume_at(run, AT), stop_after=AT + 1, files=files, progress=told)


def is_whole(checkpoint: Path, straight: Path) -> bool:
    """Whether a checkpoint is that of the run without faults. A best model that could not be
    written is not the best one: the one before it is, and the state must say so."""
    kept = straight / "run/checkpoints"
    found, expected = contents_of(checkpoint), contents_of(kept / checkpoint.name)
    best = found["state"]["loop"]["best"]["step"]
    then = contents_of(kept / f"step-{best:06d}")
    for item in (found, expected, then):
        del item["state"]["files"]["best.safetensors"]
    assert found["state"]["loop"].pop("best") == then["state"]["loop"].pop("best")
    del expected["state"]["loop"]["best"]
    assert found.pop("best.safetensors") == then["best.safetensors"]
    del expected["best.safetensors"]
    return found == expected


@pytest.mark.parametrize(
    ("code", "torn", "on"),
    [
        (errno.ENOSPC, False, False),
        (errno.ENOSPC, True, True),
        (errno.EIO, True, False),
        (errno.EROFS, False, True),
    ],
)
def test_each_call_fails_in_turn(
    tmp_path: Path, straight: Path, code: int, torn: bool, on: bool
) -> None:
    """`on`: all later calls fail too. All writes are short ones."""
    spec = write_spec(tmp_path)
    net, later = compile_small(spec, KEEP), compile_small(spec, {**KEEP, "train.checkpoint": RARE})
    stop_at(net, tmp_path / "before", AT)
    seen = count_calls(net, tmp_path / "before", tmp_path / "counted")
    for call in range(seen):
        run = tmp_path / f"run-{call}"
        shutil.copytree(tmp_path / "before", run)
        files, notes = FailingFiles(call, code, torn, on), Notes()
        try:
            step_onto(net, run, files, notes)
        except OSError as error:  # the start of a run says so itself
            assert error.errno == code
        found, warned = find_checkpoint(run)
        assert not warned and found.state.step in (AT, AT + 1)
        assert is_whole(found.path, straight), f"call {call}: {files.calls[call]}"
        for _, path in list_checkpoints(run):
            assert is_whole(path, straight)
        if call % 9 == 0:  # the disk has room again
            go_on(later, run, found.path)
            assert is_whole(run / f"checkpoints/step-{STEPS:06d}", straight)
            assert metrics_of(run) == metrics_of(straight / "run")
        assert call % 9 or not [path for path in run.rglob(f"{ASIDE}*")]
        shutil.rmtree(run)


def count_calls(net: Any, before: Path, run: Path) -> int:
    shutil.copytree(before, run)
    files = FailingFiles()
    step_onto(net, run, files)
    assert {"create", "write", "sync", "rename", "link", "make_folder"} == set(files.calls)
    return len(files.calls)


def test_a_checkpoint_that_fails_is_said_and_the_run_goes_on(
    tmp_path: Path, straight: Path
) -> None:
    """The disk is full from the third checkpoint on, until the run has ended."""

    class Full(FailingFiles):
        def write(self, descriptor: int, data: Any) -> int:
            if (tmp_path / "run/checkpoints/step-000002").is_dir() and not ended:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(descriptor, data)

    ended: list[int] = []

    class Watcher(Notes):
        def on_evaluation(self, row: Any) -> None:
            if row["step"] == STEPS:
                ended.append(1)

    notes = Watcher()
    net = compile_small(write_spec(tmp_path), KEEP)
    result = net.train(run_dir=tmp_path / "run", files=Full(), progress=notes)
    text = next(text for text in notes.texts if text.startswith("the checkpoint of step 3 could"))
    assert "model.safetensors: No space left on device" in text
    assert text.endswith("the last checkpoint is that of step 2")
    assert any("No space left" in note["text"] for note in result["notes"])
    assert (result["steps"], result["checkpoint_step"]) == (STEPS, STEPS)
    assert is_whole(tmp_path / f"run/checkpoints/step-{STEPS:06d}", straight)


def test_an_interrupted_run_that_cannot_save_says_where_its_weights_are(tmp_path: Path) -> None:
    class NoFolders(FailingFiles):
        def make_folder(self, path: Path) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    net = compile_small(write_spec(tmp_path), {"train.checkpoint": None})
    with pytest.raises(Interrupted, match="its checkpoint could not be written, the weights are"):
        net.train(run_dir=tmp_path / "run", stop_after=3, files=NoFolders())
    notes = json.loads((tmp_path / "run/result.json").read_text())["notes"]
    assert any("Read-only file system; there is none yet" in note["text"] for note in notes)


def test_lines_of_metrics_that_are_lost_do_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of half a line, then no room: the next line begins at a beginning."""
    from bpc.train import metrics

    class Full(metrics.FileIO):
        calls = 0

        def write(self, data: Any) -> int:
            Full.calls += 1
            if Full.calls in (3, 4):
                if Full.calls == 3:
                    return super().write(data[: len(data) // 2]) or 0
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data) or 0

    monkeypatch.setattr(metrics, "FileIO", Full)
    net, notes = compile_small(write_spec(tmp_path), {**KEEP, "train.steps": 6}), Notes()
    net.train(run_dir=tmp_path / "run", progress=notes)
    assert [row["step"] for row in metrics_of(tmp_path / "run")] == [1, 2, 4, 5, 6]
    assert any("lines of metrics are lost" in text for text in notes.texts)
