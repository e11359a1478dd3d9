"""Reads what the simulator needs of a shared library: symbols and loaded segments (ELF64)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SYMBOL_TABLE, _TLS_SYMBOL = 2, 6
_LOAD, _EXECUTABLE, _WRITABLE = 1, 1, 2


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named place: its value is an address, or an offset in the thread-local block."""

    name: str
    value: int
    nbytes: int
    thread_local: bool


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A part of the file that is loaded, at an address relative to the library's base."""

    address: int
    nbytes: int
    executable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Library:
    """The parts of one shared library."""

    symbols: tuple[Symbol, ...]
    segments: tuple[LoadedSegment, ...]

    def address(self, name: str) -> int:
        """The value of the symbol with this name."""
        return next(symbol.value for symbol in self.symbols if symbol.name == name)


def read_library(path: Path) -> Library:
    """The symbols and segments of a library that g++ made."""
    data = path.read_bytes()
    assert data[:5] == b"\x7fELF\x02", f"{path} is not an ELF64 file"
    return Library(_symbols(data), _segments(data))


def _segments(data: bytes) -> tuple[LoadedSegment, ...]:
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    found = []
    for index in range(count):
        kind, flags, _, address, _, _, nbytes = struct.unpack_from(
            "<IIQQQQQ", data, start + index * size
        )
        if kind == _LOAD:
            found.append(
                LoadedSegment(address, nbytes, bool(flags & _EXECUTABLE), bool(flags & _WRITABLE))
            )
    return tuple(found)


def _symbols(data: bytes) -> tuple[Symbol, ...]:
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQII", data, start + i * size) for i in range(count)]
    table = next(section for section in sections if section[1] == _SYMBOL_TABLE)
    names = sections[table[6]][4]
    found = []
    for at in range(table[4], table[4] + table[5], 24):
        name, info, _, _, value, nbytes = struct.unpack_from("<IBBHQQ", data, at)
        end = data.index(b"\0", names + name)
        text = data[names + name : end].decode()
        if text:
            found.append(Symbol(text, value, nbytes, info & 15 == _TLS_SYMBOL))
    return tuple(found)
