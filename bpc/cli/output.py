"""How results reach a person or a program: stdout for results, stderr for progress."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

SCHEMA_VERSION = 1

Results = Mapping[str, Any]


def emit_json(command: str, ok: bool, facts: Results) -> None:
    """Print the one object that `--json` promises."""
    whole = {"schema_version": SCHEMA_VERSION, "command": command, "ok": ok, **facts}
    click.echo(json.dumps(_plain(whole), indent=2, allow_nan=False))


def _plain(value: object) -> object:
    """The same data without what JSON lacks: inf and nan become text, tuples lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def show(text: str) -> None:
    """Print a line of a result."""
    click.echo(text)


def tell(text: str) -> None:
    """Print a line about what is going on, which is no result."""
    click.echo(text, err=True)


def give_up_stdout() -> None:
    """Let what is still written to stdout, Python's own last flush included, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def uses_colour(stream: Any) -> bool:
    """Whether a stream is a terminal that wants colour (NO_COLOR is obeyed)."""
    return not os.environ.get("NO_COLOR") and bool(stream.isatty())


def stdout_width() -> int:
    """Columns of the terminal; unlimited where lines go to a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = ()
) -> list[str]:
    """Lines of aligned columns, to the right except for those in `left`.

    Where the terminal is too narrow, the widest columns of `left`, which hold words, are cut; the
    first of these, which holds names, only after the others, and in the middle of each name.
    """
    cells = [list(header), *(list(row) for row in rows)]
    to_left = sorted(set(left))
    widths = _fit([max(len(row[i]) for row in cells) for i in range(len(header))], to_left)
    lines = []
    for row in cells:
        aligned = (
            (shorten if i != to_left[0] else shorten_name)(text, width).ljust(width)
            if i in to_left
            else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(shorten("  " + "  ".join(aligned).rstrip(), stdout_width()))
    return lines


def _fit(widths: list[int], flexible: Sequence[int], least: int = 8) -> list[int]:
    """The widths of columns, the widest flexible ones made narrower until all fit."""
    over = 2 * len(widths) + sum(widths) - stdout_width()
    for group in (flexible[1:], flexible[:1]):
        while over > 0 and any(widths[i] > least for i in group):
            widths[max(group, key=lambda i: widths[i])] -= 1
            over -= 1
    return widths


def shorten(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def shorten_name(text: str, width: int) -> str:
    """The text, cut in its middle where it is wider: names often differ at their ends."""
    head = max(width - 1, 0) // 2
    tail = max(width - 1 - head, 0)
    return text if len(text) <= width else text[:head] + "…" + text[len(text) - tail :]


def count(number: int) -> str:
    """`1,048,576`."""
    return f"{number:,}"


def format_launches(number: int) -> str:
    """`1 launch`, `9 launches`."""
    return f"{number:,} launch{'' if number == 1 else 'es'}"


def scaled(number: float) -> str:
    """`51.4M`: a number of operations, to three digits."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.0f}"


def bar(share: float, width: int = 8) -> str:
    """A horizontal bar for a share of 0 to 1, in eighths of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def format_notes(notes: Iterable[Results], most: int) -> list[str]:
    """`note: what is worth knowing (net.yaml:9:5)`, at most so many."""
    lines = []
    for note in list(notes)[:most]:
        where = place(note.get("place"))
        lines.append(f"note: {note['text']}" + (f" ({where})" if where else ""))
    return lines


def place(value: object) -> str:
    """`file:line:column` from a span as plain data, or nothing."""
    if not isinstance(value, Mapping):
        return str(value) if value else ""
    return f"{value['file']}:{value['line']}:{value['column']}"
