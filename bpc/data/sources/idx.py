"""IDX, the format of MNIST: a type, extents and numbers, big end first; plain or packed (.gz).

Source of the format: Y. LeCun, C. Cortes and C. Burges, "The MNIST database".
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import BAD_FORMAT, BAD_SHAPE, fault
from bpc.data.sources.files import (
    MOST_UNPACKED,
    can_hold,
    is_packed,
    measure_file,
    quote_path,
    read_start,
    too_large,
    unpack,
)
from bpc.data.sources.npy import Header
from bpc.errors import Span
from bpc.types import format_bytes

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MOST_AXES = 8


def read_header(path: str, span: Span) -> Header:
    """What an IDX file says of itself, held against its size where it is plain.

    Raises:
        DataError: it is no IDX file, or has another size than it says.
    """
    start = read_start(path, 4 + 4 * _MOST_AXES, span)
    sound = len(start) >= 4 and start[:2] == b"\0\0" and start[2] in _TYPES
    if not sound or not 1 <= start[3] <= _MOST_AXES or len(start) < 4 + 4 * start[3]:
        message = f"{quote_path(path)} is not an IDX file: it begins with {start[:4].hex(' ')}"
        help = "such as 00 00 08 03, then the extents, 4 bytes each"
        raise fault(BAD_FORMAT, message, span, help)
    extents = np.frombuffer(start, ">u4", start[3], 4)
    shape = tuple(int(extent) for extent in extents)
    header = Header(np.dtype(_TYPES[start[2]]), shape, False, 4 + 4 * len(shape))
    _check_size(path, header, span)
    return header


def _check_size(path: str, header: Header, span: Span) -> None:
    if not header.data_bytes:
        raise fault(BAD_SHAPE, f"{quote_path(path)} has shape {list(header.shape)}", span)
    size = measure_file(path, span).st_size
    wanted = header.start + header.data_bytes
    if not is_packed(path, span):
        if size != wanted:
            raise _wrong_size(path, header, size - header.start, span)
        return
    if wanted > MOST_UNPACKED:
        raise too_large(path, format_bytes(wanted), span)
    if not can_hold(size, wanted):
        message = f"{quote_path(path)} says shape {list(header.shape)}; {size:,} packed bytes "
        raise fault(BAD_FORMAT, message + "cannot hold that", span, "copy or download it again")


def open_idx(path: str, span: Span) -> NDArray[Any]:
    """The array of an IDX file: mapped if it is plain, else unpacked into memory."""
    header = read_header(path, span)
    if not is_packed(path, span):
        return np.memmap(path, header.dtype, "r", header.start, header.shape)
    raw = unpack(path, span, header.start + header.data_bytes)
    if len(raw) != header.start + header.data_bytes:
        raise _wrong_size(path, header, len(raw) - header.start, span)
    flat = np.frombuffer(raw, header.dtype, prod(header.shape), header.start)
    return flat.reshape(header.shape)


def _wrong_size(path: str, header: Header, found: int, span: Span) -> Exception:
    message = (
        f"{quote_path(path)} says {header.dtype.name} {list(header.shape)}, "
        f"{header.data_bytes:,} bytes; there are {found:,}"
    )
    return fault(BAD_FORMAT, message, span, "copy or download it again")
