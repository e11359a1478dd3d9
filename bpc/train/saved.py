"""`state.json`: everything of a run that is no tensor, checked key by key when it is read."""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import os
import struct
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bpc.spec.words import show
from bpc.train.faults import damaged
from bpc.train.tensorfile import open_regular, parse_json

STATE_FILE = "state.json"
FORMAT = 1
MOST_BYTES = 3 << 20
_MOST_OBJECTS = 100_000  # each takes memory far beyond its text

_I64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Bits = Annotated[str, Field(pattern="^0x[0-9a-f]{16}$")]
# JSON has no inf and no nan: these are written as the bits of the double.
Real = Annotated[float, Field(allow_inf_nan=False)] | _Bits
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class SavedEvaluation(_Part):
    """The last evaluation."""

    loss: Real
    accuracy: Real | None
    rows: _Count
    metrics: dict[str, Real | None] = {}


class SavedUnits(_Part):
    """The share of a layer's units that were zero on every example."""

    layer: str
    share: Real


class SavedBest(_Part):
    """The best evaluation, and by which metric."""

    step: _Count
    loss: Real
    metric: str = "test_loss"
    value: Real | None = None


class SavedPatience(_Part):
    """What early stopping waits for."""

    metric: str
    step: _Count
    value: Real | None
    waited: _Count


class SavedLoop(_Part):
    """What the host knows of a run so far; `loss_sum` and `loss_count` since the last evaluation.

    `seconds` of training is the one value that two equal runs do not share.
    """

    skipped: _Count = 0
    traced: _Count = 0
    seconds: Real = 0.0
    loss_sum: Real = 0.0
    loss_count: _Count = 0
    train_loss: Real | None = None
    evaluation: SavedEvaluation | None = None
    units: tuple[SavedUnits, ...] = ()
    best: SavedBest | None = None
    patience: SavedPatience | None = None


class SavedRun(_Part):
    """What the run was started with: the spec's file as it was named and in full, and wishes."""

    spec: str
    absolute: str
    sets: dict[str, Any] = {}
    steps: _Count | None = None
    device: str = "auto"


class SavedPlan(_Part):
    """The program that was running; another one may continue."""

    device: str
    summary: str
    rows: _Count
    planned_peak_bytes: _Count
    arena_bytes: _Count


class SavedFile(_Part):
    """A file beside this one."""

    bytes: _Count
    sha256: _Digest


class SavedState(_Part):
    """A whole `state.json`. `epoch` and `batch` (of its epoch, from 0) are where data goes on."""

    format: Literal[1]
    bpc: str
    step: _Count
    total: _Count
    epoch: _Count
    batch: _Count
    integers: dict[str, _I64]
    reals: dict[str, Real]
    loop: SavedLoop
    run: SavedRun
    values: dict[str, str]
    plan: SavedPlan
    files: dict[str, SavedFile]

    def scalars(self) -> dict[str, float | int]:
        """The control block and the metrics by name."""
        reals = {name: decode_real(value) for name, value in self.reals.items()}
        return {**reals, **self.integers}


def describe_origin(path: str, sets: Mapping[str, object], device: str) -> SavedRun:
    """What a run remembers of its start, values of Python as JSON has them."""
    known = {str(key): _to_json(value) for key, value in sets.items()}
    return SavedRun(spec=path, absolute=os.path.abspath(path), sets=known, device=device)


def _to_json(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return operator.index(value) if hasattr(value, "__index__") else str(value)


def encode_real(value: float) -> float | str:
    """A double as JSON can say it without losing a bit."""
    return value if isfinite(value) else f"0x{struct.pack('>d', value).hex()}"


def decode_real(value: float | str) -> float:
    """The double that `encode_real` said."""
    if isinstance(value, str):
        made: float = struct.unpack(">d", bytes.fromhex(value[2:]))[0]
        return made
    return value


def encode_state(state: SavedState) -> bytes:
    """The text of a `state.json`, which ends with the digest of all that stands before.

    Raises:
        OSError: it is longer than what would be read again.
    """
    plain = state.model_dump(mode="json")
    text = json.dumps({**plain, "digest": _digest(plain)}, indent=1, allow_nan=False) + "\n"
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"the state has more than {MOST_BYTES:,} bytes")
    return text.encode()


def read_state(path: Path) -> SavedState:
    """Read a `state.json` and check all that can be checked without the network.

    Raises:
        CheckpointError: it is damaged.
        OSError: what the system says.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise damaged(path, f"{size:,} bytes are more than a state of {MOST_BYTES:,} can have")
        text = file.read(MOST_BYTES)
    if text.count(b"{") + text.count(b"[") > _MOST_OBJECTS:
        raise damaged(path, "the state has more parts than any state needs")
    found = parse_json(text, path, "the state")
    if not isinstance(found, dict):
        raise damaged(path, "the state is not a JSON object")
    if found.get("format") != FORMAT:
        help = "this bpc reads format 1; a newer one may have written it"
        raise damaged(path, "the state is not of format 1", help)
    digest = found.pop("digest", None)
    if digest != _digest(found):
        raise damaged(path, "the state is not what its digest says")
    return _validate(path, found)


def _validate(path: Path, found: dict[str, Any]) -> SavedState:
    found = {**found, "loop": _with_tuple(found.get("loop"))}
    try:
        return SavedState.model_validate(found)
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])[:120]
        raise damaged(path, f"{show(key)}: {first['msg']}") from None


def _with_tuple(loop: object) -> object:
    """JSON has lists alone, and strict models tell them from tuples."""
    if isinstance(loop, dict) and isinstance(loop.get("units"), list):
        return {**loop, "units": tuple(loop["units"])}
    return loop


def _digest(plain: object) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
