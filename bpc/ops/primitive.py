"""Primitive rows: what code generation knows. Every other row expands into these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpc.expr import Call, Const, Var
from bpc.ir import Attrs, Builder, Node, Result, Value
from bpc.kernel import CHUNK
from bpc.ops.base import (
    OPS,
    Arrays,
    Op,
    RunContext,
    ShapeFault,
    flops_elementwise,
    gradient_elementwise,
    infer_elementwise,
    reference_elementwise,
    sum_to,
)
from bpc.types import (
    BIT,
    DTYPES,
    F64,
    I64,
    Rows,
    Shape,
    compute_type,
    elements,
    extent,
    format_shape,
    multiply,
    shape_at,
)

Values = Sequence[Value]
Gradients = tuple[Value | None, ...]

OPS.register(
    Op(
        "map",
        infer=infer_elementwise(None),
        reference=reference_elementwise,
        gradient=gradient_elementwise(lambda node, position, forms: forms[0]),
        flops=flops_elementwise,
    )
)


# -- numbers that come from positions -------------------------------------------------------------


def _infer_index(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    return ((I64, dict(attrs)["shape"]),)


def _reference_index(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    """The logical element number (axis None, plus the first row's), or the position on one axis."""
    shape = shape_at(node.output.shape, run.rows)
    axis = node.attr("axis")
    if axis is None:
        count = int(np.prod(shape, dtype=np.int64))
        per_row = count // shape[0] if shape and shape[0] else 0
        first = int(operands[0]) * per_row if operands else 0
        return ((np.arange(count, dtype=np.int64) + first).reshape(shape),)
    position = np.arange(shape[axis], dtype=np.int64)
    view = position.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return (np.broadcast_to(view, shape),)


OPS.register(Op("index", _infer_index, _reference_index, gradient=None))


def _infer_extent(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    return ((I64, ()),)


def _reference_extent(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    """The value of an extent that may grow with the batch."""
    return (np.asarray(extent(node.attr("dim"), run.rows), dtype=np.int64),)


OPS.register(Op("extent", _infer_extent, _reference_extent, gradient=None))


# -- views ----------------------------------------------------------------------------------------


def _infer_reshape(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    (value,) = operands
    shape: Shape = dict(attrs)["shape"]
    if _static_size(value.shape) != _static_size(shape):
        raise ShapeFault(
            f"cannot reshape {format_shape(value.shape)} to {format_shape(shape)}: "
            f"{_size(value.shape)} elements against {_size(shape)}",
            option="shape",
        )
    if value.dtype == BIT and value.shape[-1:] != shape[-1:]:
        raise ShapeFault(
            "conditions are stored line by line and keep their last axis",
            "reshape the numbers before comparing them",
            "shape",
        )
    return ((value.dtype, shape),)


def _static_size(shape: Shape) -> tuple[int, int]:
    batched = sum(isinstance(dim, Rows) for dim in shape)
    return elements(shape, 1), batched


def _size(shape: Shape) -> str:
    return str(multiply(shape))


def _reference_reshape(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    return (operands[0].reshape(shape_at(node.output.shape, run.rows)),)


def _gradient_reshape(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """The same elements in the operand's shape."""
    (g,), source = results, b.values[node.inputs[0]]
    return (b.add("reshape", g, name=f"d_{source.name}", shape=source.shape) if g else None,)


OPS.register(Op("reshape", _infer_reshape, _reference_reshape, _gradient_reshape))


# -- reductions -----------------------------------------------------------------------------------


def _infer_reduce(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    (value,) = operands
    options = dict(attrs)
    axes = reduced_axes(options, value.shape)
    shape = tuple(1 if k in axes else dim for k, dim in enumerate(value.shape))
    named = options.get("dtype")
    return ((DTYPES[named] if named else value.dtype, shape),)


def reduced_axes(options: dict[str, Any], shape: Shape) -> tuple[int, ...]:
    """The axes a primitive reduction sums over: a suffix for rows, a run for columns."""
    if "first" in options:
        return tuple(range(options["first"], options["first"] + options["count"]))
    return tuple(range(len(shape) - options["count"], len(shape)))


def _reference_reduce(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    value = operands[0]
    axes = reduced_axes(dict(node.attrs), value.shape)
    if node.attr("kind") == "max":
        return (np.max(value, axis=axes, keepdims=True, initial=-np.inf),)
    real = np.float64 if node.attr("dtype") == F64.name else run.real
    return (np.asarray(np.sum(value, axis=axes, keepdims=True, dtype=real)),)


def _gradient_reduce(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """A sum passes its gradient on; elements that are the largest together share it evenly."""
    grad, source = results[0], b.values[node.inputs[0]]
    if grad is None or node.attr("kind") == "sum":
        return (broadcast_to(b, grad, source),)
    options = {**dict(node.attrs), "kind": "sum"}
    return (spread_to_largest(b, source, b.values[node.output.name], grad, node.op, options),)


def spread_to_largest(
    b: Builder, source: Value, top: Value, grad: Value, op: str, options: dict[str, Any]
) -> Value:
    """`grad` shared evenly by the elements of `source` that equal `top`, its maximum.

    `op` and `options` say how a sum runs over the elements that the maximum was taken of.
    """
    stem, kind = top.name, source.dtype.name
    is_top = Call("eq", (Var("x"), Var("m")))
    hit = Call("select", (is_top, Const(1.0), Const(0.0)))
    real = compute_type(source.dtype).name
    hits = b.add(
        "map", source, top, name=f"{stem}.hits", expr=hit, arguments=("x", "m"), dtype=real
    )
    count = b.add(op, hits, name=f"{stem}.ties", **{**options, "dtype": real})
    share = Call("select", (is_top, Var("g") / Var("n"), Const(0.0)))
    operands, names = (source, top, grad, count), ("x", "m", "g", "n")
    name = f"d_{source.name}"
    return b.add("map", *operands, name=name, expr=share, arguments=names, dtype=kind)


def broadcast_to(b: Builder, g: Value | None, target: Value) -> Value | None:
    """`g` repeated to the shape (and rounded to the type) of `target`."""
    if g is None:
        return None
    return b.add(
        "map",
        g,
        name=f"d_{target.name}",
        expr=Var("g"),
        arguments=("g",),
        dtype=target.dtype.name,
        shape=target.shape,
    )


def _flops_reduce(node: Node, operands: Values, rows: int) -> int:
    return elements(operands[0].shape, rows)


for _name in ("row_reduce", "col_reduce"):
    OPS.register(
        Op(_name, _infer_reduce, _reference_reduce, _gradient_reduce, flops=_flops_reduce)
    )


def _infer_chunk_reduce(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """One partial sum for every CHUNK elements of the whole tensor."""
    count = elements(operands[0].shape, 1)
    return ((DTYPES[dict(attrs)["dtype"]], (-(-count // CHUNK),)),)


def _reference_chunk_reduce(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    flat = operands[0].reshape(-1)
    real = np.float64 if node.output.dtype == F64 else run.real
    return (np.add.reduceat(flat.astype(real), np.arange(0, flat.size, CHUNK)),)


def _infer_combine(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    return ((DTYPES[dict(attrs)["dtype"]], ()),)


def _reference_combine(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    return (np.asarray(operands[0].sum()),)


def _gradient_combine(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    return (broadcast_to(b, results[0], b.values[node.inputs[0]]),)


OPS.register(
    Op(
        "chunk_reduce",
        _infer_chunk_reduce,
        _reference_chunk_reduce,
        gradient=None,
        flops=_flops_reduce,
    )
)
OPS.register(
    Op("combine", _infer_combine, _reference_combine, _gradient_combine, flops=_flops_reduce)
)


# -- matrix product -------------------------------------------------------------------------------


def _infer_gemm(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    left, right = operands[0], operands[1]
    options = dict(attrs)
    m, k = left.shape[::-1] if options.get("ta") else left.shape
    k2, n = right.shape[::-1] if options.get("tb") else right.shape
    if k != k2:
        raise ShapeFault(
            f"inner sizes differ: {format_shape(left.shape)} has {k}, "
            f"{format_shape(right.shape)} has {k2}"
        )
    named = options.get("dtype")
    return ((DTYPES[named] if named else left.dtype, (m, n)),)


def _reference_gemm(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    left = operands[0].T if node.attr("ta") else operands[0]
    right = operands[1].T if node.attr("tb") else operands[1]
    product = np.matmul(left, right)
    return (product + operands[2] if len(operands) == 3 else product,)


def _gradient_gemm(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """y = A B (+ bias) with A = a or a^T, B = w or w^T.

    dA = g B^T and dB = A^T g; an operand that is transposed takes the transpose of its gradient,
    which the flags express: da = B g^T for a transposed a, dw = g^T A for a transposed w.
    """
    g, (a, w) = results[0], (b.values[name] for name in node.inputs[:2])
    if g is None:
        return (None,) * len(node.inputs)
    ta, tb = bool(node.attr("ta")), bool(node.attr("tb"))
    label = (f"d_{a.name}", f"d_{w.name}")
    types = (a.dtype.name, w.dtype.name)
    if ta:
        da = b.add("gemm", w, g, name=label[0], ta=tb, tb=True, dtype=types[0])
    else:
        da = b.add("gemm", g, w, name=label[0], ta=False, tb=not tb, dtype=types[0])
    if tb:
        dw = b.add("gemm", g, a, name=label[1], ta=True, tb=ta, dtype=types[1])
    else:
        dw = b.add("gemm", a, g, name=label[1], ta=not ta, tb=False, dtype=types[1])
    if len(node.inputs) == 2:
        return da, dw
    return da, dw, sum_to(b, g, b.values[node.inputs[2]].shape)


def _flops_gemm(node: Node, operands: Values, rows: int) -> int:
    k = operands[0].shape[0 if node.attr("ta") else 1]
    return 2 * extent(k, rows) * elements(node.output.shape, rows)


OPS.register(
    Op("gemm", _infer_gemm, _reference_gemm, _gradient_gemm, saves=(0, 1), flops=_flops_gemm)
)
