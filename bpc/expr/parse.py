"""Formulas typed by a user, read without running anything.

Python's own parser reads the text; a whitelist of its nodes becomes an expression and everything
else is refused with its place. Beside Python's notation, `x^2` is a power.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from bpc.errors import Note, Span, SpecError
from bpc.expr import table
from bpc.expr.node import Call, Const, Expr, Var, substitute
from bpc.expr.table import FUNCTIONS, Function, is_bool

MAX_LENGTH = 4096
MAX_DEPTH = 64
MAX_NODES = 10_000
MAX_EXPANDED_DEPTH = 256

UserFunctions = Mapping[str, tuple[tuple[str, ...], Expr]]
_NONE_LATER: Mapping[str, Span] = MappingProxyType({})

CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}

_X, _S = Var("x"), Var("slope")
_TANH_GELU = table.tanh(math.sqrt(2 / math.pi) * (_X + 0.044715 * (table.square(_X) * _X)))
COMPOSITES: dict[str, tuple[tuple[str, ...], Expr]] = {
    "relu": (("x",), table.select(_X > 0, _X, 0)),
    "leaky_relu": (("x", "slope"), table.select(_X > 0, _X, _S * _X)),
    "elu": (("x",), table.select(_X > 0, _X, table.expm1(table.minimum(_X, 0)))),
    "gelu": (("x",), 0.5 * _X * (1 + table.erf(_X * math.sqrt(0.5)))),
    "gelu_tanh": (("x",), 0.5 * _X * (1 + _TANH_GELU)),
    "silu": (("x",), _X * table.sigmoid(_X)),
    "swish": (("x", "slope"), _X * table.sigmoid(_S * _X)),
    "mish": (("x",), _X * table.tanh(table.softplus(_X))),
}
# A draw needs its own keys, which a formula does not have.
_CALLABLE = {name: name for name in FUNCTIONS if name != "uniform"} | {"where": "select"}

_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
}  # fmt: skip
_COMPARE: dict[type[ast.AST], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
_REFUSED: dict[type[ast.AST], str] = {
    ast.Attribute: "access to an attribute", ast.Subscript: "a subscript", ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension", ast.SetComp: "a comprehension", ast.Set: "a set",
    ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension", ast.Dict: "a dict",
    ast.NamedExpr: "an assignment", ast.JoinedStr: "a string", ast.List: "a list",
    ast.Tuple: "a comma outside a call", ast.Starred: "a star argument", ast.Await: "await",
    ast.Yield: "yield", ast.FloorDiv: "//", ast.Mod: "%", ast.MatMult: "@", ast.BitAnd: "&",
    ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>", ast.Invert: "~", ast.UAdd: "unary +",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_ALLOWED = "numbers, names, + - * / ^ **, comparisons, `a if c else b`, and/or/not, function calls"


def parse_formula(
    text: str,
    names: Collection[str],
    span: Span,
    functions: UserFunctions | None = None,
    later: Mapping[str, Span] = _NONE_LATER,
) -> Expr:
    """Read a formula in the variables `names`.

    Args:
        text: one expression; line breaks count as blanks.
        names: the variables it may use; they hide the constants pi, e, inf and nan.
        span: the place of the first character; each further line of `text` starts at that column.
        functions: the user's own functions, name -> (parameters, body), written in place.
        later: places of functions that are declared, but cannot be called from here.

    Raises:
        SpecError: BPC0301 not a formula, BPC0302 unknown name, BPC0303 unknown function, BPC0304
            number of arguments, BPC0305 a construct that is not allowed, BPC0306 too long, deep or
            large, BPC0307 a number where a condition belongs, BPC0308 a number out of range,
            BPC0309 a function that is declared later.
    """
    source = _Source.of(text, span)
    tree = source.parse()
    return _Reader(source, tuple(dict.fromkeys(names)), functions or {}, later).read(tree.body, 1)


@dataclass(frozen=True, slots=True)
class _Source:
    """The text on one line for Python's parser, and where each of its characters came from."""

    flat: str
    places: tuple[tuple[int, int], ...]  # line and column, from 0, with one for the end
    span: Span

    @classmethod
    def of(cls, text: str, span: Span) -> _Source:
        """Flatten the text; refuses what is too long or has characters outside ASCII."""
        if len(text) > MAX_LENGTH:
            message = f"formula has {len(text)} characters; at most {MAX_LENGTH} are allowed"
            raise SpecError.at("BPC0306", message, span, help="split it into functions")
        flat: list[str] = []
        places: list[tuple[int, int]] = []
        line = column = 0
        for character in text:
            piece = "**" if character == "^" else " " if character in "\n\r\t" else character
            if flat or piece != " ":  # Python's parser refuses leading blanks
                flat.append(piece)
                places.extend([(line, column)] * len(piece))
            line, column = (line + 1, 0) if character == "\n" else (line, column + 1)
        source = cls("".join(flat), (*places, (line, column)), span)
        source._check_characters()
        return source

    def _check_characters(self) -> None:
        if not self.flat:
            raise SpecError.at("BPC0301", "formula is empty", self.span, help='such as "x * 2"')
        for i, character in enumerate(self.flat):
            if not " " <= character <= "~" or character in "#\\;":
                message = f"formula has the character {character!a}, which is not allowed"
                notes = [Note(f"allowed: {_ALLOWED}")]
                raise SpecError.at("BPC0305", message, self.place(i), notes)

    def place(self, start: int, end: int | None = None) -> Span:
        """The span of characters `start` to `end` of the flat text."""
        last = len(self.places) - 1
        line, column = self.places[min(max(start, 0), last)]
        end_line, end_column = (line, column + 1) if end is None else self.places[min(end, last)]
        width = end_column - column if end_line == line else 1
        base = self.span
        return Span(base.file, base.line + line, base.column + column, max(width, 1))

    def of_node(self, node: ast.expr) -> Span:
        """The span of a node of the parsed tree."""
        return self.place(node.col_offset, node.end_col_offset)

    def parse(self) -> ast.Expression:
        """Python's tree of the text."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.flat, mode="eval")
        except SyntaxError as error:
            place = self.place((error.offset or 1) - 1)
            message = f"formula is not an expression: {error.msg}"
        except (RecursionError, MemoryError):
            message = f"formula is nested deeper than {MAX_DEPTH} levels"
            raise SpecError.at("BPC0306", message, self.span) from None
        except ValueError:
            place, message = self.span, "formula has a number with too many digits"
        raise SpecError.at("BPC0301", message, place, [Note(f"allowed: {_ALLOWED}")]) from None


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns whitelisted nodes of Python's tree into expressions."""

    source: _Source
    names: tuple[str, ...]
    functions: UserFunctions
    later: Mapping[str, Span]

    def read(self, node: ast.expr, depth: int) -> Expr:
        """The expression of a node; `depth` levels above it."""
        if depth > MAX_DEPTH:
            self._fail("BPC0306", f"formula is nested deeper than {MAX_DEPTH} levels", node)
        found = self._read(node, depth + 1)
        if found.size > MAX_NODES or found.depth > MAX_EXPANDED_DEPTH:
            message = f"formula has {found.size} operations written out"
            limit = f"at most {MAX_NODES}, {MAX_EXPANDED_DEPTH} deep, are allowed"
            self._fail("BPC0306", f"{message}, {found.depth} deep; {limit}", node)
        return found

    def _read(self, node: ast.expr, depth: int) -> Expr:
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._name(node)
            case ast.BinOp():
                return self._binary(node, depth)
            case ast.UnaryOp():
                return self._unary(node, depth)
            case ast.Compare():
                return self._compare(node, depth)
            case ast.BoolOp():
                function = "and" if isinstance(node.op, ast.And) else "or"
                return _fold(function, [self._condition(item, depth) for item in node.values])
            case ast.IfExp():
                condition = self._condition(node.test, depth)
                return table.select(
                    condition, self.read(node.body, depth), self.read(node.orelse, depth)
                )
            case ast.Call():
                return self._call(node, depth)
        self._refuse(node, node)

    def _number(self, node: ast.Constant) -> Expr:
        if not isinstance(node.value, (bool, int, float)):
            kind = type(node.value).__name__
            words = {"str": "a string", "bytes": "a string", "complex": "a complex number"}
            self._refuse(node, words.get(kind, "a constant that is not a number"))
        try:
            return Const(node.value)
        except OverflowError:
            self._fail("BPC0308", "formula has a number beyond the largest float", node)

    def _name(self, node: ast.Name) -> Expr:
        if node.id in self.names:
            return Var(node.id)
        if node.id in CONSTANTS:
            return Const(CONSTANTS[node.id])
        if node.id.startswith("__"):
            self._refuse(node, f"the name {node.id!r}")
        known = (*self.names, "pi", "e")
        message = f"formula uses {node.id!r}, which is not a name here"
        self._fail("BPC0302", message, node, known, near=node.id)

    def _binary(self, node: ast.BinOp, depth: int) -> Expr:
        function = _BINARY.get(type(node.op))
        if function is None:
            self._refuse(node, node.op)
        left, right = self.read(node.left, depth), self.read(node.right, depth)
        return left**right if function == "pow" else Call(function, (left, right))

    def _unary(self, node: ast.UnaryOp, depth: int) -> Expr:
        if isinstance(node.op, ast.Not):
            return table.not_(self._condition(node.operand, depth))
        if not isinstance(node.op, ast.USub):
            self._refuse(node, node.op)
        operand = self.read(node.operand, depth)
        if isinstance(operand, Const) and not is_bool(operand):
            return Const(-operand.value)
        return -operand

    def _compare(self, node: ast.Compare, depth: int) -> Expr:
        """`0 < x < 1` reads as in mathematics: both must hold."""
        items = [self.read(item, depth) for item in (node.left, *node.comparators)]
        parts = []
        for sign, left, right in zip(node.ops, items, items[1:], strict=False):
            if type(sign) not in _COMPARE:
                self._refuse(node, sign)
            parts.append(Call(_COMPARE[type(sign)], (left, right)))
        return _fold("and", parts)

    def _condition(self, node: ast.expr, depth: int) -> Expr:
        found = self.read(node, depth)
        self._check_condition(node, found)
        return found

    def _check_condition(self, node: ast.expr, found: Expr) -> None:
        if not is_bool(found) and not isinstance(found, Var):
            message = "formula has a number where a condition belongs"
            raise SpecError.at(
                "BPC0307", message, self.source.of_node(node), help="compare it, such as x > 0"
            )

    def _call(self, node: ast.Call, depth: int) -> Expr:
        if not isinstance(node.func, ast.Name):
            self._refuse(node.func, node.func)
        for keyword in node.keywords:
            self._refuse(keyword.value, "an argument with a name")
        name = node.func.id
        arguments = [self.read(item, depth) for item in node.args]
        inlined = self.functions.get(name) or COMPOSITES.get(name)
        if inlined is not None:
            parameters, body = inlined
            self._check_count(node, name, len(parameters), len(arguments))
            return substitute(body, dict(zip(parameters, arguments, strict=True)))
        if name in self.later:
            self._refuse_later(name, node.func)
        if name not in _CALLABLE:
            known = (*self.functions, *COMPOSITES, *_CALLABLE)
            message = f"formula calls {name!r}, which is not a function"
            self._fail("BPC0303", message, node.func, known, near=name)
        return self._apply(node, FUNCTIONS[_CALLABLE[name]], arguments)

    def _refuse_later(self, name: str, node: ast.expr) -> NoReturn:
        message = f"formula calls {name!r} before it is declared"
        notes = [Note(f"{name} is declared here", self.later[name])]
        help = "a function calls functions that stand above it"
        raise SpecError.at("BPC0309", message, self.source.of_node(node), notes, help)

    def _apply(self, node: ast.Call, row: Function, arguments: list[Expr]) -> Expr:
        name = row.name
        if name in ("max", "min") and len(arguments) > 2:
            return _fold(name, arguments)
        self._check_count(node, name, row.arity, len(arguments))
        for i in row.conditions:
            self._check_condition(node.args[i], arguments[i])
        return arguments[0] ** arguments[1] if name == "pow" else Call(name, arguments)

    def _check_count(self, node: ast.Call, name: str, needed: int, given: int) -> None:
        if needed != given:
            plural = "" if needed == 1 else "s"
            message = f"function {name!r} takes {needed} argument{plural}, not {given}"
            self._fail("BPC0304", message, node)

    def _refuse(self, node: ast.expr, found: ast.AST | str) -> NoReturn:
        if isinstance(found, ast.AST):
            found = _REFUSED.get(type(found), type(found).__name__.lower())
        self._fail("BPC0305", f"formula has {found}, which is not allowed", node, (_ALLOWED,))

    def _fail(
        self, code: str, message: str, node: ast.expr, allowed: Iterable[str] = (), near: str = ""
    ) -> NoReturn:
        words = tuple(allowed)
        notes = [Note(f"allowed: {', '.join(words)}")] if words else []
        help = _nearest(near, words) if near else None
        raise SpecError.at(code, message, self.source.of_node(node), notes, help)


def _fold(function: str, items: Sequence[Expr]) -> Expr:
    total = items[0]
    for item in items[1:]:
        total = Call(function, (total, item))
    return total


def _nearest(word: str, known: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches  # only on the way to an error

    found = get_close_matches(word, known, n=1)
    return f"did you mean {found[0]!r}?" if found else None
