"""The folder of a run: its spec, `metrics.jsonl`, `model.safetensors` and `result.json`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bpc.errors import BpcError, UsageError
from bpc.spec.model import Spec
from bpc.spec.resolved import write_resolved
from bpc.train.checkpoint import FOLDER as CHECKPOINTS
from bpc.train.checkpoint import MODEL
from bpc.train.faults import NO_CHECKPOINT, CheckpointError
from bpc.train.files import Files, remove_leftovers, replace_file
from bpc.train.lock import LOCK_FILE, FolderLock, is_locked
from bpc.train.metrics import plain
from bpc.train.saved import STATE_FILE
from bpc.train.tensorfile import encode_tensors

RUNS = Path("runs")
NOT_EMPTY = "BPC0602"
RESULT = "result.json"
SPEC, RESOLVED, DATA = "spec", "spec.resolved.yaml", "data.json"


class RunFolder:
    """Writes a run's files; each appears whole or not at all, `metrics.jsonl` grows.

    The folder is this process's until `release`.
    """

    def __init__(self, path: Path, files: Files | None = None):
        """Take the folder.

        Raises:
            UsageError: another process trains into it.
        """
        self.path = path
        self.files = files or Files()
        self._lock = FolderLock(path)

    @property
    def metrics_path(self) -> Path:
        """Where the metrics go."""
        return self.path / "metrics.jsonl"

    def begin(self, spec: Spec, companions: Mapping[str, str]) -> None:
        """Keep the spec, and by name what else decides bits on the device; what an earlier end of
        the run left is its end no more.

        Raises:
            OSError: what the system says; what an earlier end left is still there.
        """
        remove_leftovers(self.files, self.path)
        self._write_spec(spec)
        for name, text in companions.items():
            self._write_text(name, text)
        for name in (RESULT, MODEL):
            self.files.remove(self.path / name)

    def _write_spec(self, spec: Spec) -> None:
        """The spec and what it extends as they were read, and all of it in one file."""
        # A run that goes on from what its folder kept leaves that as it is.
        if Path(spec.path).resolve().parent != self.path.resolve():
            for number, source in enumerate(spec.files):
                name = f"{SPEC}.base{number}.yaml" if number else f"{SPEC}.yaml"
                self._write_text(name, source.text)
        self._write_text(RESOLVED, write_resolved(spec))

    def _write_text(self, name: str, text: str) -> None:
        replace_file(self.files, self.path / name, [text.encode()])

    def write_data(self, facts: Mapping[str, object]) -> None:
        """Keep what rows to predict for need: names of classes, scales, what fills gaps."""
        text = json.dumps(plain(facts), allow_nan=False) + "\n"
        self._write_text(DATA, text)

    def write_result(self, result: Mapping[str, object]) -> None:
        """Say how the run ended."""
        text = json.dumps(plain(result), indent=2, allow_nan=False) + "\n"
        replace_file(self.files, self.path / RESULT, [text.encode()])

    def write_model(self, model: Mapping[str, NDArray[Any]]) -> None:
        """Keep the weights by name."""
        replace_file(self.files, self.path / MODEL, encode_tensors(model))

    def release(self) -> None:
        """Let other processes train into the folder."""
        self._lock.release()


def make_run_folder(
    name: str, wished: str | os.PathLike[str] | None, files: Files | None = None
) -> RunFolder:
    """Make the folder of a new run: `wished`, or `runs/<name>-<n>` with the next free n.

    Raises:
        UsageError: `wished` exists and is no empty folder, `runs` is a file, or another process
            trains into it.
    """
    if wished is None:
        return RunFolder(_make_next(name), files)
    path = Path(wished)
    if path.exists() and not path.is_dir():
        raise _not_empty(path)
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()) and not is_locked(path):
        raise _not_empty(path)
    made = RunFolder(path, files)
    # Two processes may have found it empty; the one that came second to the lock sees it here.
    if any(inner.name != LOCK_FILE for inner in path.iterdir()):
        made.release()
        raise _not_empty(path)
    return made


def open_run_folder(path: Path) -> RunFolder:
    """Take the folder of a run that is there already.

    Raises:
        UsageError: another process trains into it.
        CheckpointError: there is no such folder, or it is that of a checkpoint.
    """
    if not path.is_dir():
        raise CheckpointError.at(NO_CHECKPOINT, f"{path}: there is no such run", None)
    if (path / STATE_FILE).exists():
        raise _no_run_but_a_checkpoint(path)
    return RunFolder(path)


def find_spec(target: str | os.PathLike[str]) -> Path:
    """The spec at `target`, or the resolved one of the run (or of a checkpoint of it) there.

    Raises:
        CheckpointError: it is a folder, but not that of a run.
    """
    path = Path(target)
    if not path.is_dir():
        return path
    folder = path.parent.parent if (path / STATE_FILE).exists() else path
    if not (folder / RESOLVED).is_file():
        message = f"{path} is not the folder of a run: it has no {RESOLVED}"
        raise CheckpointError.at(NO_CHECKPOINT, message, None)
    return folder / RESOLVED


def _no_run_but_a_checkpoint(path: Path) -> BpcError:
    """What goes on writes its weights and its spec beside, and would spoil the checkpoint."""
    inside = path if path.parent.name == CHECKPOINTS else path.resolve()
    message = f"{path} is a checkpoint; a run goes on in its own folder, from the newest one there"
    help = "copy it into the folder checkpoints/ of a run, and go on with that run"
    if inside.parent.name == CHECKPOINTS:
        help = f"bpc train --resume {shlex.quote(str(inside.parent.parent))}"
    return CheckpointError.at(NO_CHECKPOINT, message, None, help=help)


def _not_empty(path: Path) -> UsageError:
    error = UsageError.at(
        NOT_EMPTY,
        f"{path} is not an empty folder, and a run overwrites nothing",
        None,
        help="name a new folder, leave --run-dir out, or go on with a run: bpc train --resume",
    )
    assert isinstance(error, UsageError)
    return error


def _make_next(name: str) -> Path:
    """Making a folder is atomic, so that two runs at once get one each."""
    if RUNS.exists() and not RUNS.is_dir():
        message = f"{RUNS} is a file; runs are kept in a folder of that name"
        raise UsageError.at(NOT_EMPTY, message, None, help="name a folder with --run-dir")
    RUNS.mkdir(exist_ok=True)
    number = 1 + max((_number(path.name, name) for path in RUNS.iterdir()), default=0)
    while True:
        path = RUNS / f"{name}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _number(folder: str, name: str) -> int:
    text = folder.removeprefix(f"{name}-")
    return int(text) if text != folder and text.isascii() and text.isdigit() else 0
