"""Runs that go on: from a checkpoint of their folder to the end that they would have had."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bpc import api
from bpc.errors import Span
from bpc.runtime.device import PRODUCTS_FILE
from bpc.train.changes import check_unchanged
from bpc.train.checkpoint import Checkpoint, find_checkpoint
from bpc.train.loop import Resume
from bpc.train.progress import NoProgress, Progress
from bpc.train.run_folder import RESOLVED, RunFolder, open_run_folder
from bpc.train.saved import SavedRun, SavedState


def resume(
    run: str | os.PathLike[str],
    *,
    spec: str | os.PathLike[str] | None = None,
    set: Mapping[str, object] | None = None,
    device: str | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    seed: int | None = None,
    steps: int | None = None,
    allow: Collection[str] = (),
    progress: Progress | None = None,
    stop_after: int | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Go on with a run from its newest good checkpoint.

    Everything that computes is as it was: with the same device the result is that of a run which
    was never stopped, to the last bit. Device, threads and memory may differ freely.

    Args:
        run: the run's folder.
        spec: the spec, if it has moved since.
        set: further values that override the spec, on top of those that the run was started with.
        device: where to run; without it, where the run was started.
        memory, threads, seed: as in `bpc.compile`.
        steps: as in `Net.train`; without it, what the run was started with.
        allow: dotted keys of the spec that may have changed.
        progress: told of what goes on.
        stop_after, tensorboard: as in `Net.train`.

    Returns:
        What `Net.train` returns.

    Raises:
        CheckpointError: there is no good checkpoint, or the spec or the data changed.
        SpecError, DataError, UsageError, BudgetError, ToolError: as in `bpc.compile` and `train`.
    """
    watcher = NoProgress() if progress is None else progress
    folder = open_run_folder(Path(run))
    try:
        found, warned = find_checkpoint(folder.path)
        for text in warned:
            watcher.on_note(text)
        was = found.state.run
        given = _find_spec(was, folder) if spec is None else spec
        sets = {**was.sets, **(set or {})}
        if _is_own_copy(given, folder):
            watcher.on_note(f"the run goes on with its own copy of the spec: {given}")
            sets = {**_own_length(found.state), **sets}
        net = _compile(
            found.state,
            given,
            sets,
            device=was.device if device is None else device,
            memory=memory,
            threads=threads,
            seed=seed,
            products=_find_products(folder),
        )
        wished = was.steps if steps is None else steps
        _check(found, net, wished, allow, watcher)
        return net.train(
            wished,
            progress=watcher,
            stop_after=stop_after,
            resume=Resume(folder, found),
            tensorboard=tensorboard,
        )
    finally:
        folder.release()


def _compile(
    state: SavedState, spec: str | os.PathLike[str], sets: dict[str, object], **wishes: Any
) -> api.Net:
    """The network; one whose spec says no name keeps that of the run, wherever its file is now."""
    net = api.compile(spec, set=sets, **wishes)
    name = json.loads(state.values.get("name", "null"))
    if name in (None, net.spec.name) or net.spec.origins["name"] != "default":
        return net
    return api.compile(spec, set={**sets, "name": name}, **wishes)


def _check(
    found: Checkpoint,
    net: api.Net,
    steps: int | None,
    allow: Collection[str],
    watcher: Progress,
) -> None:
    for change in check_unchanged(found.state, net.spec, net.data, steps, allow):
        place = f" ({change.span})" if isinstance(change.span, Span) else ""
        watcher.on_note(f"changed since step {found.state.step}: {change}{place}")


def _find_products(folder: RunFolder) -> Path | None:
    """Which products a library computed for the run, if any: others would change bits."""
    file = folder.path / PRODUCTS_FILE
    return file if file.is_file() else None


def _find_spec(was: SavedRun, folder: RunFolder) -> str:
    """The spec as the run was started with it, or the folder's copy that has it all in one file.

    Only there are paths, which the spec has relative to its own place, those of the run.
    """
    if os.path.exists(was.spec) and os.path.abspath(was.spec) == was.absolute:
        return was.spec
    if os.path.exists(was.absolute):
        return was.absolute
    return str(folder.path / RESOLVED)


def _own_length(state: SavedState) -> dict[str, object]:
    """How long the spec itself says that the run is, where the copy has `--steps` in its place."""
    if state.run.steps is None:
        return {}
    keys = ("train.epochs", "train.steps")
    return {key: json.loads(state.values[key]) for key in keys if key in state.values}


def _is_own_copy(spec: str | os.PathLike[str], folder: RunFolder) -> bool:
    return Path(spec).resolve() == (folder.path / RESOLVED).resolve()
