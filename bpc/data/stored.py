"""Rows that stay where they are, in a file or as windows of a text, until a batch asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bpc.data.scale import Scale
from bpc.data.sources.faults import BAD_RECORD, fault
from bpc.data.sources.prepare import SKIP_HELP
from bpc.data.sources.records import NUMPY_TYPES, Column, Half, Rows
from bpc.errors import BpcError
from bpc.types import F64, DType

Array = NDArray[Any]

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one column, read, checked and scaled when they are indexed.

    Behaves like an array [rows, *shape] of which rows are taken: `len`, `shape`, `dtype`, an index
    of a slice or of row numbers, and `numpy.asarray` for all of it.
    """

    name: str
    half: Half
    scale: Scale | None
    checked: bool

    @property
    def column(self) -> Column:
        """Where the rows come from."""
        return self.half.columns[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, the number of rows first."""
        return (len(self.half.rows), *self.column.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which rows are delivered."""
        return np.dtype(NUMPY_TYPES[delivered_type(self.column, self.scale)])

    def __len__(self) -> int:
        return len(self.half.rows)

    def __getitem__(self, index: Any) -> Array:
        """The rows at a slice, or with the numbers in an array.

        Raises:
            DataError: one of them is not finite; names it.
        """
        numbers = self.half.rows[index]
        if numbers.ndim == 0:
            return self._read(numbers.reshape(1))[0]  # type: ignore[no-any-return]
        return self._read(numbers)

    def peek(self, index: Rows) -> Array:
        """The rows with these numbers as they are stored: neither checked nor scaled."""
        return self.column.take(self.half.rows[index])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def _read(self, numbers: Rows) -> Array:
        raw = self.column.take(numbers)
        if not self.checked:
            self._check(raw, numbers)
        return convert(raw, self.scale, self.dtype)

    def _check(self, raw: Array, numbers: Rows) -> None:
        bad = find_bad(raw)
        if len(bad):
            row = int(bad[0])
            raise not_finite(self.name, self.half, int(numbers[row]), raw[row])


def delivered_type(column: Column, scale: Scale | None) -> DType:
    """What the program is given: scaled numbers keep all digits of f64."""
    return column.dtype if scale is None else F64


def convert(raw: Array, scale: Scale | None, dtype: np.dtype[Any]) -> Array:
    """Rows as they are delivered."""
    if scale is None:
        return raw.astype(dtype, copy=False)
    return scale.apply(raw).astype(dtype, copy=False)


def find_bad(raw: Array) -> Rows:
    """The rows that hold an inf or a NaN, by their place in `raw`."""
    nothing = np.empty(0, np.int64)
    if raw.dtype.kind != "f":
        return nothing
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(raw.sum(dtype=np.float64)):
            return nothing
    finite = np.isfinite(raw).reshape(len(raw), -1).all(axis=1)
    return np.flatnonzero(~finite)


def say_not_finite(name: str, half: Half, row: int, values: Array) -> str:
    """Which row, element and value of an input cannot be used."""
    element = [int(at) for at in np.argwhere(~np.isfinite(values))[0]]
    where = f" at element {element}" if element else ""
    value = values[tuple(element)]
    return f"{half.records.name_row(row)}: {name} is {value}{where}, not a finite number"


def not_finite(name: str, half: Half, row: int, values: Array) -> BpcError:
    """The error of a row that holds an inf or a NaN."""
    return fault(BAD_RECORD, say_not_finite(name, half, row, values), half.records.span, SKIP_HELP)


def pieces(column: Column, rows: Rows) -> Iterator[tuple[Rows, Array]]:
    """All rows in order, some MiB at a time, with their numbers."""
    count = max(1, _PIECE_BYTES // max(1, column.row_bytes))
    for start in range(0, len(rows), count):
        numbers = rows[start : start + count]
        yield numbers, column.take(numbers)
