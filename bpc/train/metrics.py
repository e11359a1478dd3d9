"""`metrics.jsonl`: one JSON object a line, on disk as soon as it is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from bpc.train.files import Files, replace_file

_LONGEST_LINE = 1 << 26


class MetricsFile:
    """Appends whole lines. One that cannot be written is lost, which is said once."""

    def __init__(self, path: Path, told: Callable[[str], None], files: Files | None = None):
        self._path = path
        self._told = told
        self._files = files or Files()
        self._file: FileIO | None = None
        self._size = 0
        self._failed = False

    def open(self, step: int) -> None:
        """Begin after `step`: what a run that died had written of later ones is dropped.

        Raises:
            OSError: the file cannot be made.
        """
        if self._path.exists():
            replace_file(self._files, self._path, _lines_until(self._path, step))
        self._file = FileIO(self._path, "a")
        self._size = self._file.tell()

    def write(self, row: Mapping[str, object]) -> None:
        """Append one object."""
        assert self._file is not None, "the file is open while a run goes on"
        line = memoryview((json.dumps(plain(row), allow_nan=False) + "\n").encode())
        size = self._size + len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self._give_up_line(error)
        else:
            self._size = size

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _give_up_line(self, error: OSError) -> None:
        """Take back what there is of a line, so that the next one begins at a beginning."""
        assert self._file is not None
        try:
            self._file.truncate(self._size)
        except OSError:
            self._size = self._file.tell()
        if not self._failed:
            self._failed = True
            self._told(f"{self._path}: {error.strerror}; lines of metrics are lost")


def _lines_until(path: Path, step: int) -> Iterator[bytes]:
    """The whole lines of a file that tell of steps up to `step`."""
    with path.open("rb") as file:
        while line := file.readline(_LONGEST_LINE):
            if line.endswith(b"\n") and _step_of(line) <= step:
                yield line


def _step_of(line: bytes) -> float:
    """The step that a line tells of; infinite if it is no such line."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        return math.inf
    step = row.get("step") if isinstance(row, dict) else None
    return step if isinstance(step, int) else math.inf


def plain(value: object) -> object:
    """The same data without what JSON lacks: inf and nan become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
