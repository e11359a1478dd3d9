"""Layer normalisation: one row, expanded into primitives that fuse back into one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from bpc.expr import Call, Const, Expr, Var, substitute, variables
from bpc.ir import Attrs, Builder, Init, Node, Result, Value
from bpc.ops.base import OPS, Arrays, LayerContext, Op, RunContext, ShapeFault, static_count
from bpc.ops.primitive import Gradients, Values
from bpc.types import LayerSchema, Option, Shape, compute_type, elements, format_shape

x, m, r, w, b_, g, s, t = (Var(name) for name in ("x", "m", "r", "w", "b", "g", "s", "t"))


def _infer_layernorm(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """Results: y like x; mean and 1 / standard deviation per row, in at least f32."""
    value, gamma = operands[0], operands[1]
    count = len(gamma.shape)
    if value.shape[len(value.shape) - count :] != gamma.shape:
        raise ShapeFault(
            f"sizes differ: {gamma.name} is {format_shape(gamma.shape)}, "
            f"the input ends in {format_shape(value.shape[-count:])}"
        )
    rows: Shape = (*value.shape[: len(value.shape) - count], *(1,) * count)
    real = compute_type(value.dtype)
    return (value.dtype, value.shape), (real, rows), (real, rows)


def _axes(value: Value, gamma: Value) -> tuple[int, ...]:
    return tuple(range(len(value.shape) - len(gamma.shape), len(value.shape)))


def _reference_layernorm(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    value, gamma, beta = operands
    axes = tuple(range(value.ndim - gamma.ndim, value.ndim))
    mean = value.mean(axis=axes, keepdims=True)
    centred = value - mean
    variance = (centred * centred).mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + run.real(node.attr("eps")))
    return centred * inverse * gamma + beta, mean, inverse


def _gradient_layernorm(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """The gradients through the result, and what second derivatives send through the statistics."""
    of_result: Gradients = (None,) * 3
    if results[0]:
        of_result = _gradient_of_result(b, node, results[0])
    dx, *rest = of_result
    for expr, gradient in zip(_STATISTICS, results[1:], strict=True):
        if gradient:
            part = _gradient_of_statistic(b, node, gradient, expr)
            dx = b.add("add", dx, part, name=f"d_{node.inputs[0]}") if dx else part
    return (dx, *rest)


_STATISTICS = (g / s, -(g * (r * r) * (r * (x - m))) / s)
"""What a gradient g of the mean, and of r = 1 / standard deviation, adds to dx; s elements."""


def _gradient_of_statistic(b: Builder, node: Node, gradient: Value, expr: Expr) -> Value:
    value, gamma = (b.values[name] for name in node.inputs[:2])
    count = static_count(value.shape, _axes(value, gamma))
    assert count is not None
    named = {"g": gradient, "x": value}
    named.update(zip("mr", (b.values[output.name] for output in node.outputs[1:]), strict=True))
    expr = substitute(expr, {"s": Const(float(count))})
    used = variables(expr)
    return b.add(
        "map",
        *(named[name] for name in used),
        name=f"d_{value.name}",
        expr=expr,
        arguments=used,
        dtype=value.dtype.name,
        shape=value.shape,
    )


def _gradient_of_result(b: Builder, node: Node, grad: Value) -> Gradients:
    """With h = (x - mean) r and q = g gamma: dx = r (q - mean(q) - h mean(q h)).

    dgamma = sum of g h, dbeta = sum of g, over all rows.
    """
    value, gamma, beta = (b.values[name] for name in node.inputs)
    mean, inverse = (b.values[output.name] for output in node.outputs[1:])
    real, stem = compute_type(value.dtype).name, node.output.name
    axes = _axes(value, gamma)
    count = static_count(value.shape, axes)
    assert count is not None
    hat = b.add(
        "map",
        value,
        mean,
        inverse,
        name=f"{stem}.hat",
        expr=(x - m) * r,
        arguments=("x", "m", "r"),
        dtype=real,
    )
    q = b.add("map", grad, gamma, name=f"{stem}.q", expr=g * w, arguments=("g", "w"), dtype=real)
    qh = b.add("map", q, hat, name=f"{stem}.qh", expr=g * x, arguments=("g", "x"), dtype=real)
    total_q = b.add("sum", q, name=f"{stem}.sum_q", axes=axes, keepdims=True, dtype=real)
    total_qh = b.add("sum", qh, name=f"{stem}.sum_qh", axes=axes, keepdims=True, dtype=real)
    n = Const(float(count))
    dx = b.add(
        "map",
        q,
        hat,
        inverse,
        total_q,
        total_qh,
        name=f"d_{value.name}",
        expr=r * ((g - s / n) - x * (t / n)),
        arguments=("g", "x", "r", "s", "t"),
        dtype=value.dtype.name,
    )
    gh = b.add("map", grad, hat, name=f"{stem}.gh", expr=g * x, arguments=("g", "x"), dtype=real)
    over = tuple(range(len(value.shape) - len(gamma.shape)))
    dgamma = b.add("sum", gh, name=f"d_{gamma.name}", axes=over, dtype=gamma.dtype.name)
    dbeta = b.add("sum", grad, name=f"d_{beta.name}", axes=over, dtype=beta.dtype.name)
    return dx, dgamma, dbeta


def _expand_layernorm(b: Builder, node: Node) -> tuple[Value, ...]:
    """Two passes over the row: the mean first, then the squares of what is left."""
    value, gamma, beta = (b.values[name] for name in node.inputs)
    result, mean_out, inverse_out = node.outputs
    real, stem = compute_type(value.dtype).name, result.name
    axes = _axes(value, gamma)
    count = static_count(value.shape, axes)
    assert count is not None
    n, sums = Const(float(count)), {"count": len(axes), "kind": "sum", "dtype": real}
    total = b.add("row_reduce", value, name=f"{stem}.total", **sums)
    mean = b.add(
        "map", total, name=mean_out.name, expr=s / n, arguments=("s",), dtype=real
    )
    pair = ("x", "m")
    centred = b.add(
        "map", value, mean, name=f"{stem}.centred", expr=x - m, arguments=pair, dtype=real
    )
    square = b.add("map", centred, name=f"{stem}.square", expr=x * x, arguments=("x",), dtype=real)
    squares = b.add("row_reduce", square, name=f"{stem}.squares", **sums)
    root = Call("sqrt", (s / n + Const(node.attr("eps")),))
    inverse = b.add(
        "map", squares, name=inverse_out.name, expr=Const(1.0) / root, arguments=("s",), dtype=real
    )
    scaled = b.add(
        "map",
        centred,
        inverse,
        gamma,
        beta,
        name=result.name,
        expr=x * r * w + b_,
        arguments=("x", "r", "w", "b"),
        dtype=result.dtype.name,
    )
    return scaled, mean, inverse


def _flops_layernorm(node: Node, operands: Values, rows: int) -> int:
    return 8 * elements(operands[0].shape, rows)


def _build_layernorm(context: LayerContext, inputs: Sequence[Value]) -> Value:
    (value,) = inputs
    count = context.option("axes")
    if not 1 <= count < len(value.shape):
        found = format_shape(value.shape)
        message = f"axes is {count}, the input {found} allows 1 to {len(value.shape) - 1}"
        raise context.fault("BPC0217", message, "axes")
    shape = value.shape[-count:]
    size = prod(dim for dim in shape if isinstance(dim, int))
    gamma = context.parameter("gamma", shape, Init("constant", (("value", 1.0),), size))
    beta = context.parameter("beta", shape, Init("zeros", (), size))
    name = context.builder.scope
    eps = float(context.option("eps"))
    return context.builder.add("layernorm", value, gamma, beta, name=name, eps=eps)


OPS.register(
    Op(
        "layernorm",
        _infer_layernorm,
        _reference_layernorm,
        _gradient_layernorm,
        _expand_layernorm,
        saves=(0, 1, -2, -3),
        flops=_flops_layernorm,
        layer=LayerSchema(
            "layernorm",
            (
                Option("axes", "int", 1, minimum=1, help="how many trailing axes to normalise"),
                Option("eps", "float", 1e-5, minimum=0.0, help="added to the variance"),
            ),
            shorthand="axes",
            help="normalise rows to mean 0 and variance 1, then scale and shift",
        ),
        build=_build_layernorm,
    )
)
