"""The text of a spec file, or a diagnostic that says why there is none."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from bpc.errors import Span, SpecError
from bpc.spec import codes

MOST_BYTES = 1 << 20
_LINE_END = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_UNPRINTABLE = re.compile(
    r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def split_lines(text: str) -> list[str]:
    """The lines of a text, broken where YAML breaks them."""
    return _LINE_END.split(text)


def read_text(path: Path, file: str, asked_at: Span | None = None) -> str:
    """The text of the file, shown to the user as `file`; `asked_at` is the place that names it.

    Raises:
        SpecError: no such file, not a regular file, not readable, over 1 MiB, or not UTF-8.
    """
    span = asked_at or Span(file, 1, 1)
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            with path.open("rb") as stream:
                return decode(stream.read(MOST_BYTES + 1), file)
    except FileNotFoundError:
        help = "a spec is read from a file, not from standard input" if file == "-" else None
        message = f"there is no file {file!r}"
        raise SpecError.at(codes.UNREADABLE, message, span, help=help) from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "no file can have that name"
        raise SpecError.at(codes.UNREADABLE, f"cannot read {file!r}: {reason}", span) from None
    what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise SpecError.at(codes.UNREADABLE, f"{file!r} is {what}; a spec is a YAML file", span)


def decode(raw: bytes, file: str) -> str:
    """The bytes of a file as text.

    Raises:
        SpecError: over 1 MiB, or not UTF-8, with the place of the first bad byte.
    """
    if len(raw) > MOST_BYTES:
        message = "the file is larger than 1 MiB, the most that a spec may have"
        raise SpecError.at(codes.UNREADABLE, message, Span(file, 1, 1))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        span = _span_after(raw[: fault.start].decode("utf-8"), file)
        message = f"byte 0x{raw[fault.start]:02x} is not UTF-8"
        raise SpecError.at(codes.NOT_UTF8, message, span, help="save the file as UTF-8") from None


def check_characters(text: str, file: str) -> None:
    """Refuse what YAML does not allow in a file: control characters, a byte order mark.

    Raises:
        SpecError: with the place of the first such character; or over 1 MiB of characters.
    """
    if len(text) > MOST_BYTES:
        message = "the text is longer than 1 MiB, the most that a spec may have"
        raise SpecError.at(codes.UNREADABLE, message, Span(file, 1, 1))
    match = _UNPRINTABLE.search(text)
    if match is None:
        return
    span = _span_after(text[: match.start()], file)
    if match[0] == "\ufeff":
        message, help = "there is a byte order mark here", "save the file as UTF-8 without one"
    else:
        message, help = f"the character U+{ord(match[0]):04X} cannot be in a spec", "delete it"
    raise SpecError.at(codes.NOT_UTF8, message, span, help=help)


def _span_after(text: str, file: str) -> Span:
    lines = split_lines(text)
    return Span(file, len(lines), len(lines[-1]) + 1)
