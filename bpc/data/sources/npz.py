"""NumPy's .npz: a zip of .npy, each mapped where it is stored as it is, else unpacked."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import BAD_FORMAT, NOT_THERE, fault, quote, suggest
from bpc.data.sources.files import (
    MOST_UNPACKED,
    can_hold,
    measure_file,
    open_file,
    quote_path,
    too_large,
)
from bpc.data.sources.npy import HEADER_BYTES, Header, map_numbers, read_header
from bpc.errors import BpcError, Span
from bpc.types import format_bytes

_PIECE = 1 << 20
_LOCAL = struct.Struct("<4s22xHH")
_ENCRYPTED = 1
_DAMAGED: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError),
    *(NotImplementedError, RuntimeError, struct.error, OverflowError),
)


class Archive:
    """The arrays of one .npz by name; headers are read at once, numbers when they are asked for."""

    def __init__(self, path: str, span: Span):
        self.path = path
        self._span = span
        self._size = measure_file(path, span).st_size
        with open_file(path, span) as file:
            archive = _open(file, path, span)
            self._infos = _members(archive, path, span)
            self._headers: dict[str, Header] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._infos)

    def header(self, name: str, span: Span) -> Header:
        """What the array says of itself.

        Raises:
            DataError: there is no such array, or it is damaged.
        """
        if name not in self._headers:
            self._headers[name] = self._read_header(name, span)
        return self._headers[name]

    def is_mapped(self, name: str) -> bool:
        """Whether the array can be used without being unpacked."""
        return self._infos[name].compress_type == zipfile.ZIP_STORED

    def load(self, name: str, span: Span) -> NDArray[Any]:
        """The array: mapped if it is stored as it is, else unpacked into memory.

        Raises:
            DataError: it is damaged, or has more than is unpacked into memory.
        """
        header, info = self.header(name, span), self._infos[name]
        if info.compress_type == zipfile.ZIP_STORED:
            with open_file(self.path, span) as file:
                return map_numbers(self.path, header, self._start_of(file, info, span))
        raw = self._unpack(info, span)
        flat = np.frombuffer(raw, header.dtype, offset=header.start)
        return flat.reshape(header.shape, order="F" if header.column_order else "C")

    def _read_header(self, name: str, span: Span) -> Header:
        info = self._infos.get(name)
        if info is None:
            message = f"{quote_path(self.path)} has no array {quote(name)}"
            raise fault(NOT_THERE, message, span, suggest(name, self.names))
        self._check_size(info, span)
        what = f"{quote_path(self.path)}, {quote(name)}"
        with open_file(self.path, span) as file:
            if info.compress_type == zipfile.ZIP_STORED:
                file.seek(self._start_of(file, info, span))
                start = file.read(min(HEADER_BYTES, info.file_size))
            else:
                start = self._read_start(file, info, span)
        return read_header(start, info.file_size, what, span)

    def _read_start(self, file: IO[bytes], info: zipfile.ZipInfo, span: Span) -> bytes:
        try:
            with zipfile.ZipFile(file) as archive, archive.open(info) as member:
                return member.read(HEADER_BYTES)
        except _DAMAGED as error:
            raise _damaged(self.path, error, span) from None

    def _unpack(self, info: zipfile.ZipInfo, span: Span) -> bytes:
        """Piece by piece, so that a size that is only claimed takes no memory."""
        parts: list[bytes] = []
        with open_file(self.path, span) as file:
            try:
                with zipfile.ZipFile(file) as archive, archive.open(info) as member:
                    while piece := member.read(_PIECE):
                        parts.append(piece)
            except _DAMAGED as error:
                raise _damaged(self.path, error, span) from None
        raw = b"".join(parts)
        if len(raw) != info.file_size:
            raise _damaged(self.path, EOFError("it ends early"), span)
        return raw

    def _check_size(self, info: zipfile.ZipInfo, span: Span) -> None:
        if info.flag_bits & _ENCRYPTED:
            raise _damaged(self.path, ValueError("it is encrypted"), span)
        if info.compress_type == zipfile.ZIP_STORED:
            return
        if info.file_size > MOST_UNPACKED:
            help = "save it with numpy.savez, whose arrays are mapped and not unpacked"
            found = f"{quote(info.filename)} with {format_bytes(info.file_size)}"
            raise too_large(self.path, found, span, help)
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        if deflated and not can_hold(info.compress_size, info.file_size):
            raise _damaged(self.path, ValueError("a size in it cannot be right"), span)

    def _start_of(self, file: IO[bytes], info: zipfile.ZipInfo, span: Span) -> int:
        """Where the bytes of a member that is stored as it is begin."""
        file.seek(max(0, info.header_offset))
        raw = file.read(_LOCAL.size) if info.header_offset >= 0 else b""
        if len(raw) == _LOCAL.size:
            mark, name_bytes, extra_bytes = _LOCAL.unpack(raw)
            start: int = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
            sound = mark == b"PK\3\4" and info.compress_size == info.file_size
            if sound and start + info.file_size <= self._size:
                return start
        raise _damaged(self.path, ValueError("an array lies outside the file"), span)


def _open(file: IO[bytes], path: str, span: Span) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except _DAMAGED as error:
        raise _damaged(path, error, span) from None


def _members(archive: zipfile.ZipFile, path: str, span: Span) -> Mapping[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    names = [info.filename.removesuffix(".npy") for info in infos]
    _refuse_repeats(names, path, span)
    return dict(zip(names, infos, strict=True))


def _refuse_repeats(names: Iterable[str], path: str, span: Span) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            message = f"{quote_path(path)} has two arrays called {quote(name)}"
            raise fault(BAD_FORMAT, message, span, "save it with numpy.savez again")
        seen.add(name)


def _damaged(path: str, error: Exception, span: Span) -> BpcError:
    reason = quote(str(error) or type(error).__name__)[1:-1]
    message = f"{quote_path(path)} is not a whole .npz: {reason}"
    return fault(BAD_FORMAT, message, span, "save it with numpy.savez, or copy it again")
