"""NumPy's .npy: the header read and held against the file, the numbers mapped."""

from __future__ import annotations

import tokenize
import warnings
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bpc.data.sources.faults import BAD_FORMAT, BAD_SHAPE, fault, quote
from bpc.data.sources.files import measure_file, open_file, quote_path
from bpc.errors import BpcError, Span
from bpc.types import format_bytes

HEADER_BYTES = 1 << 16
"""As much of a file is read to find its header, which NumPy bounds at 10,000 characters."""

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class Header:
    """What a .npy says of itself; `start` is where its numbers begin, from its first byte."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    column_order: bool
    start: int

    @property
    def data_bytes(self) -> int:
        """Bytes of the numbers."""
        return prod(self.shape) * self.dtype.itemsize


def read_header(start: bytes, size: int, what: str, span: Span) -> Header:
    """The header of a .npy of `size` bytes that begins with `start`.

    Nothing is allocated by what the header claims: it has to fit the size first.

    Raises:
        DataError: it is none, holds something else than numbers, or has another size than it says.
    """
    if not start.startswith(npy.MAGIC_PREFIX):
        message = f"{what} is not a .npy: it does not begin with \\x93NUMPY"
        raise fault(BAD_FORMAT, message, span, "save the array with numpy.save")
    stream = BytesIO(start)
    try:
        version = npy.read_magic(stream)
        if version not in _READERS:
            raise _unknown_version(what, version, span)
        with warnings.catch_warnings(action="ignore"):  # of headers that Python 2 wrote
            shape, column_order, dtype = _READERS[version](stream)
    except _MALFORMED as error:
        reason = quote(str(error).splitlines()[0] if str(error) else "it ends early")[1:-1]
        message = f"{what}: the header of the .npy cannot be read: {reason}"
        raise fault(BAD_FORMAT, message, span, "save the array with numpy.save again") from None
    header = Header(np.dtype(dtype), tuple(shape), column_order, stream.tell())
    _check(header, size, what, span)
    return header


# The last three come of a header that is nested beyond all measure.
_MALFORMED: tuple[type[Exception], ...] = (
    *(ValueError, SyntaxError, TypeError, EOFError, tokenize.TokenError),
    *(RecursionError, MemoryError, OverflowError),
)


def _unknown_version(what: str, version: tuple[int, int], span: Span) -> BpcError:
    message = f"{what}: version {version[0]}.{version[1]} of .npy is not one of plain numbers"
    return fault(BAD_FORMAT, message, span, "save an array of numbers with numpy.save")


def _check(header: Header, size: int, what: str, span: Span) -> None:
    check_kind(header.dtype, what, span)
    if any(extent < 0 for extent in header.shape):
        raise fault(BAD_FORMAT, f"{what}: the .npy says shape {list(header.shape)}", span)
    found = size - header.start
    if found != header.data_bytes:
        message = (
            f"{what}: the .npy says {header.dtype.name} {list(header.shape)}, "
            f"{_say_bytes(header.data_bytes)}; there are {_say_bytes(found)}"
        )
        short = found < header.data_bytes
        help = "the file was cut short: copy it again" if short else "save one array to a file"
        raise fault(BAD_FORMAT, message, span, help)
    if not header.shape or not header.shape[0]:
        message = f"{what} has shape {list(header.shape)}, no rows"
        raise fault(BAD_SHAPE, message, span, "the first axis counts the rows")


def _say_bytes(count: int) -> str:
    return format_bytes(count) if count < 1 << 63 else "more than 2^63 B"


def check_kind(dtype: np.dtype[Any], what: str, span: Span) -> None:
    """Refuse what is no real number of at most 64 bits.

    Raises:
        DataError: objects, text, records, complex numbers or long doubles.
    """
    if dtype.hasobject:
        message = f"{what} holds Python objects, which would have to be unpickled; bpc never does"
        raise fault(BAD_FORMAT, message, span, "convert it: array.astype(numpy.float32)")
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or dtype.subdtype is not None:
        message = f"{what} holds {quote(str(dtype))[1:-1]}, not real numbers of at most 64 bits"
        raise fault(BAD_FORMAT, message, span, "convert it: array.astype(numpy.float32)")


def open_npy(path: str, span: Span) -> NDArray[Any]:
    """The array of a .npy, mapped: none of it is read.

    Raises:
        DataError: see `read_header`.
    """
    size = measure_file(path, span).st_size
    with open_file(path, span) as file:
        header = read_header(file.read(HEADER_BYTES), size, quote_path(path), span)
    return map_numbers(path, header, 0)


def map_numbers(path: str, header: Header, offset: int) -> NDArray[Any]:
    """The numbers of a .npy that begins at byte `offset` of a file, mapped."""
    order = "F" if header.column_order else "C"
    start = offset + header.start
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    return np.memmap(path, header.dtype, "r", start, header.shape, order)  # type: ignore[call-overload,no-any-return]
