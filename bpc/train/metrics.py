"""`metrics.jsonl`: one JSON object a line, on disk as soon as it is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path


class MetricsFile:
    """Appends lines and flushes each, so that a run that dies leaves all it knew."""

    def __init__(self, path: Path):
        self._file = path.open("x", encoding="utf-8")

    def write(self, row: Mapping[str, object]) -> None:
        """Append one object."""
        self._file.write(json.dumps(plain(row), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def plain(value: object) -> object:
    """The same data without what JSON lacks: inf and nan become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
