"""How a CSV file is laid out: delimiter, header, and which columns are read."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from math import isfinite
from typing import IO, Any

from bpc.data.sources.faults import (
    BAD_FORMAT,
    BAD_OPTION,
    NOT_THERE,
    TOO_FEW,
    TOO_LARGE,
    Where,
    fault,
    quote,
    suggest,
)
from bpc.data.sources.files import DAMAGED, broken_gzip, open_plain, quote_path
from bpc.errors import Span
from bpc.types import count_of, format_bytes

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
"""What stands in a cell that holds nothing, in small letters."""

_DELIMITERS = (",", ";", "\t", "|")
_MOST_COLUMNS = 1 << 16
_FIRST_ROWS = 2
_LONGEST_LINE = 16 << 20
_STRAY = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the first lines of a file say. `names` are those of its header, None without one."""

    delimiter: str
    names: tuple[str, ...] | None
    width: int
    first_row: tuple[str, ...]

    def name(self, column: int) -> str:
        """A column as messages call it."""
        return f"column {column}" if self.names is None else f"column {quote(self.names[column])}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Numbers of the columns of each input, and of the target."""

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    target: tuple[int, ...]


@contextmanager
def opened(path: str, span: Span) -> Iterator[IO[str]]:
    """The text of a file, plain or packed, a byte order mark left out.

    Raises:
        DataError: it cannot be read. Bytes that are not UTF-8 come as surrogates.
    """
    with open_plain(path, span) as raw:
        yield TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")


def rows_of(
    text: IO[str], delimiter: str, path: str, span: Span
) -> Iterator[tuple[int, list[str]]]:
    """The number of its last line and the cells of each row; blank lines are passed over.

    Raises:
        DataError: quotes that do not end, a cell over 131,072 characters, or not UTF-8.
    """
    reader = csv.reader(lines_of(text, path, span), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            message = f"{quote_path(path)}, line {reader.line_num}: {error}"
            raise fault(BAD_FORMAT, message, span, "a quote opens and closes a cell") from None
        except DAMAGED as error:
            raise broken_gzip(path, error, span) from None
        if row is None:
            return
        if row:
            yield reader.line_num, row


def lines_of(text: IO[str], path: str, span: Span) -> Iterator[str]:
    """The lines of a text that `opened` gives.

    Raises:
        DataError: a line is longer than 16 MiB, or not UTF-8.
    """
    number = 0
    while line := text.readline(_LONGEST_LINE):
        number += 1
        if not line.isascii() and (stray := _STRAY.search(line)):
            byte = ord(stray[0]) - 0xDC00
            message = f"{quote_path(path)}, line {number}: byte 0x{byte:02x} is not UTF-8"
            raise fault(BAD_FORMAT, message, span, "save the file as UTF-8")
        if len(line) == _LONGEST_LINE:
            message = f"{quote_path(path)} has a line of more than {format_bytes(_LONGEST_LINE)}"
            raise fault(TOO_LARGE, message, span, "a row of a CSV file ends with its line")
        yield line


def find_layout(path: str, options: Mapping[str, Any], where: Where, span: Span) -> Layout:
    """Delimiter and header of a file, found in its first lines unless the options tell them.

    Raises:
        DataError: the file is empty, has no rows below its header, or too many columns.
    """
    delimiter = _read_delimiter(options, where) or _find_delimiter(path, span)
    with opened(path, span) as text:
        first = [row for _, row in islice(rows_of(text, delimiter, path, span), _FIRST_ROWS)]
    if not first:
        raise fault(TOO_FEW, f"{quote_path(path)} is empty", span)
    if len(first[0]) > _MOST_COLUMNS:
        message = f"{quote_path(path)} has {count_of(len(first[0]), 'column')}"
        raise fault(BAD_FORMAT, message, span, f"the most is {_MOST_COLUMNS:,}")
    told = options.get("header")
    header = not any(is_number(cell) for cell in first[0]) if told is None else told
    if header and len(first) == 1:
        help = "with header: false the first row is data"
        raise fault(TOO_FEW, f"{quote_path(path)} has no rows below its header", span, help)
    names = tuple(cell.strip() for cell in first[0]) if header else None
    return Layout(delimiter, names, len(first[0]), tuple(first[header]))


def _read_delimiter(options: Mapping[str, Any], where: Where) -> str | None:
    told: str | None = options.get("delimiter")
    if told is None or (len(told) == 1 and told not in '"\r\n\0 '):
        return told
    message = f"delimiter: {quote(told)} cannot separate cells"
    help = 'one character, such as ";", or "\\t" for a tab'
    raise fault(BAD_OPTION, message, where.at("delimiter"), help)


def _find_delimiter(path: str, span: Span) -> str:
    """The one of , ; tab | that the first line has most of outside of quotes."""
    with opened(path, span) as text:
        try:
            line = next((line for line in lines_of(text, path, span) if line.strip()), "")
        except DAMAGED as error:
            raise broken_gzip(path, error, span) from None
    bare = "".join(line.split('"')[::2])
    return max(_DELIMITERS, key=lambda mark: bare.count(mark))


def to_number(text: str) -> float | None:
    """The finite number that a cell holds, None for everything else."""
    bare = text.strip()
    if not bare.isascii() or "_" in bare:
        return None
    try:
        value = float(bare)
    except ValueError:
        return None
    return value if isfinite(value) else None


def is_number(text: str) -> bool:
    """Whether a cell holds a finite number."""
    return to_number(text) is not None


def choose_columns(layout: Layout, options: Mapping[str, Any], path: str, where: Where) -> Chosen:
    """The columns that are read; without `inputs`, all but the target and those left out.

    Raises:
        DataError: a column does not exist, or is named twice.
    """
    target = _find_all(layout, options["target"], "target", path, where)
    dropped = _find_all(layout, options.get("leave_out") or (), "leave_out", path, where)
    given = options.get("inputs")
    if isinstance(given, Mapping):
        inputs = {
            name: _find_all(layout, columns, f"inputs.{name}", path, where)
            for name, columns in given.items()
        }
    elif given is not None:
        inputs = {"x": _find_all(layout, given, "inputs", path, where)}
    else:
        kept = [at for at in range(layout.width) if at not in (*target, *dropped)]
        inputs = {"x": tuple(kept)}
    for name, columns in inputs.items():
        _check_inputs(layout, name, columns, target, where)
    return Chosen(tuple(inputs.items()), target)


def _check_inputs(
    layout: Layout, name: str, columns: Sequence[int], target: Sequence[int], where: Where
) -> None:
    span = where.at(f"inputs.{name}", "inputs")
    if not columns:
        raise fault(BAD_OPTION, f"no column is left for the input {name}", span)
    shared = set(columns) & set(target)
    if shared:
        message = f"{layout.name(min(shared))} is both an input and the target"
        raise fault(BAD_OPTION, message, span, "the net would be told what it has to find")


def _find_all(layout: Layout, wanted: Any, key: str, path: str, where: Where) -> tuple[int, ...]:
    items = (wanted,) if isinstance(wanted, int | str) else tuple(wanted)
    found: list[int] = []
    for place, item in enumerate(items):
        span = where.at(f"{key}.{place}", key, key.split(".")[0])
        column = _find(layout, item, path, span)
        if column in found:
            raise fault(BAD_OPTION, f"{layout.name(column)} is named twice in {key}", span)
        found.append(column)
    return tuple(found)


def _find(layout: Layout, item: int | str, path: str, span: Span) -> int:
    if isinstance(item, int):
        if -layout.width <= item < layout.width:
            return item % layout.width
        message = f"{quote_path(path)} has no column {item}"
        help = f"it has {count_of(layout.width, 'column')}, from 0 to {layout.width - 1}"
        raise fault(NOT_THERE, message, span, help)
    if layout.names is None:
        message = f"{quote_path(path)} has no header, so no column {quote(item)}"
        help = "name columns by number, from 0; or header: true"
        raise fault(NOT_THERE, message, span, help)
    places = [at for at, name in enumerate(layout.names) if name == item]
    if len(places) == 1:
        return places[0]
    many = f"{quote_path(path)} has {len(places)} columns called {quote(item)}"
    message = many if places else f"{quote_path(path)} has no column {quote(item)}"
    by_number = "name it by its number, from 0"
    raise fault(NOT_THERE, message, span, by_number if places else suggest(item, layout.names))
