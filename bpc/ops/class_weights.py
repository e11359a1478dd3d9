"""Weights of classes as a formula of the class number, so that no table has to be kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bpc.expr import Call, Const, Expr

MOST_RUNS = 256
"""Runs of classes with equal weights that a formula may tell apart."""


def count_runs(weights: Sequence[float]) -> int:
    """How many runs of equal weights there are, in the order of the classes."""
    return sum(1 for _ in groupby(weights))


def weight_of(weights: Sequence[float], index: Expr) -> Expr:
    """The weight of class `index`, by halving: as many comparisons deep as the count has bits."""
    runs: list[tuple[int, float]] = []
    start = 0
    for weight, members in groupby(weights):
        runs.append((start, weight))
        start += len(list(members))
    return _halve(runs, index)


def _halve(runs: Sequence[tuple[int, float]], index: Expr) -> Expr:
    """The weight of the run that `index` lies in; a run is its first class and its weight."""
    if len(runs) == 1:
        return Const(runs[0][1])
    middle = len(runs) // 2
    low, high = _halve(runs[:middle], index), _halve(runs[middle:], index)
    return Call("select", (Call("lt", (index, Const(runs[middle][0]))), low, high))
