"""Rows of data as sources give them: numbers by position, classes, and rows that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bpc.errors import Span
from bpc.types import F32, F64, I64, DType

Array = NDArray[Any]
Rows = NDArray[np.int64]

_NO_ROWS: Rows = np.empty(0, np.int64)


class Column(Protocol):
    """Numbers of every row, of which some may still lie in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of one row."""

    @property
    def dtype(self) -> DType:
        """The type in which rows are delivered."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored."""

    def __len__(self) -> int:
        """The number of rows."""

    def take(self, rows: Rows) -> Array:
        """The rows with these numbers, [rows, *shape], in the type in which they are stored."""


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """An array whose first axis counts the rows, in memory or mapped; `dtype`: as delivered."""

    array: Array
    shape: tuple[int, ...]
    dtype: DType

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored."""
        return self.array.nbytes // len(self.array)

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: Rows) -> Array:
        """The rows with these numbers."""
        taken = np.asarray(self.array[rows])
        return taken.reshape(len(rows), *self.shape)


class DeferredColumn:
    """Numbers that have to be unpacked, which happens when the first row is asked for."""

    def __init__(
        self,
        rows: int,
        shape: tuple[int, ...],
        stored: np.dtype[Any],
        load: Callable[[], Array],
    ):
        """`load` gives all numbers, of the type `stored`, the first axis counting the rows."""
        self.shape = shape
        self.dtype = delivered(stored)
        self.row_bytes = prod(shape) * stored.itemsize
        self._rows = rows
        self._load = load
        self._array: Array | None = None

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Rows) -> Array:
        """The rows with these numbers."""
        if self._array is None:
            self._array = self._load()
        taken: Array = self._array[rows].reshape(len(rows), *self.shape)
        return taken


def column_of(array: Array, shape: tuple[int, ...] | None = None) -> ArrayColumn:
    """Numbers as a column, with rows of `shape`, which has as many elements as they have."""
    plain = np.asarray(array)  # what is mapped stays so, and is indexed faster without its class
    return ArrayColumn(plain, array.shape[1:] if shape is None else shape, delivered(array.dtype))


def delivered(dtype: np.dtype[Any]) -> DType:
    """f32 for what it holds exactly (f32, f16, integers of 16 bits), f64 for wider numbers."""
    wide = dtype.itemsize > 4 if dtype.kind == "f" else dtype.itemsize > 2
    return F64 if wide else F32


NUMPY_TYPES: Mapping[DType, type[np.generic]] = {F32: np.float32, F64: np.float64, I64: np.int64}


@dataclass(frozen=True, slots=True)
class Labels:
    """A class for each row, int64 [rows].

    `names` are what the codes stand for, and -1 is a row without one. Without names codes are
    numbers as they are written, which need not be those of classes.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows that cannot be used, in order, and why, of the first of them."""

    rows: Rows = field(default_factory=lambda: _NO_ROWS)
    reasons: Mapping[int, str] = field(default_factory=dict)

    def within(self, rows: Rows) -> Rows:
        """Those of `rows`, which are in order, that cannot be used."""
        return rows[np.isin(rows, self.rows, assume_unique=True)] if len(self.rows) else _NO_ROWS


@dataclass(frozen=True, slots=True)
class Gaps:
    """Cells of an input that hold nothing: the number of the row and of the element in it."""

    rows: Rows
    elements: Rows


@dataclass(frozen=True, slots=True)
class Records:
    """All rows of a file.

    `labels` and `target`: one of them is there. `name_row` says where a row lies and `name_target`
    where its target does, for messages; `span` is the place in the spec that names the file.
    """

    inputs: Mapping[str, Column]
    name_row: Callable[[int], str]
    span: Span
    labels: Labels | None = None
    target: Column | None = None
    bad: BadRows = field(default_factory=BadRows)
    gaps: Mapping[str, Gaps] = field(default_factory=dict)
    name_target: Callable[[int], str] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


@dataclass(frozen=True, slots=True)
class Half:
    """The rows of one part, by their numbers in `records`, in order.

    `columns` are inputs and `target`; `left_out` counts rows that cannot be used, `reasons` say
    why of the first of them.
    """

    columns: Mapping[str, Column]
    records: Records
    rows: Rows
    left_out: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A source opened and divided: `classes` names every class, None where values are learnt."""

    train: Half
    test: Half
    classes: tuple[str, ...] | None
