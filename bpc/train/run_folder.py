"""The folder of a run: its spec, `metrics.jsonl`, `parameters.npz` and `result.json`."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bpc.errors import UsageError
from bpc.spec.model import Spec
from bpc.spec.resolved import write_resolved
from bpc.train.metrics import plain

RUNS = Path("runs")
NOT_EMPTY = "BPC0602"


class RunFolder:
    """Writes a run's files; each appears whole or not at all, `metrics.jsonl` grows."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def metrics_path(self) -> Path:
        """Where the metrics go."""
        return self.path / "metrics.jsonl"

    def write_spec(self, spec: Spec) -> None:
        """Keep the spec and what it extends as they were read, and all of it in one file."""
        for number, source in enumerate(spec.files):
            self._write_text(f"spec.base{number}.yaml" if number else "spec.yaml", source.text)
        self._write_text("spec.resolved.yaml", write_resolved(spec))

    def _write_text(self, name: str, text: str) -> None:
        _write_whole(self.path / name, lambda file: file.write(text.encode()))

    def write_data(self, facts: Mapping[str, object]) -> None:
        """Keep what rows to predict for need: names of classes, scales, what fills gaps."""
        text = json.dumps(plain(facts), allow_nan=False) + "\n"
        self._write_text("data.json", text)

    def write_result(self, result: Mapping[str, object]) -> None:
        """Say how the run ended."""
        text = json.dumps(plain(result), indent=2, allow_nan=False) + "\n"
        _write_whole(self.path / "result.json", lambda file: file.write(text.encode()))

    def write_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Keep the weights by name, as NumPy's own format without pickled objects."""

        def save(file: IO[bytes]) -> None:
            # Not np.savez: there a parameter called `file` would be taken for its first argument.
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in parameters.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)

        _write_whole(self.path / "parameters.npz", save)


def make_run_folder(name: str, wished: str | os.PathLike[str] | None) -> RunFolder:
    """Make the folder of a new run: `wished`, or `runs/<name>-<n>` with the next free n.

    Raises:
        UsageError: `wished` exists and is no empty folder, or `runs` is a file.
    """
    if wished is None:
        return RunFolder(_make_next(name))
    path = Path(wished)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError.at(
            NOT_EMPTY,
            f"{path} is not an empty folder, and a run overwrites nothing",
            None,
            help="name a new folder, or leave --run-dir out",
        )
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


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


def _write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside the file and rename, so that nobody meets half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
