"""Whether a run that goes on is still the run that began: its spec and its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.read import Dataset
from bpc.errors import Diagnostic, Note, UsageError
from bpc.spec.flat import Change, compare, flatten, shorten
from bpc.spec.model import Spec
from bpc.spec.words import suggest
from bpc.train.faults import CHANGED_SPEC, CheckpointError
from bpc.train.saved import SavedState

CONTENTS = "data.contents"
STEPS = "steps"
UNKNOWN_KEY = "BPC0656"

_ROWS_DIGESTED = 256


def digest_contents(data: Dataset) -> str:
    """What the data is, as JSON text: how many rows, and a digest of rows spread evenly over it."""
    digest = hashlib.sha256()
    for part in (data.train, data.test):
        for name, values in sorted(part.items()):
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(_sample(values).tobytes())
    rows = len(data.train["target"])
    return json.dumps(f"{rows} rows, sha256 {digest.hexdigest()[:16]}")


def _sample(values: NDArray[Any]) -> NDArray[Any]:
    count = len(values)
    rows = np.unique(np.arange(_ROWS_DIGESTED) * max(count - 1, 0) // (_ROWS_DIGESTED - 1))
    return np.asarray(values[rows[:count]])


def check_unchanged(
    state: SavedState, spec: Spec, data: Dataset, steps: int | None, allowed: Collection[str]
) -> list[Change]:
    """The changes since a state was saved, all of which are allowed.

    Args:
        state: what was saved.
        spec: what the run goes on with.
        data: the same.
        steps: the number of steps that was asked for in place of the spec's, now.
        allowed: dotted keys; `train` allows all that begin with `train.`.

    Raises:
        CheckpointError: with every change that is not.
        UsageError: a key that is allowed to change names nothing.
    """
    new = shorten({**flatten(spec), CONTENTS: digest_contents(data)})
    new[STEPS] = json.dumps(steps)
    old = {**state.values, STEPS: json.dumps(state.run.steps)}
    if steps is not None and state.run.steps is not None:
        # The length of the run came, and comes, from elsewhere.
        for key in ("train.epochs", "train.steps"):
            old.pop(key, None)
            new.pop(key, None)
    _check_keys(allowed, {**old, **new})
    changes = compare(old, new, spec)
    refused = [change for change in changes if not _covers(allowed, change.key)]
    if refused:
        raise CheckpointError([_describe(refused, state)])
    return changes


def _covers(allowed: Collection[str], key: str) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in allowed)


def _check_keys(allowed: Collection[str], known: Mapping[str, str]) -> None:
    for prefix in allowed:
        if not any(_covers([prefix], key) for key in known):
            message = f"--allow {prefix}: there is no such key"
            raise UsageError.at(UNKNOWN_KEY, message, None, help=suggest(prefix, known))


def _describe(refused: list[Change], state: SavedState) -> Diagnostic:
    notes = tuple(Note(str(change), change.span) for change in refused[:30])
    if len(refused) > len(notes):
        notes = (*notes, Note(f"and {len(refused) - len(notes)} more"))
    count = f"{len(refused)} value{'' if len(refused) == 1 else 's'}"
    words = " ".join(f"--allow {change.key}" for change in refused[:3])
    return Diagnostic(
        CHANGED_SPEC,
        f"{count} of the spec changed since the run was at step {state.step}",
        refused[0].span,
        notes,
        f"undo the change, or allow it: {words}{' ...' if len(refused) > 3 else ''}",
    )
