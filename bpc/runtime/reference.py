"""Runs a graph node by node with NumPy: the oracle, and the device without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from bpc.ir import Graph, Node, Value
from bpc.ops import OPS, RunContext, compute_dtype
from bpc.types import BF16, BIT, F16, F32, F64, DType, shape_at

Arrays = dict[str, np.ndarray]
Observer = Callable[[Node, tuple[np.ndarray, ...]], None]


def round_to(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The nearest values that `dtype` holds, in a type that NumPy computes with."""
    if dtype == F64:
        return np.asarray(array, dtype=np.float64)
    if dtype == F32:
        return np.asarray(array, dtype=np.float32)
    if dtype in (F16, BF16):
        with np.errstate(over="ignore"):
            return np.asarray(array).astype(storage_type(dtype)).astype(np.float32)
    return np.asarray(array, dtype=np.bool_ if dtype == BIT else np.int64)


def storage_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type with the layout of `dtype` in memory (`bit` is packed elsewhere)."""
    if dtype == BF16:
        import ml_dtypes

        return np.dtype(cast(type, ml_dtypes.bfloat16))
    names = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "bit": "u1"}
    return np.dtype(names[dtype.name])


def run_graph(
    graph: Graph,
    given: Mapping[str, np.ndarray],
    rows: int,
    exact: bool = False,
    observe: Observer | None = None,
) -> Arrays:
    """All values of a graph, by name.

    Args:
        graph: any verified graph.
        given: inputs and states by name.
        rows: the number of rows in the batch.
        exact: compute every real value in float64 and round nothing (the oracle); else each
            node's result is rounded to its declared type.
        observe: called after each node with its results.

    Returns:
        A dictionary of every input, state and computed value.
    """
    values = _given(graph, given, exact)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            results = run_node(node, [values[name] for name in node.inputs], graph, rows, exact)
            for value, array in zip(node.outputs, results, strict=True):
                assert array.shape == shape_at(value.shape, rows), f"{value}: {array.shape}"
                values[value.name] = array
            if observe:
                observe(node, results)
    return values


def run_node(
    node: Node, operands: list[np.ndarray], graph: Graph, rows: int, exact: bool
) -> tuple[np.ndarray, ...]:
    """One node's results, rounded to their declared types unless `exact`."""
    real = np.float64 if exact or _is_double(node, operands) else np.float32
    results = OPS[node.op].reference(node, operands, RunContext(rows, real))
    pairs = zip(node.outputs, results, strict=True)
    return tuple(_finish(array, value, exact) for value, array in pairs)


def _is_double(node: Node, operands: list[np.ndarray]) -> bool:
    kinds = {F64} if any(operand.dtype == np.float64 for operand in operands) else set()
    inputs = [Value("", kind, ()) for kind in kinds]
    return compute_dtype(node, inputs) == F64


def _finish(array: np.ndarray, value: Value, exact: bool) -> np.ndarray:
    if exact and value.dtype.kind == "float":
        return np.asarray(array, dtype=np.float64)
    return round_to(array, value.dtype)


def _given(graph: Graph, given: Mapping[str, np.ndarray], exact: bool) -> Arrays:
    wanted = [*graph.inputs, *(state.value for state in graph.states)]
    return {value.name: _finish(np.asarray(given[value.name]), value, exact) for value in wanted}
