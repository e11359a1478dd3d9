"""Text by characters or bytes: windows of it, and the symbol that comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import (
    BAD_CLASS,
    BAD_FORMAT,
    BAD_OPTION,
    TOO_FEW,
    TOO_LARGE,
    Where,
    fault,
    quote,
)
from bpc.data.sources.files import (
    MOST_UNPACKED,
    is_packed,
    keep,
    measure_file,
    open_file,
    quote_path,
    stamp_file,
    unpack,
)
from bpc.data.sources.records import Array, Column, Half, Prepared, Records, Rows
from bpc.data.sources.splits import DEFAULT_SHARE, check_ranges
from bpc.errors import Span
from bpc.types import F32, I64, DType, count_of, format_bytes

Options = Mapping[str, Any]
Symbols = NDArray[Any]
Segments = Sequence[tuple[int, int]]

_AT_ONCE = 1 << 22
_MOST_REASONS = 8
_MOST_SYMBOLS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Text:
    """A file as numbers: `found[codes[i]]` is the code point or byte at position i."""

    codes: Symbols
    found: NDArray[np.uint32]
    path: str


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """`context` symbols from each start, as numbers int64 [context] or one-hot [context, size].

    `table` turns codes of the file into numbers of the vocabulary. `shift` 1 gives the symbols that
    come next, `length` how many of them.
    """

    codes: Symbols
    table: NDArray[np.int64]
    starts: Rows
    length: int
    shift: int
    size: int
    one_hot: bool
    flat: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of one row."""
        if self.flat:
            return ()
        return (self.length, self.size) if self.one_hot else (self.length,)

    @property
    def dtype(self) -> DType:
        """f32 for one-hot rows, i64 for numbers."""
        return F32 if self.one_hot else I64

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored."""
        return self.length * self.codes.itemsize

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Rows) -> Array:
        """The windows with these numbers."""
        places = self.starts[rows][:, None] + np.arange(self.shift, self.shift + self.length)
        numbers: Array = self.table[self.codes[places]]
        if self.flat:
            numbers = numbers[:, 0]
        if self.flat or not self.one_hot:
            return numbers
        made = np.zeros((len(rows), self.length, self.size), np.float32)
        np.put_along_axis(made, numbers[..., None], 1.0, axis=-1)
        return made


def prepare_text(options: Options, where: Where) -> Prepared:
    """Windows of a text and what comes next, the vocabulary found in the part to train on.

    Windows do not reach from one part into the other: a share is held out at the end.

    Raises:
        DataError: the file cannot be read, is too short for a window, or has a symbol that the
            vocabulary lacks.
    """
    text = _load("file", options, where)
    if "test" in options:
        other = _load("test", options, where)
        train: Segments = [(0, len(text.codes))]
        test: Segments = [(0, len(other.codes))]
    else:
        other = text
        train, test = _split(len(text.codes), options.get("split"), where)
    vocabulary = _find_vocabulary(text, train, options, where)
    halves = [
        _make_half(source, segments, vocabulary, options, where)
        for source, segments in ((text, train), (other, test))
    ]
    return Prepared(halves[0], halves[1], tuple(_show(symbol, options) for symbol in vocabulary))


def _by_bytes(options: Options) -> bool:
    return bool(options.get("unit") == "bytes")


def _show(symbol: np.uint32, options: Options) -> str:
    return f"0x{int(symbol):02x}" if _by_bytes(options) else chr(int(symbol))


def _load(key: str, options: Options, where: Where) -> _Text:
    path, span = options[key], where.at(key)
    read = _read_bytes if _by_bytes(options) else _read_characters
    return keep((stamp_file(path, span), _by_bytes(options)), lambda: read(path, span))


def _read_bytes(path: str, span: Span) -> _Text:
    """Bytes are their own codes; a plain file is mapped."""
    if is_packed(path, span):
        codes = np.frombuffer(unpack(path, span), np.uint8)
    elif not measure_file(path, span).st_size:
        codes = np.empty(0, np.uint8)
    else:
        codes = np.memmap(path, np.uint8, "r")
    return _Text(codes, np.arange(256, dtype=np.uint32), path)


def _read_characters(path: str, span: Span) -> _Text:
    if is_packed(path, span):
        raw = unpack(path, span)
    else:
        size = measure_file(path, span).st_size
        if size > MOST_UNPACKED:
            message = f"{quote_path(path)} has {format_bytes(size)}, characters are read at once"
            help = f"the most is {format_bytes(MOST_UNPACKED)}; unit: bytes maps the file"
            raise fault(TOO_LARGE, message, span, help)
        with open_file(path, span) as file:
            raw = file.read(MOST_UNPACKED)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{quote_path(path)}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8"
        raise fault(BAD_FORMAT, message, span, "save it as UTF-8, or take unit: bytes") from None
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    found, codes = np.unique(points, return_inverse=True)
    small = np.uint8 if len(found) <= 256 else np.uint16 if len(found) <= 65536 else np.uint32
    return _Text(codes.astype(small), found, path)


def _split(count: int, split: Any, where: Where) -> tuple[Segments, Segments]:
    """Stretches of positions to train on and held out."""
    if isinstance(split, Mapping) and "every" in split:
        message = "split: every n-th window shares its symbols with its neighbours"
        help = "hold out a share (the end of the text), or split: {rows: [[first, end]]}"
        raise fault(BAD_OPTION, message, where.at("split"), help)
    if isinstance(split, Mapping):
        held = check_ranges(split["rows"], count, "symbol", where)
        edges = [0, *(edge for pair in held for edge in pair), count]
        kept = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        return kept, held
    share = DEFAULT_SHARE if split is None else float(split)
    if not share:
        return [(0, count)], [(0, count)]
    cut = count - round(count * share)
    return [(0, cut)], [(cut, count)]


def _find_vocabulary(
    text: _Text, segments: Segments, options: Options, where: Where
) -> NDArray[np.uint32]:
    """Code points or bytes in order, those of `vocabulary` or those of the part to train on."""
    told = options.get("vocabulary")
    if told is not None:
        points = list(dict.fromkeys(told.encode() if _by_bytes(options) else map(ord, told)))
        if len(points) < len(told):
            twice = next(c for c in told if told.count(c) > 1)
            raise fault(BAD_OPTION, f"{quote(twice)} is twice in it", where.at("vocabulary"))
        return _check_vocabulary(np.array(points, np.uint32), where)
    counts = np.zeros(len(text.found), np.int64)
    for first, end in segments:
        for start in range(first, end, _AT_ONCE):
            piece = text.codes[start : min(end, start + _AT_ONCE)]
            counts += np.bincount(piece, minlength=len(counts))
    return _check_vocabulary(text.found[counts > 0], where)


def _check_vocabulary(found: NDArray[np.uint32], where: Where) -> NDArray[np.uint32]:
    if 2 <= len(found) <= _MOST_SYMBOLS:
        return found
    message = f"the part to train on has {count_of(len(found), 'different symbol')}"
    help = f"from 2 to {_MOST_SYMBOLS:,} are possible"
    raise fault(TOO_FEW, message, where.at("vocabulary", "file"), help)


def _make_half(
    text: _Text, segments: Segments, vocabulary: NDArray[np.uint32], options: Options, where: Where
) -> Half:
    length, span = options["context"], where.at("file")
    each = options.get("predict") == "each"
    table = _make_table(text.found, vocabulary)
    starts = _find_starts(segments, length, options.get("stride") or 1)
    if not len(starts):
        message = f"{quote_path(text.path)}: a part has less than {length + 1} symbols in a row, "
        message += "a window and what comes next"
        raise fault(TOO_FEW, message, where.at("context"), "take a smaller context")
    size = len(vocabulary)
    columns: dict[str, Column] = {
        "x": WindowColumn(text.codes, table, starts, length, 0, size, True),
        "target": WindowColumn(text.codes, table, starts, length, 1, size, False)
        if each
        else WindowColumn(text.codes, table, starts, 1, length, size, False, flat=True),
    }
    records = Records(columns, lambda row: _name_window(text, int(starts[row]), options), span)
    half = Half(columns, records, np.arange(len(starts), dtype=np.int64))
    return _leave_out_unknown(half, text, table, starts, options, where)


def _make_table(found: NDArray[np.uint32], vocabulary: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Numbers in the vocabulary by code; -1 for a symbol that it lacks."""
    order = np.argsort(vocabulary)
    places = np.searchsorted(vocabulary, found, sorter=order).clip(max=len(vocabulary) - 1)
    numbers = order[places]
    return np.where(vocabulary[numbers] == found, numbers, -1).astype(np.int64)


def _find_starts(segments: Segments, length: int, stride: int) -> Rows:
    parts = [np.arange(first, end - length, stride, dtype=np.int64) for first, end in segments]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _leave_out_unknown(
    half: Half, text: _Text, table: NDArray[np.int64], starts: Rows, options: Options, where: Where
) -> Half:
    """The half without windows that hold a symbol which the vocabulary lacks."""
    if (table >= 0).all():
        return half
    length = options["context"]
    lacking = _count_unknown(text, table)
    bad = lacking[starts + length + 1] > lacking[starts]
    if not bad.any():
        return half
    reasons = tuple(
        _say_unknown(text, table, int(start), length, options)
        for start in starts[bad][:_MOST_REASONS]
    )
    if options.get("on_bad") != "skip":
        help = 'list it with vocabulary: "...", or leave its windows out with on_bad: skip'
        raise fault(BAD_CLASS, reasons[0], where.at("vocabulary", "file"), help)
    if bad.all():
        raise fault(TOO_FEW, f"no window of {quote_path(text.path)} is left", where.at("file"))
    return Half(half.columns, half.records, half.rows[~bad], int(bad.sum()), reasons)


def _count_unknown(text: _Text, table: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many symbols before each position the vocabulary lacks, int64 [positions + 1]."""
    counted = np.zeros(len(text.codes) + 1, np.int64)
    np.cumsum(table[text.codes] < 0, out=counted[1:])
    return counted


def _say_unknown(
    text: _Text, table: NDArray[np.int64], start: int, length: int, options: Options
) -> str:
    window = table[text.codes[start : start + length + 1]]
    place = start + int(np.flatnonzero(window < 0)[0])
    symbol = _show(text.found[text.codes[place]], options)
    told = "the vocabulary" if options.get("vocabulary") else "the part that is trained on"
    return f"{_name_window(text, place, options)}: {quote(symbol)} is not in {told}"


def _name_window(text: _Text, place: int, options: Options) -> str:
    """The file and the place of a symbol in it: its byte, or its line and character."""
    if _by_bytes(options):
        return f"{quote_path(text.path)}, byte {place}"
    newline = np.flatnonzero(text.found == ord("\n"))
    ends = np.flatnonzero(text.codes[:place] == newline[0]) if len(newline) else newline
    line_start = int(ends[-1]) + 1 if len(ends) else 0
    return f"{quote_path(text.path)}, line {len(ends) + 1}, character {place - line_start + 1}"
