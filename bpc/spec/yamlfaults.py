"""What a YAML parser's complaint means for the person who wrote the file."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from bpc.errors import Diagnostic, Note, Span
from bpc.spec import codes

_INDENT = "this line does not fit the lines above it"
_INDENT_HELP = "indent it like its neighbours, with spaces; keys of one mapping start in one column"
# What the parser says, what it means, what helps; the first that fits is taken.
_MEANINGS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed",
        "a second ':' where only one can be",
        "put the inner key on a line of its own, or the text in quotes",
    ),
    (
        "could not find expected ':'",
        "a key without ':'",
        "write 'key: value'; text over several lines is indented below its key",
    ),
    ("expected <block end>", _INDENT, _INDENT_HELP),
    ("did not find expected key", _INDENT, _INDENT_HELP),
    ("did not find expected '-' indicator", _INDENT, _INDENT_HELP),
    (
        "block sequence entries are not allowed",
        "a list cannot start here",
        "start it on a new line",
    ),
    ("violates indentation", _INDENT, _INDENT_HELP),
    ("expected ',' or ']'", "the list is not closed, or a ',' is missing", None),
    ("expected ',' or '}'", "the mapping is not closed, or a ',' is missing", None),
    ("unexpected end of stream", "the quotes are not closed", "add the closing quote"),
    ("unexpected document indicator", "the quotes are not closed", "add the closing quote"),
    ("document start", "something is left over after the document", _INDENT_HELP),
    ("escape", "this backslash sequence is unknown", "use single quotes to keep backslashes"),
    ("maximum nesting", "nested far more than 64 levels deep, the most that a spec may have", None),
    ("expected node content", "a value is missing here", None),
    (
        "found unexpected ':'",
        "a key without a value inside {...}",
        "leave a blank after ':', and write null for no value: {dim: null, factor: 4}",
    ),
    ("cannot start any token", "no value can start with this character", "put the text in quotes"),
)

_ENDS = ("unexpected end of stream", "unexpected document indicator")


def explain(fault: yaml.MarkedYAMLError, file: str, lines: Sequence[str]) -> Diagnostic:
    """A diagnostic for what the parser found at `fault`."""
    mark = fault.problem_mark or fault.context_mark
    if fault.context_mark and any(end in (fault.problem or "") for end in _ENDS):
        mark = fault.context_mark  # quotes are mended where they open
    line, column = (mark.line, mark.column) if mark else (0, 0)
    last = max((number for number, text in enumerate(lines) if text.strip()), default=0)
    if line > last:  # at the end of the file: show its last line rather than nothing
        line, column = last, len(lines[last])
    text = lines[line]
    indent = text[: len(text) - len(text.lstrip())]
    if "\t" in indent:
        span = Span(file, line + 1, indent.index("\t") + 1)
        return Diagnostic(codes.SYNTAX, "a tab cannot indent YAML", span, help="use spaces")
    message, help = _find_meaning(fault.problem or "")
    if "${" in text and "'${'" not in text and "unexpected ':'" not in (fault.problem or ""):
        help = 'inside {...} or [...] write an expression in quotes: "${4 * dim}"'
    span = Span(file, line + 1, min(column, len(text)) + 1)
    return Diagnostic(codes.SYNTAX, message, span, _find_notes(fault, span), help)


def _find_meaning(problem: str) -> tuple[str, str | None]:
    for said, message, help in _MEANINGS:
        if said in problem:
            return message, help
    return f"this is not YAML: {problem}", None


def _find_notes(fault: yaml.MarkedYAMLError, span: Span) -> tuple[Note, ...]:
    mark = fault.context_mark
    if mark is None or (mark.line + 1, mark.column + 1) == (span.line, span.column):
        return ()
    return (
        Note("what it belongs to starts here", Span(span.file, mark.line + 1, mark.column + 1)),
    )
