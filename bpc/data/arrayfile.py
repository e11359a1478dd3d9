"""Arrays from and to files that people keep them in: `.npy`, `.npz` and `.csv`."""

from __future__ import annotations

import csv
import io
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import quote
from bpc.data.sources.rowfaults import RowFaults
from bpc.errors import BpcError, DataError, Span
from bpc.types import count_of

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

UNREADABLE = "BPC0660"
BAD_ROW = "BPC0661"
ENDINGS = (".npy", ".npz", ".csv")

_ROWS_AT_ONCE = 4096
# What NumPy and zipfile were seen to raise for files with changed bytes.
_DAMAGED = (
    *(ValueError, TypeError, SyntaxError, OverflowError, EOFError, NotImplementedError),
    *(RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def read_arrays(path: Path, shapes: Shapes) -> Array | dict[str, Array]:
    """One array (`.npy`), or arrays by name (`.npz`, `.csv`), not yet checked against `shapes`.

    A table has the numbers of a row in one line: those of each input in the order of `shapes`,
    flattened with the last axis fastest. A first line that is no row of numbers is a header.

    Args:
        path: a file with one of ENDINGS.
        shapes: extents by input, without the rows.

    Raises:
        DataError: the file is damaged or not what its name says; a row of a table is at fault.
        OSError: what the system says.
    """
    if path.suffix.lower() == ".csv":
        return _read_table(path, shapes)
    with path.open("rb") as file:
        begin = file.read(6)
    wanted = b"\x93NUMPY" if path.suffix.lower() == ".npy" else b"PK"
    if not begin.startswith(wanted):
        raise _unreadable(path, f"this is no {path.suffix.lower()} file of NumPy")
    try:
        return _load(path)
    except _DAMAGED as error:
        raise _unreadable(path, _one_line(error)) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    except MemoryError:
        raise _unreadable(path, "it needs more memory than there is") from None


def _load(path: Path) -> Array | dict[str, Array]:
    if path.suffix.lower() == ".npy":
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    # Opened here, since NumPy leaves a file that it opened and cannot read to the collector.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _one_line(error: Exception) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return "it holds Python objects, not numbers" if "allow_pickle" in first else first


# -- tables ---------------------------------------------------------------------------------------


def _read_table(path: Path, shapes: Shapes) -> dict[str, Array]:
    width = sum(prod(shape) for shape in shapes.values())
    parts = [np.empty((0, width))]
    rows: list[list[float]] = []
    faults = RowFaults(str(path))
    for row in _read_rows(path, width, faults):
        rows.append(row)
        if len(rows) == _ROWS_AT_ONCE:
            parts.append(np.array(rows))
            rows = []
    faults.raise_if_any()
    if rows:
        parts.append(np.array(rows))
    whole, at, found = np.concatenate(parts), 0, {}
    for name, shape in shapes.items():
        found[name] = whole[:, at : at + prod(shape)].reshape(len(whole), *shape)
        at += prod(shape)
    return found


def _read_rows(path: Path, width: int, faults: RowFaults) -> Iterator[list[float]]:
    """The rows that can be read; what is wrong with the others is added to `faults`."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        seen = 0
        try:
            for cells in reader:
                if not cells:
                    continue
                seen += 1
                if seen == 1 and not any(_is_number(cell) for cell in cells):
                    continue
                try:
                    row = _read_row(cells, width, reader.line_num, faults)
                except DataError as fault:
                    faults.add(fault)
                else:
                    yield row
        except csv.Error as error:
            faults.raise_if_any()  # what was found before comes first
            raise DataError.at(BAD_ROW, f"{error}", Span(str(path), reader.line_num, 1)) from None
        except UnicodeDecodeError:
            raise _unreadable(path, "this is no text in UTF-8") from None


def _read_row(cells: list[str], width: int, line: int, faults: RowFaults) -> list[float]:
    if len(cells) != width:
        message = f"{count_of(len(cells), 'column')}, where the model takes {width:,} numbers a row"
        other = next((name for mark, name in _OTHERS if len(cells) == 1 and mark in cells[0]), None)
        help = f"separate columns by commas, not by {other}" if other else None
        raise DataError.at(BAD_ROW, message, Span(faults.path, line, 1), help=help)
    row = []
    for column, cell in enumerate(cells, 1):
        if not _is_number(cell) or not isfinite(float(cell)):
            place = faults.place(line, cells, column - 1)
            message = f"column {column}: {quote(cell)} is no finite number"
            raise DataError.at(BAD_ROW, message, place)
        row.append(float(cell))
    return row


_OTHERS = ((";", "semicolons"), ("\t", "tabs"), (" ", "spaces"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


# -- predictions ----------------------------------------------------------------------------------


def encode_prediction(
    ending: str, prediction: Array, classes: bool, names: Sequence[str] | None = None
) -> Iterator[bytes]:
    """The content of a file with predictions, in the order of the rows.

    Args:
        ending: one of ENDINGS.
        prediction: [rows, ...].
        classes: the values of a row are scores of classes; `.npz` and `.csv` then have the class
            with the largest one too.
        names: of the classes, in place of their numbers.
    """
    chosen: Array | None = None
    if classes and prediction.ndim == 2:
        chosen = prediction.argmax(axis=-1)
        if names is not None:  # there may be more scores than classes
            known = [*names, *(str(k) for k in range(len(names), prediction.shape[1]))]
            chosen = np.array(known)[chosen]
    if ending == ".csv":
        yield from _encode_table(prediction, chosen)
        return
    buffer = io.BytesIO()
    if ending == ".npy":
        np.save(buffer, prediction, allow_pickle=False)
    else:
        arrays = {} if chosen is None else {"class": chosen}
        np.savez(buffer, allow_pickle=False, **arrays, prediction=prediction)
    yield buffer.getvalue()


def _encode_table(prediction: Array, chosen: Array | None) -> Iterator[bytes]:
    """Numbers in the fewest digits that read back as the same ones."""
    rows = prediction.reshape(len(prediction), -1)
    names = [f"prediction.{k}" for k in range(rows.shape[1])]
    names = ["prediction"] if len(names) == 1 else names
    yield (",".join(names if chosen is None else ["class", *names]) + "\n").encode()
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for at in range(start, min(start + _ROWS_AT_ONCE, len(rows))):
            cells = [str(value) for value in rows[at]]
            writer.writerow(cells if chosen is None else [str(chosen[at]), *cells])
        yield text.getvalue().encode()


def _unreadable(path: Path, reason: str) -> BpcError:
    return DataError.at(UNREADABLE, f"{path}: {reason}", None)
