"""Tensors by name in a file of the safetensors format, read with nothing taken on trust.

Format: the length of the header (u64, little endian), the header (a JSON object: name to dtype,
shape and [begin, end) in the body), the body. No tensor overlaps another, nothing lies between
them, the last one ends with the file. Source: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bpc.spec.words import show
from bpc.train.faults import CheckpointError, damaged, mismatch

Tensors = Mapping[str, NDArray[Any]]

_WIDTHS = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2},
    **{"I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}
_CODES = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "u1": "U8"}
_KINDS = {code: np.dtype(f"<{kind}") for kind, code in _CODES.items()}
_KEYS = {"dtype", "shape", "data_offsets"}
_MOST_AXES = 32
_LARGEST = 1 << 62
_MOST_HEADER = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor in a file: `F32` and its like, and the shape."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[Any]) -> TensorType:
        """The type of an array."""
        return cls(_CODES[array.dtype.newbyteorder("=").str[1:]], array.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor of a header: its type, and where in the body it lies."""

    name: str
    type: TensorType
    begin: int
    end: int


def encode_tensors(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """The bytes of a file with these tensors, piece by piece; wider types first, so that all are
    aligned. Equal tensors give equal bytes."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {}
    end = 0
    for name, array in ordered:
        kind = TensorType.of(array)
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": kind.dtype, "shape": kind.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, array in ordered:
        if array.size:
            plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            yield plain.reshape(-1).view(np.uint8).data


def read_tensors(
    path: Path, expected: Mapping[str, TensorType] | None = None
) -> dict[str, NDArray[Any]]:
    """The tensors of a file, which must be exactly those that are expected, where some are.

    Everything is checked before a byte of a tensor is read.

    Raises:
        CheckpointError: the file is damaged, or names, shapes or types differ.
        OSError: what the system says.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start, places = _read_header(file, path, size, _header_limit(expected))
        if expected is None:
            _refuse_foreign(path, places)
        else:
            _compare(path, places, expected)
        found = {}
        for place in sorted(places, key=lambda place: place.begin):
            file.seek(start + place.begin)
            found[place.name] = _read_array(file, path, place)
    return {place.name: found[place.name] for place in places}


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading without waiting for a pipe or a device.

    Raises:
        CheckpointError: there is no such file, or it is something else than a file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise damaged(path, "there is no such file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(path, "this is not a file")
    return open(descriptor, "rb", buffering=0)


def parse_json(text: bytes, path: Path, what: str) -> object:
    """JSON in which no key stands twice and every number is finite.

    Raises:
        CheckpointError: it is not.
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_make_object, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError:
        raise damaged(path, f"{what} is not UTF-8") from None
    except RecursionError:
        raise damaged(path, f"{what} is nested too deeply") from None
    except ValueError as error:
        raise damaged(path, f"{what} is not JSON: {error}") from None


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {show(again)} stands there twice")
    return made


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


# -- the header -----------------------------------------------------------------------------------


def _header_limit(expected: Mapping[str, TensorType] | None) -> int:
    """No header of these tensors is longer: names escaped, numbers of 20 digits, room for more."""
    if expected is None:
        return _MOST_HEADER
    each = (6 * len(name) + 120 + 24 * len(kind.shape) for name, kind in expected.items())
    return (64 << 10) + 2 * sum(each)


def _read_header(file: BinaryIO, path: Path, size: int, most: int) -> tuple[int, list[_Place]]:
    """Where the body starts, and its tensors."""
    if size < 8:
        raise damaged(path, f"{size} bytes are too few for a header")
    length = int.from_bytes(_read_exactly(file, path, 8), "little")
    if length > size - 8:
        raise damaged(path, f"a header of {length:,} bytes in a file of {size:,}")
    if length > most:
        raise damaged(path, f"a header of {length:,} bytes; the network needs at most {most:,}")
    text = _read_exactly(file, path, length)
    if not text.startswith(b"{"):
        raise damaged(path, "the header is not a JSON object")
    found = parse_json(text, path, "the header")
    assert isinstance(found, dict), "what begins with a brace is an object"
    _check_metadata(found.pop("__metadata__", {}), path)
    places = [_read_place(path, name, entry) for name, entry in found.items()]
    _check_cover(path, places, size - 8 - length)
    return 8 + length, places


def _check_metadata(found: object, path: Path) -> None:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise damaged(path, "__metadata__ must map text to text")


def _read_place(path: Path, name: str, entry: object) -> _Place:
    def refuse(reason: str) -> CheckpointError:
        return damaged(path, f"tensor {show(name)}: {reason}")

    if not isinstance(entry, dict) or set(entry) != _KEYS:
        raise refuse("needs dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        raise refuse(f"dtype {_shorten(dtype)} is unknown")
    if not _is_counts(shape) or len(shape) > _MOST_AXES:
        raise refuse(f"shape {_shorten(shape)} is no list of extents")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse(f"data_offsets {_shorten(offsets)} are not a beginning and an end")
    needed = prod(shape) * _WIDTHS[dtype]
    if needed != offsets[1] - offsets[0]:
        kind = TensorType(dtype, tuple(shape))
        raise refuse(f"{str(kind)[:60]} takes {needed:.20g} bytes, not {_shorten(offsets)}")
    return _Place(name, TensorType(dtype, tuple(shape)), offsets[0], offsets[1])


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < _LARGEST for item in value
    )


def _shorten(value: object) -> str:
    text = json.dumps(value)  # which has no character that a terminal could not show
    return text if len(text) <= 60 else text[:57] + "..."


def _check_cover(path: Path, places: list[_Place], body: int) -> None:
    """Tensors fill the body without holes and overlaps."""
    end = 0
    for place in sorted(places, key=lambda place: (place.begin, place.end)):
        if place.begin != end:
            fault = "overlaps the one before it" if place.begin < end else "leaves a hole before it"
            raise damaged(path, f"tensor {show(place.name)} {fault}")
        end = place.end
    if end != body:
        raise damaged(path, f"the tensors end at byte {end:,} of the body, which has {body:,}")


def _compare(path: Path, places: list[_Place], expected: Mapping[str, TensorType]) -> None:
    found = {place.name: place.type for place in places}
    reasons = [
        f"{name}: the file has {found.get(name, 'nothing')}, the network {kind}"
        for name, kind in expected.items()
        if found.get(name) != kind
    ]
    extra = [name for name in found if name not in expected]
    reasons += [
        f"{show(name)}: the file has {found[name]}, the network nothing of this name"
        for name in extra
    ]
    if reasons:
        raise mismatch(path, reasons)


def _refuse_foreign(path: Path, places: list[_Place]) -> None:
    for place in places:
        if place.type.dtype not in _KINDS:
            raise damaged(path, f"tensor {show(place.name)}: bpc does not use {place.type.dtype}")


# -- bytes ----------------------------------------------------------------------------------------


def _read_array(file: BinaryIO, path: Path, place: _Place) -> NDArray[Any]:
    array = np.empty(place.type.shape, _KINDS[place.type.dtype])
    if array.size:
        _fill(file, path, array.reshape(-1).view(np.uint8).data)
    return array


def _read_exactly(file: BinaryIO, path: Path, count: int) -> bytes:
    buffer = bytearray(count)
    _fill(file, path, memoryview(buffer))
    return bytes(buffer)


def _fill(file: BinaryIO, path: Path, view: memoryview) -> None:
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise damaged(path, "the file ends early")
        view = view[count:]
