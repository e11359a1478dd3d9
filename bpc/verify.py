"""Shows on a user's own spec that a run which is stopped and resumed is the run itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc import api
from bpc.entries import Entries
from bpc.errors import BpcError, Interrupted, ToolError, UsageError
from bpc.train.checkpoint import BEST, MODEL, OPTIMIZER, Checkpoint, find_checkpoint
from bpc.train.faults import RESUME_DIFFERS, CheckpointError
from bpc.train.logical import model_slots, optimizer_slots, types_of
from bpc.train.loop import INTERRUPTED
from bpc.train.stopping import say_end
from bpc.train.tensorfile import read_tensors
from bpc.types import count_of

BAD_STEPS = "BPC0657"
CHILD_FAILED = "BPC0658"

# The one thing that two equal runs do not share is how long they took.
_TIMES = ("seconds", "step_ms")


@dataclass(slots=True)
class _Compared:
    nbytes: int = 0
    tensors: int = 0
    scalars: int = 0
    rows: int = 0


def verify_resume(
    spec: str | os.PathLike[str],
    at: int,
    steps: int | None = None,
    told: Callable[[str], None] = lambda text: None,
    **wishes: Any,
) -> dict[str, Any]:
    """Train twice, once straight and once with a stop and a new process, and compare every byte.

    Args:
        spec: the YAML file.
        at: stop after this step.
        steps: of the whole run; without it, twice `at`.
        told: progress.
        wishes: as in `bpc.compile`.

    Returns:
        at, steps (fewer than were asked for where early stopping ended the run), device, bytes,
        tensors, scalars, metrics_rows: what was compared and is equal.

    Raises:
        CheckpointError: the resumed run differs; the message names the first difference.
        UsageError: `at` does not lie within the run.
        ToolError: the new process failed.
        Interrupted: a signal asked for the end; nothing is left of the runs.
    """
    whole = 2 * at if steps is None else steps
    if not 1 <= at < whole:
        message = f"a stop after step {at} of {whole}: it must be at least 1 and less than {whole}"
        raise UsageError.at(BAD_STEPS, message, None)
    wishes = {**wishes, "set": _with_checkpoint(spec, whole, wishes)}
    with tempfile.TemporaryDirectory(prefix="bpc-verify-") as folder:
        straight, resumed = Path(folder) / "straight", Path(folder) / "resumed"
        told(f"{count_of(whole, 'step')} straight")
        net = api.compile(spec, **wishes)
        done = _train_straight(net, whole, straight)
        end = done["steps"]
        if at >= end:
            raise _ends_before(at, whole, done)
        told(f"{count_of(at, 'step')}, then a checkpoint")
        _stop_at(api.compile(spec, **wishes), at, whole, resumed)
        told(f"{count_of(end - at, 'step')} in a new process")
        resume_in_new_process(resumed, wishes)
        told("comparing")
        found = compare_runs(straight, resumed, net.entries)
    return {
        **{"at": at, "steps": end, "device": done["device_summary"]},
        **{"bytes": found.nbytes, "tensors": found.tensors, "scalars": found.scalars},
        "metrics_rows": found.rows,
    }


def resume_in_new_process(run: Path, wishes: Mapping[str, Any]) -> None:
    """Run `bpc train --resume`.

    Raises:
        ToolError: it failed; with what it said.
    """
    words = [sys.executable, "-m", "bpc.cli.main", "train", "--resume", str(run), "--quiet"]
    for name in ("threads", "memory"):
        if wishes.get(name) is not None:
            words += [f"--{name}", str(wishes[name])]
    package = str(Path(api.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-20:])
        message = f"the process that resumed the run ended with {done.returncode}:\n{last}"
        raise ToolError.at(CHILD_FAILED, message, None)


def compare_runs(straight: Path, resumed: Path, entries: Entries) -> _Compared:
    """Compare the newest checkpoints of two runs, and their metrics, except for times.

    Raises:
        CheckpointError: they differ, or one has no checkpoint.
    """
    first, second = find_checkpoint(straight)[0], find_checkpoint(resumed)[0]
    found = _Compared()
    _compare_states(first, second, found)
    for name, slots in ((MODEL, model_slots(entries)), (OPTIMIZER, optimizer_slots(entries))):
        wanted = types_of(slots)
        _compare_tensors(
            read_tensors(first.path / name, wanted), read_tensors(second.path / name, wanted), found
        )
    if first.state.files.get(BEST) != second.state.files.get(BEST):
        raise _differs("best.safetensors", first.state.files.get(BEST), second.state.files[BEST])
    rows = zip(_read_rows(straight), _read_rows(resumed), strict=False)
    for number, (here, there) in enumerate(rows, 1):
        _compare_plain(f"line {number} of metrics.jsonl", here, there)
        found.rows += 1
    _compare_plain("lines of metrics.jsonl", *(len([*_read_rows(p)]) for p in (straight, resumed)))
    return found


def _with_checkpoint(
    spec: str | os.PathLike[str], steps: int, wishes: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings, with a checkpoint at the end where the spec keeps none."""
    sets = dict(wishes.get("set") or {})
    if api.compile(spec, **wishes).spec.train.checkpoint is None:
        sets["train.checkpoint"] = {"every": steps, "keep": 1, "best": False}
    return sets


def _train_straight(net: api.Net, steps: int, run: Path) -> dict[str, Any]:
    try:
        return net.train(steps=steps, run_dir=run)
    except Interrupted:
        raise _interrupted() from None


def _stop_at(net: api.Net, at: int, steps: int, run: Path) -> None:
    try:
        net.train(steps=steps, run_dir=run, stop_after=at)
    except Interrupted:
        net.close()
        if find_checkpoint(run)[0].state.step != at:
            raise _interrupted() from None  # not by us
        return
    raise AssertionError("a run that is told to stop before its end is interrupted")


def _interrupted() -> Interrupted:
    """Without the command that goes on, since the run's folder goes too."""
    error = Interrupted.at(INTERRUPTED, "interrupted", None)
    assert isinstance(error, Interrupted)
    return error


def _ends_before(at: int, steps: int, done: Mapping[str, Any]) -> BpcError:
    end, early = done["steps"], done["stopped_early"]
    assert early is not None, "all steps are done unless the run is stopped early"
    message = f"a stop after step {at} of {steps}: the run {say_end(early)}"
    help = f"stop it before: --at {end - 1}" if end > 1 else "leave early_stopping out"
    return UsageError.at(BAD_STEPS, message, None, help=help)


def _compare_states(first: Checkpoint, second: Checkpoint, found: _Compared) -> None:
    one, two = (item.state.model_dump(mode="json") for item in (first, second))
    for part in ("step", "total", "epoch", "batch", "integers", "reals", "loop"):
        _compare_plain(part, one[part], two[part])
    scalars = len(one["integers"]) + len(one["reals"])
    found.scalars += scalars
    found.nbytes += 8 * scalars


def _compare_plain(where: str, one: object, two: object) -> None:
    """Compare data of JSON; numbers are equal when all their bits are."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in {**one, **two}:
            if key not in _TIMES:
                _compare_plain(f"{where}: {key}", one.get(key), two.get(key))
    elif json.dumps(one) != json.dumps(two):
        raise _differs(where, one, two)


def _compare_tensors(
    one: Mapping[str, NDArray[Any]], two: Mapping[str, NDArray[Any]], found: _Compared
) -> None:
    for name, array in one.items():
        words = f"u{array.dtype.itemsize}"
        unequal = array.view(words) != two[name].view(words)
        if unequal.any():
            place = tuple(int(i) for i in np.argwhere(unequal)[0])
            count = f"{int(unequal.sum())} of {array.size} elements"
            where = f"{name}{list(place)} ({count} differ)"
            raise _differs(where, array[place].item(), two[name][place].item())
        found.tensors += 1
        found.nbytes += array.nbytes


def _read_rows(run: Path) -> Iterator[dict[str, Any]]:
    with (run / "metrics.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _differs(where: str, straight: object, resumed: object) -> CheckpointError:
    message = f"the resumed run differs, first in {where}: {straight} straight, {resumed} resumed"
    error = CheckpointError.at(RESUME_DIFFERS, message, None)
    assert isinstance(error, CheckpointError)
    return error
