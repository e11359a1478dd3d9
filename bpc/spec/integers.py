"""`${4 * dim}`: integer arithmetic over block parameters. Nothing else is computed from text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bpc.errors import BpcError, Span, SpecError
from bpc.spec import codes
from bpc.spec.words import show, suggest

_WHOLE = re.compile(r"\s*\$\{(.*)\}\s*", re.DOTALL)
_ALLOWED = re.compile(r"[A-Za-z0-9_+\-*/%() ]*")
_LETTER_AFTER_DIGIT = re.compile(r"(?<![A-Za-z0-9_])[0-9]+[A-Za-z_]")
_LONGEST = 200
_LARGEST = 2**63 - 1
_HELP = "an expression has integers, parameters of the block, + - * // % ** and parentheses"


def has_expression(text: str) -> bool:
    """Whether the text holds `${`, so that it is computed and not taken as it is."""
    return "${" in text


def compute(text: str, values: Mapping[str, int], span: Span) -> int:
    """The integer that the whole text `${...}` stands for; `span` is its first character.

    Raises:
        SpecError: not one whole expression, other than integer arithmetic, an unknown name, a
            division by zero, or a result of 2**63 and more.
    """
    match = _WHOLE.fullmatch(text)
    if match is None:
        message = "an expression must be the whole value"
        raise _fault(message, span, help="write only ${...}, such as ${4 * dim}")
    start = match.start(1)
    _check_characters(match[1], _shift(span, start))
    left = len(match[1]) - len(match[1].lstrip())
    evaluation = _Evaluation(values, _shift(span, start + left))
    return evaluation.visit(_parse(match[1].strip(), span))


def _check_characters(body: str, span: Span) -> None:
    if len(body) > _LONGEST:
        raise _fault(f"an expression has at most {_LONGEST} characters", span)
    found = _ALLOWED.match(body)
    assert found is not None
    if found.end() < len(body):
        wrong = body[found.end()]
        raise _fault(f"{show(wrong)} cannot be in an expression", _shift(span, found.end()))
    number = _LETTER_AFTER_DIGIT.search(body)
    if number is not None:
        message = f"{show(number[0])} is neither a number nor a name"
        raise _fault(message, _shift(span, number.start()))


def _parse(body: str, span: Span) -> ast.expr:
    try:
        return ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _fault("the expression cannot be read", span) from None


@dataclass(frozen=True, slots=True)
class _Evaluation:
    values: Mapping[str, int]
    span: Span

    def visit(self, node: ast.expr) -> int:
        value = self._visit(node)
        if abs(value) > _LARGEST:
            raise _fault("the result is 2^63 or more", self._place(node))
        return value

    def _visit(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return self._read_name(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self.visit(node.operand)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self.visit(node.left), self.visit(node.right)
            try:
                return _OPERATORS[type(node.op)](left, right)
            except ArithmeticError as fault:
                raise _fault(str(fault), self._place(node)) from None
        raise _fault("this is not integer arithmetic", self._place(node), help=_helpful(node))

    def _read_name(self, node: ast.Name) -> int:
        if node.id in self.values:
            return self.values[node.id]
        known = tuple(self.values)
        help = suggest(node.id, known) or "only arguments of the surrounding block have values here"
        message = f"no argument is named {show(node.id)}"
        raise SpecError.at(codes.BAD_EXPRESSION, message, self._place(node), help=help)

    def _place(self, node: ast.expr) -> Span:
        width = max(1, (node.end_col_offset or 0) - node.col_offset)
        return Span(self.span.file, self.span.line, self.span.column + node.col_offset, width)


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise ArithmeticError("division by zero")
    return left // right


def _remain(left: int, right: int) -> int:
    if right == 0:
        raise ArithmeticError("division by zero")
    return left % right


def _raise_to(left: int, right: int) -> int:
    if not 0 <= right <= 63:
        raise ArithmeticError("an exponent is between 0 and 63")
    return int(left**right)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: _divide,
    ast.Mod: _remain,
    ast.Pow: _raise_to,
}


def _helpful(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return "integers are divided with //"
    return _HELP


def _shift(span: Span, columns: int) -> Span:
    return Span(span.file, span.line, span.column + columns)


def _fault(message: str, span: Span, help: str = _HELP) -> BpcError:
    return SpecError.at(codes.BAD_EXPRESSION, message, span, help=help)
