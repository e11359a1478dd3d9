"""Rows of a table that cannot be used: the place of a cell, and how many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from bpc.data.sources.csvlayout import opened
from bpc.errors import BpcError, DataError, Diagnostic, Span
from bpc.types import count_of


@dataclass(slots=True)
class RowFaults:
    """Keeps what is wrong with the first row of a file, and counts the others."""

    path: str
    delimiter: str = ","
    first: Diagnostic | None = None
    more: int = 0

    def place(self, line: int, row: Sequence[str], at: int) -> Span:
        """Where cell `at` of a row stands; of a row that is only counted, where the line does."""
        if self.first is not None:
            return Span(self.path, line, 1)
        return find_cell(self.path, line, row, at, self.delimiter)

    def add(self, error: BpcError) -> None:
        """Take in the fault of a row."""
        if self.first is None:
            self.first = error.diagnostics[0]
        else:
            self.more += 1

    def raise_if_any(self) -> None:
        """Raise the first one, with the number of the others in its message."""
        if self.first is None:
            return
        more = f" (and {count_of(self.more, 'more row')})" if self.more else ""
        raise DataError([replace(self.first, message=self.first.message + more)])


def find_cell(path: str, line: int, row: Sequence[str], at: int, delimiter: str) -> Span:
    """The place of cell `at` of the row that ends in `line`; of the line where it has several.

    Reads the file again, since a parsed row has lost its quotes.
    """
    start = Span(path, line, 1)
    with opened(path, start) as text:
        raw = next(islice(text, line - 1, None), "").rstrip("\r\n")
    cells = _split(raw, delimiter)
    if len(cells) != len(row):
        return start
    column = sum(len(cell) + 1 for cell in cells[:at])
    before = len(cells[at]) - len(cells[at].lstrip())
    return Span(path, line, column + before + 1, max(1, len(cells[at].strip())))


def _split(raw: str, delimiter: str) -> list[str]:
    """The cells of a line with their quotes and blanks."""
    cells, start, quoted = [], 0, False
    for at, character in enumerate(raw):
        if character == '"':
            quoted = not quoted
        elif character == delimiter and not quoted:
            cells.append(raw[start:at])
            start = at + 1
    return [*cells, raw[start:]]
