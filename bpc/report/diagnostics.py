"""Diagnostics as text: the place, the line with a caret below it, notes, and help."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from bpc.errors import Diagnostic, Note, Span

ReadLine = Callable[[str, int], str | None]

_GUTTER = 5
_TAB = "    "
_WIDEST_LINE = 100
_ELLIPSIS = "..."
_MOST_BYTES = 4 << 20


def render_diagnostics(diagnostics: Sequence[Diagnostic], read_line: ReadLine) -> str:
    """All diagnostics as plain text without colour, and a last line that counts the errors.

    Args:
        diagnostics: in the order in which they are shown.
        read_line: file and one-based line number to that line's text, or None if there is none.
    """
    blocks = [_render(item, read_line) for item in diagnostics]
    return "\n".join([*blocks, *_count_errors(diagnostics)])


def read_line_of_file(file: str, line: int) -> str | None:
    """The line of a file on disk, or None: the usual `read_line` of `render_diagnostics`."""
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        text = path.read_bytes().decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    return read_line_of_text(text, line)


def read_line_of_text(text: str, line: int) -> str | None:
    """The one-based line of a text whose lines end where YAML ends them."""
    for end in ("\r\n", "\r", "\x85", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    lines = text.split("\n")
    return lines[line - 1] if 0 < line <= len(lines) else None


def _render(item: Diagnostic, read_line: ReadLine) -> str:
    where = f"{item.span}: " if item.span else ""
    lines = [f"{where}{item.severity} {item.code}: {item.message}"]
    source = read_line(item.span.file, item.span.line) if item.span else None
    if item.span is not None and source is not None:
        lines += _quote(source, item.span)
    lines += [_render_note(note) for note in item.notes]
    if item.help:
        lines.append(" " * (_GUTTER + 1) + f"help: {item.help}")
    return "\n".join(_clean(line) for line in lines)


def _render_note(note: Note) -> str:
    place = f" at {note.span}" if note.span else ""
    return " " * (_GUTTER + 1) + f"= {note.text}{place}"


def _quote(source: str, span: Span) -> list[str]:
    """The source line behind its number, and the caret line below it."""
    start = min(span.column - 1, len(source))
    stop = max(start + 1, min(start + span.width, len(source)))
    source, start, stop = _cut(source, start, stop)
    before, marked = _expand(source[:start]), _expand(source[start:stop])
    text = before + marked + _expand(source[stop:])
    caret = " " * _width(before) + "^" * max(1, _width(marked))
    return [f"{span.line:>{_GUTTER}} | {text}".rstrip(), f"{'':>{_GUTTER}} | {caret}"]


def _cut(source: str, start: int, stop: int) -> tuple[str, int, int]:
    """A window around the marked part of a line that is too long to print."""
    if len(source) <= _WIDEST_LINE:
        return source, start, stop
    first = max(0, min(start - _WIDEST_LINE // 2, len(source) - _WIDEST_LINE))
    last = min(len(source), first + _WIDEST_LINE)
    head = _ELLIPSIS if first else ""
    tail = _ELLIPSIS if last < len(source) else ""
    shift = len(head) - first
    return head + source[first:last] + tail, start + shift, min(stop, last) + shift


def _expand(text: str) -> str:
    return "".join(_TAB if c == "\t" else _visible(c) for c in text)


def _visible(character: str) -> str:
    """The character, or a stand-in for one that would move the cursor or turn the text around."""
    return "\ufffd" if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co") else character


def _clean(line: str) -> str:
    return "".join(_visible(c) for c in line)


def _width(text: str) -> int:
    """Terminal columns: two for wide characters, none for combining ones."""
    return sum(_columns(c) for c in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _count_errors(diagnostics: Sequence[Diagnostic]) -> list[str]:
    errors = [item for item in diagnostics if item.severity == "error"]
    if not errors:
        return []
    count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
    # Places on the command line are called `--set train.lr`; one `--set` stands for all of them.
    named = [_name_file(item.span.file) for item in errors if item.span]
    files = list(dict.fromkeys(_clean(file) for file in named))
    return [f"{count} in {', '.join(files)}" if files else count]


def _name_file(file: str) -> str:
    return file.partition(" ")[0] if file.startswith("--") else file
