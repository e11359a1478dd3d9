"""Which line of which template a line of generated text comes from."""

from __future__ import annotations

import re

from bpc.codegen.cuda import CudaFunction
from bpc.resources import template_root

HEADER_NAME = "bpc_cuda.h"
GENERATOR = "generator"  # bpc/codegen/lines.py and parts.py: loads, stores, indices, statements

_HOLE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}")
_TYPES = r"\b(?:float|double|f16|bf16|int64_t|int32_t|uint8_t)\b"


def line_at(text: str, start: int, end: int) -> str:
    """The whole lines around text[start:end], as one."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    lines = text[first : last if last >= 0 else len(text)].splitlines()
    return " ".join(re.sub(r"\s*//.*", "", line).strip() for line in lines)


class Places:
    """Finds lines in the templates."""

    def __init__(self) -> None:
        self._lines = {path.name: _patterns(path.read_text()) for path in _templates()}
        self._words = _template_words()

    def template_of(self, function: CudaFunction) -> str:
        """The template that wrote a function."""
        if function.calls:
            return "joined.jinja"
        skeleton = function.kernels[0].skeleton
        return "conv2d.jinja" if skeleton.startswith("conv2d") else f"{skeleton}.jinja"

    def find(self, template: str, line: str) -> tuple[str, int]:
        """(template, line number), or the generator of what fills the holes."""
        for name in (template, "macros.jinja"):
            for number, pattern in self._lines[name]:
                if pattern.fullmatch(line):
                    return name, number
        return GENERATOR, 0


def _templates() -> list:
    return sorted((template_root() / "cuda").glob("*.jinja"))


def _patterns(text: str) -> list[tuple[int, re.Pattern[str]]]:
    """A pattern for each line that has text of its own."""
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"\s*//.*", "", re.sub(r'^\{\{ "\s*" \}\}', "", raw.strip())).strip()
        parts = _HOLE.split(line)
        if len(re.sub(r"\W", "", "".join(parts))) < 2:
            continue
        pattern = ".*?".join(re.escape(part) for part in parts)
        found.append((number, re.compile(pattern.strip())))
    return found


def _template_words() -> frozenset[str]:
    """Words that templates and the header themselves use."""
    texts = [_HOLE.sub(" ", path.read_text()) for path in _templates()]
    return frozenset(re.findall(r"[A-Za-z_]\w*", re.sub(r"//[^\n]*", "", " ".join(texts))))


_WORDS = _template_words()


def normal_form(line: str) -> str:
    """A line with a letter for every name and number that belongs to a network."""
    line = re.sub(_TYPES, "T", line)
    line = re.sub(r"(?<![\w.])(?!(?:0|1)\b)\d[\w.]*", "N", line)
    return re.sub(
        r"\b[A-Za-z_]\w*",
        lambda match: (
            match[0] if _keep(match[0]) else ("L_in" if match[0].endswith("_in") else "L")
        ),
        line,
    )


def _keep(word: str) -> bool:
    return word in _WORDS or word.startswith(("bpc_", "__")) or word in ("T", "N", "true", "false")
