"""Repeated parts of expressions, named so that generated code computes each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bpc.expr.node import Call, Expr, Var, arguments_of, walk
from bpc.expr.table import FUNCTIONS, is_bool


def flops(expr: Expr) -> int:
    """Floating-point operations for one element, a repeated part counted once."""
    return sum(FUNCTIONS[node.function].flops for node in walk(expr) if isinstance(node, Call))


def _worth_a_name(node: Expr) -> bool:
    return isinstance(node, Call) and node.function != "neg" and not is_bool(node)


def _count_uses(exprs: Sequence[Expr]) -> Counter[Expr]:
    """How often each part is written out if what is worth a name is written once."""
    uses = Counter(exprs)
    for node in reversed(list(walk(*exprs))):
        times = 1 if _worth_a_name(node) else uses[node]
        for item in arguments_of(node):
            uses[item] += times
    return uses


def split_common_of(
    exprs: Sequence[Expr], prefix: str = "t"
) -> tuple[list[tuple[str, Expr]], list[Expr]]:
    """Name what several expressions repeat; definitions come before their use."""
    uses = _count_uses(exprs)
    taken = {node.name for node in walk(*exprs) if isinstance(node, Var)}
    fresh = (name for i in range(10**9) if (name := f"{prefix}{i}") not in taken)
    parts: list[tuple[str, Expr]] = []
    done: dict[Expr, Expr] = {}
    for node in walk(*exprs):
        if not isinstance(node, Call):
            done[node] = node
            continue
        done[node] = Call(node.function, [done[item] for item in node.arguments])
        if uses[node] > 1 and _worth_a_name(node):
            name = next(fresh)
            parts.append((name, done[node]))
            done[node] = Var(name)
    return parts, [done[expr] for expr in exprs]


def split_common(expr: Expr, prefix: str = "t") -> tuple[list[tuple[str, Expr]], Expr]:
    """Name the repeated parts t0, t1, ...; returns their definitions in order, and the rest."""
    parts, rest = split_common_of([expr], prefix)
    return parts, rest[0]
