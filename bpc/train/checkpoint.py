"""Checkpoints: `checkpoints/step-000120/` with the model, the optimizer and the state.

A checkpoint is written aside, synced and renamed, so that a name always leads to a whole one.
Older ones are removed only after a newer one is on the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bpc.entries import Entries
from bpc.errors import BpcError
from bpc.runtime.device import Device
from bpc.spec.words import show
from bpc.train.faults import NO_CHECKPOINT, CheckpointError, damaged
from bpc.train.files import (
    ASIDE,
    Files,
    Written,
    copy_file,
    remove_leftovers,
    remove_tree,
    write_new,
)
from bpc.train.logical import model_slots, optimizer_slots, restore, scalar_states, types_of
from bpc.train.saved import STATE_FILE, SavedFile, SavedState, encode_state, read_state
from bpc.train.tensorfile import encode_tensors, open_regular, read_tensors

FOLDER = "checkpoints"
MODEL, OPTIMIZER, BEST = "model.safetensors", "optimizer.safetensors", "best.safetensors"

_NAME = re.compile(r"step-([0-9]{6,18})")
_CHUNK = 1 << 20

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files are all there and hold what they should."""

    path: Path
    state: SavedState


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a checkpoint; `best`: a finished file with the best weights so far."""

    state: SavedState  # its `files` are filled in
    model: Tensors
    optimizer: Tensors
    best: Path | None = None
    best_written: Written | None = None


def write_checkpoint(files: Files, run: Path, contents: Contents) -> Path:
    """Write a checkpoint of a run; what was there before it stays as it is.

    Raises:
        OSError: what the system says; nothing half-written is left under a checkpoint's name.
    """
    root = run / FOLDER
    if not root.is_dir():
        files.make_folder(root)
        files.sync_folder(run)
    name = f"step-{contents.state.step:06d}"
    aside, path = root / f"{ASIDE}{name}", root / name
    remove_tree(files, aside)
    try:
        files.make_folder(aside)
        _fill(files, aside, contents)
        files.sync_folder(aside)
        _move_in(files, aside, path)
        files.sync_folder(root)
    except OSError:
        remove_leftovers(files, root)
        raise
    return path


def _fill(files: Files, folder: Path, contents: Contents) -> None:
    made = {
        MODEL: write_new(files, folder / MODEL, encode_tensors(contents.model)),
        OPTIMIZER: write_new(files, folder / OPTIMIZER, encode_tensors(contents.optimizer)),
    }
    if contents.best is not None:
        assert contents.best_written is not None, "a finished file has a digest"
        copy_file(files, contents.best, folder / BEST)
        made[BEST] = contents.best_written
    sizes = {name: SavedFile(bytes=file.size, sha256=file.sha256) for name, file in made.items()}
    state = contents.state.model_copy(update={"files": sizes})
    write_new(files, folder / STATE_FILE, [encode_state(state)])


def _move_in(files: Files, aside: Path, path: Path) -> None:
    """Only a damaged checkpoint can have this step already: a run never goes back over a good one.

    It makes room under a name that the next start removes.
    """
    if path.is_dir():
        old = path.with_name(f"{ASIDE}old-{path.name}")
        remove_tree(files, old)
        files.rename(path, old)
    files.rename(aside, path)


def prune(files: Files, run: Path, keep: int, step: int) -> None:
    """Remove what a crash left, and all checkpoints up to `step` but the `keep` newest.

    Raises:
        OSError: what the system says.
    """
    root = run / FOLDER
    remove_leftovers(files, root)
    for _, path in [item for item in list_checkpoints(run) if item[0] <= step][keep:]:
        # The name goes first, so that no half of a checkpoint is ever found under one.
        aside = root / f"{ASIDE}old-{path.name}"
        files.rename(path, aside)
        remove_tree(files, aside)


def list_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run by step, the newest first, not looked into."""
    root = run / FOLDER
    if not root.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in root.iterdir()]
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the state of a checkpoint and check every byte of the files beside it.

    Raises:
        CheckpointError: something is damaged or missing.
        OSError: what the system says.
    """
    state = read_state(path / STATE_FILE)
    match = _NAME.fullmatch(path.name)
    if match and int(match[1]) != state.step:
        raise damaged(path, f"the state in it is that of step {state.step}")
    known = {MODEL, OPTIMIZER, BEST}
    if not {MODEL, OPTIMIZER} <= set(state.files) <= known:
        raise damaged(path / STATE_FILE, f"files: needed are {MODEL} and {OPTIMIZER}")
    for name, file in state.files.items():
        _check_file(path / name, file)
    return Checkpoint(path, state)


def find_checkpoint(run: Path) -> tuple[Checkpoint, list[str]]:
    """The newest good checkpoint of a run, or the one at `run` itself, and what was passed over.

    Raises:
        CheckpointError: there is none.
        OSError: what the system says.
    """
    if (run / STATE_FILE).exists():
        return open_checkpoint(run), []
    passed: list[CheckpointError] = []
    for _, path in list_checkpoints(run):
        try:
            found = open_checkpoint(path)
        except CheckpointError as error:
            passed.append(error)
            continue
        warned = [f"passed over a damaged checkpoint: {_first(error)}" for error in passed]
        return found, warned
    if passed:
        raise CheckpointError([item for error in passed for item in error.diagnostics])
    raise _no_checkpoint(run)


def find_model(path: Path, best: bool = False) -> Path:
    """The file with the weights at `path`: itself, or that of a run or a checkpoint.

    Of a run that is those of its end, of its newest checkpoint if it never ended, or with `best`
    those of its best evaluation.

    Raises:
        CheckpointError: there is none.
    """
    if not path.is_dir():
        return path
    if best:
        if not (path / BEST).is_file():
            raise CheckpointError.at(NO_CHECKPOINT, f"{path} has no best model", None)
        return path / BEST
    if (path / MODEL).is_file() and not (path / STATE_FILE).exists():
        return path / MODEL
    return find_checkpoint(path)[0].path / MODEL


def load_checkpoint(found: Checkpoint, entries: Entries, device: Device) -> None:
    """Set every state of a device; nothing changes unless all of it fits.

    Raises:
        CheckpointError: names, shapes or types are not those of the network.
        OSError: what the system says.
    """
    slots = {MODEL: model_slots(entries), OPTIMIZER: optimizer_slots(entries)}
    scalars = _check_scalars(found, entries)
    arrays = {name: read_tensors(found.path / name, types_of(slots[name])) for name in slots}
    for name, wanted in slots.items():
        restore(device, wanted, arrays[name])
    for name, value in scalars.items():
        device.write_scalar(name, value)


def _check_scalars(found: Checkpoint, entries: Entries) -> dict[str, float | int]:
    state, needed = found.state, scalar_states(entries)
    whole = {name for name, is_whole in needed.items() if is_whole}
    if set(state.integers) != whole or set(state.reals) != set(needed) - whole:
        names = {*state.integers, *state.reals} ^ set(needed)
        shown = ", ".join(show(name) for name in sorted(names)[:5]) or "an integer for a number"
        reason = f"the control block differs from the network's: {shown}"
        raise damaged(found.path / STATE_FILE, reason)
    return state.scalars()


def _check_file(path: Path, file: SavedFile) -> None:
    with open_regular(path) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != file.bytes:
            raise damaged(path, f"{size:,} bytes, where {file.bytes:,} were written")
        digest = hashlib.sha256()
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != file.sha256:
        raise damaged(path, "the content is not what was written (its SHA-256 differs)")


def _first(error: BpcError) -> str:
    return error.diagnostics[0].message


def _no_checkpoint(run: Path) -> BpcError:
    if not run.is_dir():
        return CheckpointError.at(NO_CHECKPOINT, f"{run}: there is no such run", None)
    return CheckpointError.at(
        NO_CHECKPOINT,
        f"{run} has no checkpoint to continue from",
        None,
        help="train.checkpoint: {every: 100} keeps them as a run goes on",
    )
