"""An explanation as a LaTeX document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bpc.diagnose.explain import Array, Explanation, Line, Terms
from bpc.diagnose.notation import render_tex, tex_array, tex_escape, tex_symbol

_HEAD = r"""\documentclass{article}
\usepackage[a4paper,margin=2cm]{geometry}
\usepackage{amsmath}
\allowdisplaybreaks
\setcounter{MaxMatrixCols}{64}
\begin{document}
"""


def format_tex(made: Explanation) -> str:
    """A document that compiles by itself: a section for what is given, forward and backward.

    Each formula has the line of the spec that it comes from as its number.
    """
    parts = [_HEAD, rf"\section*{{{tex_escape(made.name)}}}", "\n"]
    if made.given:
        rows = (rf"{tex_symbol(name)} &= {tex_array(array)}" for name, array in made.given)
        parts.append(_align(rows))
    for phase in ("forward", "backward"):
        lines = [line for line in made.lines if line.phase == phase]
        if lines:
            parts.append(rf"\subsection*{{{phase.capitalize()}}}" + "\n")
            parts.append(_align(_equation(made, line) for line in lines))
    return "".join([*parts, "\\end{document}\n"])


def _align(rows: Iterator[str]) -> str:
    body = " \\\\\n".join(f"  {row}" for row in rows)
    return f"\\begin{{align*}}\n{body}\n\\end{{align*}}\n"


def _equation(made: Explanation, line: Line) -> str:
    """The formula; numbers of matrices below it, those of scalars behind it."""
    left = tex_symbol(line.symbol)
    text = rf"{left} &= {render_tex(line.expr, made.names, not line.matrices)}"
    if line.array is not None:
        wide = line.array.size > 1 or line.matrices
        middle = [_terms(line.terms)] if line.terms else []
        break_ = " \\\\\n  &= " if wide else " = "
        text = break_.join([text, *middle, tex_array(line.array)])
    return rf"{text} \tag{{line {line.span.line}}}"


def _terms(terms: Terms) -> str:
    return " + ".join(_sign(sign, factors).join(map(tex_array, factors)) for sign, factors in terms)


def _sign(sign: str, factors: Sequence[Array]) -> str:
    if all(array.size == 1 for array in factors):
        return r" \cdot "
    return r"\, " if sign == "matmul" else r" \odot "
