"""Runs that have been: the network of a run with the weights that it learnt."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpc import api
from bpc.data.dataset import Facts, facts_from_json
from bpc.errors import BpcError
from bpc.train.checkpoint import FOLDER, MODEL, find_model, list_checkpoints
from bpc.train.faults import NO_CHECKPOINT, CheckpointError, damaged
from bpc.train.run_folder import DATA, RESOLVED
from bpc.train.saved import STATE_FILE


@dataclass(frozen=True, slots=True)
class Trained:
    """A network whose device has the weights of the file `weights`.

    `facts` are what its training part said of the data: scales, fills, names of classes.
    """

    net: api.Net
    weights: Path
    facts: Facts = field(default_factory=Facts)


def open_run(run: str | os.PathLike[str], *, best: bool = False, **wishes: Any) -> Trained:
    """The network of a run, as `spec.resolved.yaml` describes it, with its weights.

    Args:
        run: the folder of a run, or one of its checkpoints.
        best: the weights of the evaluation with the least held-out loss, in place of those of the
            run's end or, if it has not come to one, of its newest checkpoint.
        wishes: as in `bpc.compile`.

    Raises:
        CheckpointError: there is no such run, it has no weights, or they are damaged.
        SpecError, DataError, UsageError, BudgetError, ToolError: as in `bpc.compile` and `device`.
        OSError: what the system says.
    """
    path = Path(run)
    folder = path.parent.parent if (path / STATE_FILE).exists() else path
    spec = folder / RESOLVED
    if not spec.is_file():
        raise _no_run(path)
    if not best and path == folder and not _has_weights(path):
        raise CheckpointError.at(
            NO_CHECKPOINT,
            f"{path} has no weights: the run neither ended nor wrote a checkpoint",
            None,
            help="train.checkpoint: {every: 100} keeps them as a run goes on",
        )
    weights = find_model(path, best)
    net = api.compile(spec, **wishes)
    net.load(weights)
    return Trained(net, weights, _read_facts(folder / DATA))


def evaluate_net(net: api.Net) -> dict[str, Any]:
    """Loss and metrics over the held-out part, dropout off.

    Returns:
        test_loss, test_accuracy, test_rows, metrics (by name), device.
    """
    return {**net.evaluate(), "device": net.device.summary}


def _read_facts(path: Path) -> Facts:
    """What a run kept of its data; nothing where its data is in no files.

    Raises:
        CheckpointError: the file is damaged.
    """
    if not path.exists():
        return Facts()
    try:
        return facts_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"this is not what a run keeps of its data: {error}") from None


def _has_weights(run: Path) -> bool:
    return (run / MODEL).is_file() or bool(list_checkpoints(run))


def _no_run(path: Path) -> BpcError:
    if not path.exists():
        return CheckpointError.at(NO_CHECKPOINT, f"{path}: there is no such run", None)
    if path.is_dir():
        message = f"{path} is not the folder of a run: it has no {RESOLVED}"
    else:
        message = f"{path} is a file; a run is a folder, such as runs/digits-mlp-1"
    help = f"a run's folder has {FOLDER}/, metrics.jsonl and {RESOLVED}"
    return CheckpointError.at(NO_CHECKPOINT, message, None, help=help)
