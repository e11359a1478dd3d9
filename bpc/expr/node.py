"""The three kinds of scalar expression. Equal expressions are one object.

    expr := Const(value) | Var(name) | Call(function, (expr, ...))

Interning makes `==` and `hash` cost nothing, and turns every tree into a graph without repeats,
so that passes visit a shared part once. Nodes are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from weakref import WeakValueDictionary

Number = float | int | bool


class Expr:
    """A scalar expression. `size` and `depth` are those of the tree written out in full.

    Python's operators build expressions; `==` compares, and so does not (see `eq`).
    """

    __slots__ = ("__weakref__", "depth", "size")
    size: int
    depth: int

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value; write select, and_ or or_")

    def __add__(self, other: Expr | Number) -> Expr:
        return Call("add", (self, as_expr(other)))

    def __radd__(self, other: Number) -> Expr:
        return Call("add", (as_expr(other), self))

    def __sub__(self, other: Expr | Number) -> Expr:
        return Call("sub", (self, as_expr(other)))

    def __rsub__(self, other: Number) -> Expr:
        return Call("sub", (as_expr(other), self))

    def __mul__(self, other: Expr | Number) -> Expr:
        return Call("mul", (self, as_expr(other)))

    def __rmul__(self, other: Number) -> Expr:
        return Call("mul", (as_expr(other), self))

    def __truediv__(self, other: Expr | Number) -> Expr:
        return Call("div", (self, as_expr(other)))

    def __rtruediv__(self, other: Number) -> Expr:
        return Call("div", (as_expr(other), self))

    def __pow__(self, other: Expr | Number) -> Expr:
        exponent = as_expr(other)
        if exponent is Const(2):
            return Call("square", (self,))
        return Call("pow", (self, exponent))

    def __rpow__(self, other: Number) -> Expr:
        return Call("pow", (as_expr(other), self))

    def __neg__(self) -> Expr:
        return Call("neg", (self,))

    def __abs__(self) -> Expr:
        return Call("abs", (self,))

    def __lt__(self, other: Expr | Number) -> Expr:
        return Call("lt", (self, as_expr(other)))

    def __le__(self, other: Expr | Number) -> Expr:
        return Call("le", (self, as_expr(other)))

    def __gt__(self, other: Expr | Number) -> Expr:
        return Call("gt", (self, as_expr(other)))

    def __ge__(self, other: Expr | Number) -> Expr:
        return Call("ge", (self, as_expr(other)))


_POOL: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()
_LOCK = Lock()


def _intern(kind: type[Expr], key: tuple[object, ...], fields: dict[str, object]) -> Expr:
    with _LOCK:
        found = _POOL.get(key)
        if found is None:
            found = object.__new__(kind)
            for name, value in fields.items():
                object.__setattr__(found, name, value)
            _POOL[key] = found
        return found


class Const(Expr):
    """A number or a truth value. Whole numbers that a float holds exactly are kept as floats."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    value: Number

    def __new__(cls, value: Number) -> Const:
        """Raises OverflowError for a whole number beyond the largest float."""
        if not isinstance(value, bool):
            value = float(value) if float(value) == value or value != value else int(value)
        key = ("const", repr(value))
        found = _POOL.get(key)
        if found is None:
            found = _intern(cls, key, {"value": value, "size": 1, "depth": 1})
        assert isinstance(found, Const)
        return found

    def __repr__(self) -> str:
        return f"Const({self.value!r})"

    def __reduce__(self) -> tuple[type[Const], tuple[Number]]:
        return Const, (self.value,)


class Var(Expr):
    """A named input: an element of a tensor, a scalar, or an index."""

    __slots__ = ("name",)
    __match_args__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Var:
        """The one variable of that name."""
        key = ("var", name)
        found = _POOL.get(key)
        if found is None:
            found = _intern(cls, key, {"name": name, "size": 1, "depth": 1})
        assert isinstance(found, Var)
        return found

    def __repr__(self) -> str:
        return f"Var({self.name!r})"

    def __reduce__(self) -> tuple[type[Var], tuple[str]]:
        return Var, (self.name,)


class Call(Expr):
    """A row of `FUNCTIONS` applied to arguments."""

    __slots__ = ("arguments", "function")
    __match_args__ = ("function", "arguments")
    function: str
    arguments: tuple[Expr, ...]

    def __new__(cls, function: str, arguments: Sequence[Expr]) -> Call:
        """The one call of that function with these arguments."""
        arguments = tuple(arguments)
        key = ("call", function, *arguments)
        found = _POOL.get(key)
        if found is None:
            size = 1 + sum(item.size for item in arguments)
            depth = 1 + max((item.depth for item in arguments), default=0)
            fields = {"function": function, "arguments": arguments, "size": size, "depth": depth}
            found = _intern(cls, key, fields)
        assert isinstance(found, Call)
        return found

    def __repr__(self) -> str:
        return f"Call({self.function!r}, {self.arguments!r})"

    def __reduce__(self) -> tuple[type[Call], tuple[str, tuple[Expr, ...]]]:
        return Call, (self.function, self.arguments)


def as_expr(value: Expr | Number) -> Expr:
    """The value itself if it is an expression, else a constant."""
    return value if isinstance(value, Expr) else Const(value)


def arguments_of(expr: Expr) -> tuple[Expr, ...]:
    """The arguments of a call; none for a leaf."""
    return expr.arguments if isinstance(expr, Call) else ()


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct part once, arguments before what uses them, in order of writing."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready or not isinstance(node, Call):
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((item, False) for item in reversed(node.arguments))


def substitute(expr: Expr, mapping: Mapping[str, Expr]) -> Expr:
    """Replace variables by expressions, all at once."""
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        if isinstance(node, Var):
            done[node] = mapping.get(node.name, node)
        elif isinstance(node, Call):
            done[node] = Call(node.function, [done[item] for item in node.arguments])
        else:
            done[node] = node
    return done[expr]


def variables(expr: Expr) -> tuple[str, ...]:
    """The names that the expression reads, in order of first use."""
    return tuple(node.name for node in walk(expr) if isinstance(node, Var))


def depends_on(expr: Expr, name: str) -> bool:
    """Whether the expression reads this variable."""
    return Var(name) in walk(expr)
