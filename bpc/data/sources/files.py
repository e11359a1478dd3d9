"""Files of data: looked at before they are opened, unpacked within bounds."""

from __future__ import annotations

import gzip
import os
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import IO, Any, TypeVar, cast

from bpc.data.sources.faults import BAD_FORMAT, TOO_LARGE, UNREADABLE, fault, quote, suggest
from bpc.errors import BpcError, Span
from bpc.types import format_bytes

MOST_UNPACKED = 2 << 30
"""Bytes that a packed file may have when it is unpacked into memory."""

_DEFLATE_RATIO = 1032
"""The most that deflate packs: 258 bytes into 2 bits."""

DAMAGED = (OSError, EOFError, zlib.error)
"""What reading a packed file raises where it is damaged."""

_PIECE = 1 << 20
_MOST_NEIGHBOURS = 10_000
_GZIP_MAGIC = b"\x1f\x8b"

Stamp = tuple[str, int, int, int, int, int]


_MOST_KEPT = 2
_kept: OrderedDict[Hashable, Any] = OrderedDict()
_keeping = threading.Lock()

Made = TypeVar("Made")


def keep(key: Hashable, make: Callable[[], Made]) -> Made:
    """What was made for `key`, or makes it: a spec describes a source before it reads it.

    The latest two are kept. A key has the stamp of its file in it.
    """
    with _keeping:
        if key in _kept:
            found: Made = _kept[key]
            return found
    made = make()
    with _keeping:
        _kept[key] = made
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return made


def measure_file(path: str, span: Span) -> os.stat_result:
    """The state of a regular file.

    Raises:
        DataError: there is none at `path`, or it cannot be looked at; names the nearest file.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        message = f"there is no file {quote_path(path)}"
        raise fault(UNREADABLE, message, span, _near(path, span)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, span) from None
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise fault(UNREADABLE, f"{quote_path(path)} is {what}", span, "name a file of data")
    return found


def stamp_file(path: str, span: Span) -> Stamp:
    """What changes when a file does: a key for what was read of it."""
    found = measure_file(path, span)
    where = os.path.realpath(path)
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return where, found.st_dev, found.st_ino, found.st_size, *times


def open_file(path: str, span: Span) -> IO[bytes]:
    """A regular file, opened to be read.

    Raises:
        DataError: it does not exist or may not be read.
    """
    measure_file(path, span)
    try:
        return open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error, span) from None


def read_start(path: str, count: int, span: Span) -> bytes:
    """The first bytes of a file, unpacked if it is packed with gzip."""
    with open_file(path, span) as file:
        if not _is_gzip(file):
            return file.read(count)
        try:
            with gzip.open(file) as packed:
                return packed.read(count)
        except DAMAGED as error:
            raise broken_gzip(path, error, span) from None


def is_packed(path: str, span: Span) -> bool:
    """Whether a file is packed with gzip, whatever its name."""
    with open_file(path, span) as file:
        return _is_gzip(file)


def unpack(path: str, span: Span, most: int = MOST_UNPACKED) -> bytes:
    """The whole content of a file packed with gzip, at most `most` bytes.

    Raises:
        DataError: it is damaged, or has more.
    """
    parts, size = [], 0
    with open_file(path, span) as file:
        try:
            with gzip.open(file) as packed:
                while piece := packed.read(_PIECE):
                    size += len(piece)
                    if size > most:
                        raise too_large(path, f"more than {format_bytes(most)}", span)
                    parts.append(piece)
        except DAMAGED as error:
            raise broken_gzip(path, error, span) from None
    return b"".join(parts)


def open_plain(path: str, span: Span) -> IO[bytes]:
    """A file opened to be read, unpacked while it is read if it is packed with gzip."""
    if is_packed(path, span):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open_file(path, span)


def can_hold(packed_bytes: int, unpacked_bytes: int) -> bool:
    """Whether so many bytes packed with deflate can become so many."""
    return unpacked_bytes <= packed_bytes * _DEFLATE_RATIO + 64


def quote_path(path: str) -> str:
    """A path in quotes, in full, without control characters."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)
    return f"'{safe}'"


def too_large(path: str, found: str, span: Span, help: str | None = None) -> BpcError:
    """The error of a packed file that has more than is unpacked into memory."""
    message = f"{quote_path(path)} has {found} unpacked; the most is {format_bytes(MOST_UNPACKED)}"
    return fault(TOO_LARGE, message, span, help or "unpack the file, and name the unpacked one")


def broken_gzip(path: str, error: Exception, span: Span) -> BpcError:
    """The error of a file that begins like gzip and is damaged, or cannot be read."""
    if isinstance(error, OSError) and error.errno is not None:
        return _unreadable(path, error, span)
    message = f"{quote_path(path)} is packed with gzip and damaged: {_brief(error)}"
    return fault(BAD_FORMAT, message, span, "copy or download it again")


def _is_gzip(file: IO[bytes]) -> bool:
    start = file.read(2)
    file.seek(0)
    return start == _GZIP_MAGIC


def _unreadable(path: str, error: Exception, span: Span) -> BpcError:
    reason = error.strerror if isinstance(error, OSError) else "no file can have that name"
    return fault(UNREADABLE, f"cannot read {quote_path(path)}: {reason}", span)


def _near(path: str, span: Span) -> str:
    """The file beside it that is spelt most like it; else what paths are relative to."""
    folder, name = os.path.split(path)
    names: list[Any] = []
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        names = [entry.name for entry, _ in zip(entries, range(_MOST_NEIGHBOURS), strict=False)]
    near = suggest(name, names, listed=0) or ""
    if near.startswith("did you mean"):
        return near
    if span.file.startswith("--"):
        return "a path on the command line is relative to the working folder"
    return "paths are relative to the file in which they are written"


def _brief(error: Exception) -> str:
    return quote(str(error) or type(error).__name__, longest=100)[1:-1]
