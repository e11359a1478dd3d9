"""Norms of trailing axes, and division by them: one row, expanded into primitives."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from bpc.expr import Const, Expr, Var, absolute, eq, maximum, power, select, sign, sqrt, square
from bpc.ir import Attrs, Builder, Node, Result, Value
from bpc.ops.base import OPS, Arrays, LayerContext, Op, RunContext
from bpc.ops.primitive import Gradients, Values, spread_to_largest
from bpc.types import LayerSchema, Option, Shape, compute_type, elements, format_shape

x, n, s, g = (Var(name) for name in ("x", "n", "s", "g"))


def _infer_norm(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """value [..., e1 .. ek] to [..., 1 .. 1], in at least f32: powers leave the range of f16."""
    (value,) = operands
    count = dict(attrs)["count"]
    return ((compute_type(value.dtype), (*value.shape[:-count], *(1,) * count)),)


def _reference_norm(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    p, count = node.attr("p"), node.attr("count")
    sizes = np.abs(operands[0])
    axes = tuple(range(sizes.ndim - count, sizes.ndim))
    if p == inf:
        return (sizes.max(axis=axes, keepdims=True),)
    total = (sizes**p).sum(axis=axes, keepdims=True)
    return (np.sqrt(total) if p == 2 else total ** run.real(1 / p),)


def _slope(p: float) -> Expr:
    """d norm / dx = sign(x) (|x| / norm)^(p - 1), and 0 for a row of zeros."""
    if p == 1:
        return sign(x)
    if p == 2:
        return select(eq(n, 0), 0, x / n)
    return select(eq(n, 0), 0, sign(x) * power(absolute(x) / n, p - 1))


def _gradient_norm(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    value, norm, grad = b.values[node.inputs[0]], b.values[node.output.name], results[0]
    p, kind = node.attr("p"), value.dtype.name
    if grad is None:
        return (None,)
    if p != inf:
        expr, names = g * _slope(p), ("g", "x", "n")[: 2 if p == 1 else 3]
        read = (grad, value, norm)[: len(names)]
        name = f"d_{value.name}"
        return (b.add("map", *read, name=name, expr=expr, arguments=names, dtype=kind),)
    size = _map(b, (value,), f"{norm.name}.size", absolute(x), "x", norm.dtype.name)
    options = {"count": node.attr("count"), "kind": "sum"}
    shared = spread_to_largest(b, size, norm, grad, "row_reduce", options)
    return (_map(b, (shared, value), f"d_{value.name}", g * sign(x), "gx", kind),)


def _map(
    b: Builder, read: Sequence[Value], name: str, expr: Expr, arguments: str, kind: str
) -> Value:
    return b.add("map", *read, name=name, expr=expr, arguments=tuple(arguments), dtype=kind)


def _expand_norm(b: Builder, node: Node) -> tuple[Value, ...]:
    value, final, p = b.values[node.inputs[0]], node.output, node.attr("p")
    kind, stem = final.dtype.name, final.name
    options = {"count": node.attr("count"), "dtype": kind}
    if p == inf:
        size = _map(b, (value,), f"{stem}.size", absolute(x), "x", kind)
        return (b.add("row_reduce", size, name=stem, **options, **{"kind": "max"}),)
    raised = {1: absolute(x), 2: square(x)}.get(p, power(absolute(x), p))
    powers = _map(b, (value,), f"{stem}.powers", raised, "x", kind)
    name = stem if p == 1 else f"{stem}.total"
    total = b.add("row_reduce", powers, name=name, **options, **{"kind": "sum"})
    if p == 1:
        return (total,)
    return (_map(b, (total,), stem, sqrt(s) if p == 2 else power(s, 1 / p), "s", kind),)


def _flops_norm(node: Node, operands: Values, rows: int) -> int:
    return 4 * elements(operands[0].shape, rows)


OPS.register(
    Op(
        "norm",
        _infer_norm,
        _reference_norm,
        _gradient_norm,
        _expand_norm,
        saves=(0, -1),
        flops=_flops_norm,
    )
)

# -- layers ---------------------------------------------------------------------------------------

_P = Option("p", "float", 2.0, minimum=1.0, help="which norm: the p-th root of the sum of |x|^p")
_AXES = Option("axes", "int", 1, minimum=1, help="how many trailing axes a norm is over")
_KEEP = Option("keepdims", "bool", False, help="keep reduced axes with length 1")
_EPS = Option("eps", "float", 1e-12, minimum=0.0, help="the least that is divided by")


def _measure(context: LayerContext, value: Value, p: float) -> Value:
    count = context.option("axes")
    if not 1 <= count < len(value.shape):
        found = format_shape(value.shape)
        message = f"axes is {count}, the input {found} allows 1 to {len(value.shape) - 1}"
        raise context.fault("BPC0217", message, "axes")
    b = context.builder
    return b.add("norm", value, name=f"{b.scope}.norm", p=p, count=count)


def _finish(context: LayerContext, value: Value, norm: Value) -> Value:
    """The norm in the type of the value, without the axes it is over unless they are kept."""
    b = context.builder
    stored = _map(b, (norm,), f"{b.scope}.rounded", n, "n", value.dtype.name)
    shape: Shape = norm.shape
    if not context.option("keepdims"):
        shape = norm.shape[: -context.option("axes")]
    return b.add("reshape", stored, name=b.scope, shape=shape)


def build_norm(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """The p-norm of each row."""
    (value,) = inputs
    return _finish(context, value, _measure(context, value, float(context.option("p"))))


def build_max_norm(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """The largest magnitude of each row."""
    (value,) = inputs
    return _finish(context, value, _measure(context, value, inf))


def build_normalize(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """x / max(norm, eps): the guard stands before the division, so its slope is 1 / eps inside."""
    (value,) = inputs
    norm = _measure(context, value, float(context.option("p")))
    expr = x / maximum(n, Const(float(context.option("eps"))))
    b = context.builder
    return _map(b, (value, norm), b.scope, expr, "xn", value.dtype.name)


OPS.register_layer(
    LayerSchema(
        "norm", (_P, _AXES, _KEEP), shorthand="p", help="p-norm of rows; gradient 0 at a zero row"
    ),
    build_norm,
)
OPS.register_layer(
    LayerSchema("max_norm", (_AXES, _KEEP), help="largest magnitude of rows; ties share evenly"),
    build_max_norm,
)
OPS.register_layer(
    LayerSchema("normalize", (_P, _AXES, _EPS), shorthand="p", help="rows over max(p-norm, eps)"),
    build_normalize,
)
