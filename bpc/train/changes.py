"""Whether a run that goes on is still the run that began: its spec and its data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.dataset import Dataset
from bpc.data.describe import SOURCES
from bpc.data.stored import StoredRows
from bpc.errors import Diagnostic, Note, UsageError
from bpc.spec.flat import Change, compare, flatten, shorten
from bpc.spec.model import Spec
from bpc.spec.words import suggest
from bpc.train.faults import CHANGED_SPEC, CheckpointError
from bpc.train.saved import SavedRun, SavedState

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
            chosen = _choose_rows(len(values))
            found = values.peek(chosen) if isinstance(values, StoredRows) else values[chosen]
            digest.update(np.ascontiguousarray(found).tobytes())
    rows = len(data.train["target"])
    return json.dumps(f"{rows} rows, sha256 {digest.hexdigest()[:16]}")


def _choose_rows(count: int) -> NDArray[np.int64]:
    rows = np.unique(np.arange(_ROWS_DIGESTED) * max(count - 1, 0) // (_ROWS_DIGESTED - 1))
    return rows[:count]


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
    for key in _keys_of_paths(spec):
        if key in old and _is_one_place(old[key], new[key], state.run):
            new[key] = old[key]
    _check_keys(allowed, {**old, **new})
    changes = compare(old, new, spec)
    refused = [change for change in changes if not _covers(allowed, change.key)]
    if refused:
        raise CheckpointError([_describe(refused, state)])
    return changes


def _keys_of_paths(spec: Spec) -> list[str]:
    kinds = {option.name: option.kind for option in SOURCES[spec.data.source]}
    named = (name for name in spec.data.options if kinds.get(name) in ("path", "paths"))
    return [f"data.{name}" for name in named]


def _is_one_place(old: str, new: str, run: SavedRun) -> bool:
    """Whether paths, as `flatten` has them, lead to the same places from where we are now and from
    where the run was started: its spec has a name as seen from there, and one in full."""
    try:
        before, now = json.loads(old), json.loads(new)
    except ValueError:  # so long that only its beginning was kept
        return old == new
    start, there = os.path.dirname(run.spec), os.path.dirname(run.absolute)

    def resolve(path: str) -> str:
        if os.path.isabs(path) or os.path.isabs(start):
            return os.path.normpath(path)
        return os.path.normpath(os.path.join(there, os.path.relpath(path, start or ".")))

    return bool(_each(before, resolve) == _each(now, os.path.abspath))


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """A path, or many by name or in order, all changed."""
    if isinstance(value, dict):
        return {name: _each(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_each(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


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
