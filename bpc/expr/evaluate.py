"""The value of an expression on NumPy arrays: the meaning that generated code must keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.expr.node import Call, Const, Expr, Number, Var, walk
from bpc.expr.table import FUNCTIONS
from bpc.philox import philox_uniform

Array = NDArray[Any]
Environment = Mapping[str, Array | Number]


def evaluate(expr: Expr, env: Environment, dtype: np.dtype[Any] | type[Any]) -> Array:
    """The expression with every intermediate rounded to `dtype` (float32 or float64).

    Inputs broadcast; comparisons give bool arrays. Only the arguments of `uniform` stay integers.
    """
    dtype = np.dtype(dtype)
    values: dict[Expr, Array] = {}
    with np.errstate(all="ignore"):
        for node in walk(expr):
            values[node] = _evaluate_node(node, values, env, dtype)
    return values[expr]


def _evaluate_node(
    node: Expr, values: dict[Expr, Array], env: Environment, dtype: np.dtype[Any]
) -> Array:
    if isinstance(node, Const):
        return _number_or_bool(node.value, dtype)
    if isinstance(node, Var):
        return _number_or_bool(env[node.name], dtype)
    assert isinstance(node, Call)
    if node.function == "uniform":
        return _draw(node, env).astype(dtype)
    row = FUNCTIONS[node.function]
    arguments = [
        _as_condition(values[item]) if i in row.conditions else values[item]
        for i, item in enumerate(node.arguments)
    ]
    if node.function != "select" or any(item.dtype != np.bool_ for item in arguments[1:]):
        numbers = (i for i in range(len(arguments)) if i not in row.conditions)
        for i in numbers:
            arguments[i] = arguments[i].astype(dtype, copy=False)
    return np.asarray(row.evaluate(*arguments))


def _number_or_bool(value: Array | Number, dtype: np.dtype[Any]) -> Array:
    array = np.asarray(value)
    return array if array.dtype == np.bool_ else array.astype(dtype, copy=False)


def _as_condition(value: Array) -> Array:
    return value if value.dtype == np.bool_ else np.asarray(value != 0)


def _draw(node: Call, env: Environment) -> NDArray[np.float32]:
    seed, window, stream = (int(_integer(item, env)) for item in node.arguments[:3])
    return philox_uniform(seed, window, stream, np.asarray(_integer(node.arguments[3], env)))


_INTEGER_RULES = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _integer(expr: Expr, env: Environment) -> Any:
    """The value of index arithmetic: sums and products of whole numbers, never rounded."""
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, Var):
        value = np.asarray(env[expr.name])
        return int(value) if value.ndim == 0 else value.astype(np.int64)
    assert isinstance(expr, Call) and expr.function in _INTEGER_RULES, f"not an index: {expr}"
    first, second = (_integer(item, env) for item in expr.arguments)
    return _INTEGER_RULES[expr.function](first, second)
