"""Each line of the spec that a CUDA kernel computes: its formula, its CUDA, its instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bpc.codegen.cuda import CudaFunction, CudaSource
from bpc.codegen.header import formulas
from bpc.codegen.parts import generalise
from bpc.diagnose.assembly import Piece, instructions_of
from bpc.errors import Span
from bpc.kernel import Kernel, Reduction, Statement
from bpc.report.diagnostics import read_line_of_file

_PRODUCT = re.compile(r"^\s*bpc_(gemm|conv)\w*<")
_COMMENT = re.compile(r"\s*//.*$")


def beside(
    source: CudaSource,
    function: CudaFunction,
    name: str,
    assembly: Mapping[str, Sequence[Piece]],
) -> Iterator[dict[str, Any]]:
    """One row for the product that a function makes, and for every statement and reduction.

    Args:
        source: the whole text.
        function: a function of it.
        name: what compilers call the text.
        assembly: by kind (`ptx`, `sass`), the code of the entry that runs the function.
    """
    whole = source.text.splitlines()
    text = function.text.strip("\n").splitlines()
    first = source.text[: source.text.index(function.text.strip("\n"))].count("\n") + 1
    assert whole[first - 1] == text[0]
    for place, formula, lines in _parts(function, text):
        found = {
            kind: instructions_of(pieces, name, range(first + lines.start, first + lines.stop))
            for kind, pieces in assembly.items()
        }
        yield {
            "place": place.to_json(),
            "spec": _without_comment(read_line_of_file(place.file, place.line) or ""),
            "formula": formula,
            "cuda": _in_one_line(text[lines.start : lines.stop]),
            **found,
        }


def _parts(function: CudaFunction, text: Sequence[str]) -> Iterator[tuple[Span, str, range]]:
    """Place in the spec, formula, and lines of the text, counted from its first."""
    kernel = generalise(function.kernels[0], function.kernels)
    # A line a product and an item, in the order of both.
    shown = iter(formulas(kernel))
    if kernel.sources:
        call = next(at for at, line in enumerate(text) if _PRODUCT.match(line))
        yield kernel.spans[0], next(shown), _extent(text, call)
    for item in kernel.body:
        formula = next(shown)
        if isinstance(item, Statement | Reduction):
            yield item.span, formula, _find(text, item, kernel)


def _find(text: Sequence[str], item: Statement | Reduction, kernel: Kernel) -> range:
    """The declaration of what it computes; of a sum over threads, the loop with its line."""
    declared = re.compile(rf"^\s*(const )?\w+ {re.escape(item.label)} = ")
    marked = re.compile(rf"// .*:{item.span.line}$")
    for pattern in (declared, marked):
        for at, line in enumerate(text):
            if pattern.search(line) and not line.startswith("//"):
                return _extent(text, at)
    return range(0)


def _extent(text: Sequence[str], first: int) -> range:
    """The lines of the C++ statement that begins on a line, by its brackets."""
    depth = 0
    for at in range(first, len(text)):
        code = _COMMENT.sub("", text[at])
        depth += sum(code.count(mark) for mark in "([{") - sum(code.count(mark) for mark in ")]}")
        if depth <= 0 and code.endswith((";", "}")):
            return range(first, at + 1)
    return range(first, len(text))


def _in_one_line(lines: Sequence[str]) -> str:
    """A statement without its comments; the body of a loop or function in it is left out."""
    code = " ".join(filter(None, (_COMMENT.sub("", line).strip() for line in lines)))
    head, brace, _ = code.replace("( ", "(").partition("{")
    return f"{head}{{ ... }}" if brace else code


def _without_comment(line: str) -> str:
    """A line of YAML without the comment that may end it."""
    return re.sub(r"(^|\s)#[^\"']*$", "", line).strip()
