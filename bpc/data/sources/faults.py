"""What goes wrong with files of data: codes, places, and the nearest known word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bpc.errors import BpcError, DataError, Note, Span

UNREADABLE = "BPC0430"  # no such file, a folder, not readable
BAD_FORMAT = "BPC0431"  # not what the source reads, or cut short
TOO_LARGE = "BPC0432"  # more than is unpacked into memory
NOT_THERE = "BPC0433"  # no such column or member
BAD_RECORD = "BPC0434"  # a row that cannot be used
BAD_CLASS = "BPC0435"  # a class that the training part does not have
TOO_FEW = "BPC0436"  # no rows, or none left for a part
BAD_SHAPE = "BPC0437"  # shapes or numbers of rows that do not fit each other
BAD_OPTION = "BPC0438"  # an option that does not fit the others or the data
BAD_SPLIT = "BPC0439"  # rows to hold out that the data does not have

_MOST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Where:
    """Places in the spec: that of the section, and those of options (`target`, `inputs.1`)."""

    span: Span
    places: Mapping[str, Span] = field(default_factory=dict)

    def at(self, *keys: str) -> Span:
        """The place of the first of these options that is written, else of the section."""
        return next((self.places[key] for key in keys if key in self.places), self.span)


def fault(
    code: str, message: str, span: Span, help: str | None = None, notes: Sequence[Note] = ()
) -> BpcError:
    """A DataError of one diagnostic."""
    return DataError.at(code, message, span, notes, help)


def quote(text: str, longest: int = _MOST_SHOWN) -> str:
    """The text in quotes: short, one line, no control characters."""
    short = text if len(text) <= longest else text[: longest - 3] + "..."
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
    return f"'{safe}'"


def suggest(word: str, known: Iterable[str], listed: int = 12) -> str | None:
    """The nearest known word, or all of them when there are few."""
    words = list(known)
    near = difflib.get_close_matches(word[:64], words, n=1)
    if near:
        return f"did you mean {quote(near[0])}?"
    if not words:
        return None
    more = ", ..." if len(words) > listed else ""
    return "known are " + ", ".join(quote(known)[1:-1] for known in words[:listed]) + more
