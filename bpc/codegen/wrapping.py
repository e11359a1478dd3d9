"""The last passes over generated text: lines that fit, or `#line` for the spec's statements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from bpc.errors import Span
from bpc.kernel import Kernel, Reduction, Statement

WIDTH = 110
_LEAST = 24  # columns of code before a break
_BREAKS = re.compile(r", |\((?=\w)| \? | : | \+ | - | \* | / | && | \|\|")
_LATE = {" * ": 1, " / ": 1, "(": 2}  # what holds together
_OPENING, _CLOSING = "([{", ")]}"


def wrap_code(text: str, width: int = WIDTH) -> str:
    """The text with long lines broken where a C++ compiler does not mind.

    The comment behind a long line moves above it; then the outermost operator or comma before
    the width ends the line. Comments break between words. Preprocessor lines stay.
    """
    return "\n".join(part for line in text.split("\n") for part in _wrap(line, width))


def _wrap(line: str, width: int, hang: str | None = None) -> list[str]:
    """The line in pieces; `hang` is the indentation of those after the first."""
    if len(line) <= width or line.lstrip().startswith("#"):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if line.lstrip().startswith("//"):
        return _wrap_comment(line, width)
    code, mark, comment = line.partition("  // ")
    if mark:
        return [*_wrap(f"{indent}// {comment}", width), *_wrap(code, width)]
    cut = _best_break(code, len(indent), width)
    if cut is None:
        return [line]
    hang = f"{indent}    " if hang is None else hang
    return [code[:cut].rstrip(), *_wrap(hang + code[cut:].lstrip(), width, hang)]


def _wrap_comment(line: str, width: int) -> list[str]:
    start = re.match(r"\s*//\s*", line)
    assert start is not None
    cut = line.rfind(" ", len(start[0]) + 1, width + 1)
    if cut < 0:
        return [line]
    return [line[:cut], *_wrap(f"{start[0]}  {line[cut + 1 :]}", width)]


def _best_break(code: str, indent: int, width: int) -> int | None:
    """Where the next line begins: the least nested place, * and / after others, the last."""
    best: tuple[int, int, int] | None = None
    for place in _BREAKS.finditer(code, indent + 1):
        # A comma stays behind, an operator leads the next line.
        at = place.end() if place[0] in (", ", "(") else place.start() + 1
        if indent + _LEAST < at <= width + 1:
            found = (_nesting(code[indent:at]), _LATE.get(place[0], 0), -at)
            best = min(best or found, found)
    return -best[2] if best else None


def _nesting(code: str) -> int:
    return sum((c in _OPENING) - (c in _CLOSING) for c in code)


def mark_places(text: str, kernels: Iterable[Kernel], name: str) -> str:
    """The text with `#line` around each statement, so that tools name the spec's line of it.

    What follows a statement has its own place again: `name` and the line there.
    """
    places = {f"{span.file}:{span.line}": span for span in _spans(kernels)}
    lines: list[str] = []
    for line in text.split("\n"):
        span = places.get(_place_at_end(line, places))
        if span is None:
            lines.append(line)
            continue
        lines += [_line(span.line, span.file), line, _line(len(lines) + 4, name)]
    return "\n".join(lines)


def _spans(kernels: Iterable[Kernel]) -> Iterator[Span]:
    for kernel in kernels:
        for item in kernel.body:
            if isinstance(item, Statement | Reduction):
                yield item.span


def _place_at_end(line: str, places: Iterable[str]) -> str:
    """The place that ends the comment behind a statement; '' if there is none."""
    code, mark, comment = line.partition("  // ")
    if not mark or not code.strip():
        return ""
    return next((p for p in places if comment == p or comment.endswith(f", {p}")), "")


def _line(number: int, file: str) -> str:
    assert number > 0
    return f"#line {number} {json.dumps(file, ensure_ascii=False)}"
