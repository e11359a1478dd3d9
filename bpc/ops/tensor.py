"""Rows that sum, view or draw: sum, mean, reshape, flatten, softmax, dropout, stop_gradient."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from bpc.expr import Call, Const, Var
from bpc.ir import Attrs, Builder, Node, Result, Value
from bpc.ops.base import (
    OPS,
    Arrays,
    Build,
    LayerContext,
    Op,
    RunContext,
    ShapeFault,
    static_count,
)
from bpc.ops.primitive import Gradients, Values, broadcast_to
from bpc.philox import philox_uniform
from bpc.types import (
    DTYPES,
    LayerSchema,
    Option,
    Rows,
    Shape,
    compute_type,
    elements,
    format_shape,
    multiply,
)

g, x, y, m, s = (Var(name) for name in ("g", "x", "y", "m", "s"))

# -- sums and means -------------------------------------------------------------------------------


def normalise_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes in [0, rank), sorted; raises ShapeFault for one that is out of range or repeated."""
    if not axes:
        raise ShapeFault("no axes are given", "name at least one axis, or leave `axes` out", "axes")
    for axis in axes:
        if not -rank <= axis < rank:
            raise ShapeFault(
                f"axis {axis} does not exist: the input has {rank} axes", option="axes"
            )
    found = tuple(sorted(axis % rank for axis in axes))
    if len(set(found)) != len(found):
        raise ShapeFault(f"an axis is named twice in {list(axes)}", option="axes")
    return found


def _infer_sum(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    (value,) = operands
    options = dict(attrs)
    axes = normalise_axes(options["axes"], len(value.shape))
    keep = options.get("keepdims", False)
    kept = [1 if k in axes else dim for k, dim in enumerate(value.shape) if keep or k not in axes]
    return ((DTYPES[options.get("dtype", value.dtype.name)], tuple(kept)),)


def _reference_sum(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    axes, keep = tuple(node.attr("axes")), node.attr("keepdims", False)
    real = np.float64 if node.output.dtype.name == "f64" else run.real
    return (np.asarray(np.sum(operands[0], axis=axes, keepdims=keep, dtype=real)),)


def _gradient_sum(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """Every summed element gets the gradient of its sum."""
    source, total = b.values[node.inputs[0]], results[0]
    if total is None:
        return (None,)
    axes = normalise_axes(node.attr("axes"), len(source.shape))
    kept: Shape = tuple(1 if k in axes else dim for k, dim in enumerate(source.shape))
    if total.shape != kept:
        total = b.add("reshape", total, name=f"{total.name}.kept", shape=kept)
    return (broadcast_to(b, total, source),)


def _expand_sum(b: Builder, node: Node) -> tuple[Value, ...]:
    """Sum the trailing run of axes as a row reduction, every other run as a column reduction.

    Partial sums stay in the computing type; only the last step rounds to the result's type.
    """
    value, final = b.values[node.inputs[0]], node.output
    axes = list(normalise_axes(node.attr("axes"), len(value.shape)))
    partial = compute_type(final.dtype).name
    whole = static_count(value.shape, axes)
    if len(axes) == len(value.shape) and whole is not None:
        parts = b.add(
            "chunk_reduce", value, name=f"{final.name}.chunks", kind="sum", dtype=partial
        )
        scalar = None if final.shape else final.name
        value = b.add("combine", parts, name=scalar, kind="sum", dtype=final.dtype.name)
        return (_in_shape(b, value, final),)
    steps = _reduction_steps(axes, len(value.shape))
    for at, (op, where) in enumerate(steps):
        kind = final.dtype.name if at == len(steps) - 1 else partial
        stem = f"{final.name}.{'rows' if op == 'row_reduce' else 'cols'}"
        value = b.add(op, value, name=stem, kind="sum", dtype=kind, **where)
    return (_in_shape(b, value, final),)


def _in_shape(b: Builder, value: Value, final: Value) -> Value:
    """The value under the final name, as a view where its shape differs."""
    if value.name == final.name:
        return value
    return b.add("reshape", value, name=final.name, shape=final.shape)


def _reduction_steps(axes: list[int], rank: int) -> list[tuple[str, dict[str, int]]]:
    """Primitive reductions, in order, that sum over these axes."""
    steps: list[tuple[str, dict[str, int]]] = []
    left, count = list(axes), 0
    while left and left[-1] == rank - 1 - count:
        left.pop()
        count += 1
    if count:
        steps.append(("row_reduce", {"count": count}))
    while left:
        last = first = left.pop()
        while left and left[-1] == first - 1:
            first = left.pop()
        steps.append(("col_reduce", {"first": first, "count": last - first + 1}))
    return steps


def _flops_sum(node: Node, operands: Values, rows: int) -> int:
    return elements(operands[0].shape, rows)


AXES = Option("axes", "ints", None, help="axes to reduce, the batch is axis 0; default: the last")
KEEP = Option("keepdims", "bool", False, help="keep reduced axes with length 1")


def _axes_of(context: LayerContext) -> tuple[int, ...]:
    axes = context.option("axes")
    if axes is None:
        return (-1,)
    return tuple(axes) if isinstance(axes, list | tuple) else (axes,)


def build_sum(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """Sum over the layer's axes."""
    (value,) = inputs
    return context.builder.add(
        "sum",
        value,
        name=context.builder.scope,
        axes=_axes_of(context),
        keepdims=context.option("keepdims"),
    )


def build_mean(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """Sum in at least f32, then divide by the number of elements, which may follow the batch."""
    (value,) = inputs
    b, axes = context.builder, normalise_axes(_axes_of(context), len(inputs[0].shape))
    total = b.add(
        "sum",
        value,
        name=f"{b.scope}.sum",
        axes=axes,
        keepdims=context.option("keepdims"),
        dtype=compute_type(value.dtype).name,
    )
    return divide_by_count(b, total, value, axes, value.dtype.name, b.scope)


def divide_by_count(
    b: Builder, total: Value, source: Value, axes: Sequence[int], dtype: str, name: str
) -> Value:
    """`total` over the number of elements of `source` along `axes`."""
    count = static_count(source.shape, axes)
    if count is not None:
        expr = x / Const(float(count))
        return b.add("map", total, name=name, expr=expr, arguments=("x",), dtype=dtype)
    dim = multiply([source.shape[axis] for axis in axes])
    extent = b.add("extent", name=f"{name}.count", dim=dim)
    operands = (total, extent)
    return b.add("map", *operands, name=name, expr=x / m, arguments=("x", "m"), dtype=dtype)


OPS.register(
    Op(
        "sum",
        _infer_sum,
        _reference_sum,
        _gradient_sum,
        _expand_sum,
        flops=_flops_sum,
        layer=LayerSchema("sum", (AXES, KEEP), shorthand="axes", help="sum over axes"),
        build=build_sum,
    )
)
OPS.register_layer(
    LayerSchema("mean", (AXES, KEEP), shorthand="axes", help="mean over axes"), build_mean
)

# -- views ----------------------------------------------------------------------------------------


def build_reshape(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """The same elements in another shape; the batch axis stays and is not written."""
    (value,) = inputs
    _need_batch(context, value, "reshape")
    shape = (value.shape[0], *context.option("shape"))
    return context.builder.add("reshape", value, name=context.builder.scope, shape=shape)


def _need_batch(context: LayerContext, value: Value, layer: str) -> None:
    if not value.shape:
        message = f"{layer} needs a batch axis, found a single number"
        raise context.fault("BPC0227", message)


def build_flatten(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """All axes but the batch in one."""
    (value,) = inputs
    _need_batch(context, value, "flatten")
    shape = (value.shape[0], multiply(value.shape[1:]))
    return context.builder.add("reshape", value, name=context.builder.scope, shape=shape)


OPS.register_layer(
    LayerSchema(
        "reshape",
        (Option("shape", "shape", required=True, help="extents without the batch"),),
        shorthand="shape",
        help="the same elements in another shape; the batch stays first",
    ),
    build_reshape,
)
OPS.register_layer(LayerSchema("flatten", help="one axis beside the batch"), build_flatten)


def infer_same(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """The first operand's type and shape."""
    return ((operands[0].dtype, operands[0].shape),)


def _build_same(op: str) -> Build:
    return lambda context, inputs: context.builder.add(op, *inputs, name=context.builder.scope)


OPS.register(
    Op(
        "stop_gradient",
        infer_same,
        lambda node, operands, run: (operands[0],),
        lambda b, node, results: (None,),
        lambda b, node: (
            b.add(
                "reshape",
                b.values[node.inputs[0]],
                name=node.output.name,
                shape=node.output.shape,
            ),
        ),
        layer=LayerSchema("stop_gradient", help="the value itself; its gradient is 0"),
        build=_build_same("stop_gradient"),
    )
)

# -- softmax --------------------------------------------------------------------------------------


def row_sum(b: Builder, value: Value, name: str, dtype: str | None = None) -> Value:
    """Sum over the last axis, kept with length 1, in at least f32."""
    axes = (len(value.shape) - 1,)
    real = dtype or compute_type(value.dtype).name
    return b.add("sum", value, name=name, axes=axes, keepdims=True, dtype=real)


def shifted_exponentials(
    b: Builder, value: Value, stem: str, top_name: str | None = None
) -> tuple[Value, Value, Value]:
    """(m, e, s): the row maximum, exp(x - m) and its row sum, in at least f32."""
    real = compute_type(value.dtype).name
    label = top_name or f"{stem}.max"
    top = b.add("row_reduce", value, name=label, count=1, kind="max", dtype=real)
    power = Call("exp", (x - m,))
    e = b.add(
        "map", value, top, name=f"{stem}.exp", expr=power, arguments=("x", "m"), dtype=real
    )
    total = b.add("row_reduce", e, name=f"{stem}.sum", count=1, kind="sum", dtype=real)
    return top, e, total


def _stable(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    e = np.exp(value - value.max(axis=-1, keepdims=True, initial=-np.inf))
    return e, e.sum(axis=-1, keepdims=True)


def _reference_softmax(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    e, total = _stable(operands[0])
    return (e / total,)


def _gradient_softmax(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """dx = y (g - sum(g y)) along the row."""
    grad, result = results[0], b.values[node.output.name]
    if grad is None:
        return (None,)
    source = b.values[node.inputs[0]]
    real = compute_type(source.dtype).name
    product = b.add("map", grad, result, expr=g * y, arguments=("g", "y"), dtype=real)
    total = row_sum(b, product, f"{result.name}.inner")
    operands = (result, grad, total)
    names = ("y", "g", "s")
    name = f"d_{source.name}"
    kind = source.dtype.name
    return (b.add("map", *operands, name=name, expr=y * (g - s), arguments=names, dtype=kind),)


def _expand_softmax(b: Builder, node: Node) -> tuple[Value, ...]:
    _, e, total = shifted_exponentials(b, b.values[node.inputs[0]], node.output.name)
    kind = node.output.dtype.name
    names = ("x", "s")
    return (
        b.add(
            "map", e, total, name=node.output.name, expr=x / s, arguments=names, dtype=kind
        ),
    )


def _reference_log_softmax(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    value = operands[0]
    top = value.max(axis=-1, keepdims=True, initial=-np.inf)
    return ((value - top) - np.log(_stable(value)[1]),)


def _gradient_log_softmax(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """dx = g - exp(y) sum(g) along the row."""
    grad, result = results[0], b.values[node.output.name]
    if grad is None:
        return (None,)
    source = b.values[node.inputs[0]]
    total = row_sum(b, grad, f"{result.name}.inner")
    return (
        b.add(
            "map",
            grad,
            result,
            total,
            name=f"d_{source.name}",
            expr=g - Call("exp", (y,)) * s,
            arguments=("g", "y", "s"),
            dtype=source.dtype.name,
        ),
    )


def _expand_log_softmax(b: Builder, node: Node) -> tuple[Value, ...]:
    value = b.values[node.inputs[0]]
    top, _, total = shifted_exponentials(b, value, node.output.name)
    return (
        b.add(
            "map",
            value,
            top,
            total,
            name=node.output.name,
            expr=(x - m) - Call("log", (s,)),
            arguments=("x", "m", "s"),
            dtype=node.output.dtype.name,
        ),
    )


def _flops_softmax(node: Node, operands: Values, rows: int) -> int:
    return 12 * elements(operands[0].shape, rows)


for _name, _reference, _gradient, _expand in (
    ("softmax", _reference_softmax, _gradient_softmax, _expand_softmax),
    ("log_softmax", _reference_log_softmax, _gradient_log_softmax, _expand_log_softmax),
):
    OPS.register(
        Op(
            _name,
            infer_same,
            _reference,
            _gradient,
            _expand,
            saves=(-1,),
            flops=_flops_softmax,
            layer=LayerSchema(_name, help=f"{_name} over the last axis"),
            build=_build_same(_name),
        )
    )

# -- dropout --------------------------------------------------------------------------------------


def _reference_dropout(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    """Keep an element where its draw is at least p; the draw belongs to the logical element."""
    value, seed, window, first = operands
    rate = node.attr("p")
    per_row = value.size // value.shape[0] if value.shape and value.shape[0] else 0
    element = np.arange(value.size, dtype=np.int64) + int(first) * per_row
    draw = philox_uniform(int(seed), int(window), node.attr("stream"), element)
    kept = draw.reshape(value.shape) >= rate
    return (np.where(kept, value * _dropout_scale(rate), 0).astype(value.dtype),)


def _dropout_scale(rate: float) -> float:
    return 1.0 / (1.0 - rate) if rate < 1 else 0.0


def _gradient_dropout(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """The same draws applied to g: they are drawn again, no mask is kept."""
    if results[0] is None:
        return (None,) * 4
    drawn = [b.values[name] for name in node.inputs[1:]]
    name = f"d_{node.inputs[0]}"
    made = b.add("dropout", results[0], *drawn, name=name, **dict(node.attrs))
    return made, None, None, None


def _expand_dropout(b: Builder, node: Node) -> tuple[Value, ...]:
    value, seed, window, first = (b.values[name] for name in node.inputs)
    stem, rate = node.output.name, node.attr("p")
    element = b.add("index", first, name=f"{stem}.element", axis=None, shape=value.shape)
    stream = Const(node.attr("stream"))
    draw = Call("uniform", (Var("seed"), Var("window"), stream, Var("element")))
    kept = Call("ge", (draw, Const(rate)))
    return (
        b.add(
            "map",
            value,
            seed,
            window,
            element,
            name=stem,
            expr=Call("select", (kept, x * Const(_dropout_scale(rate)), Const(0.0))),
            arguments=("x", "seed", "window", "element"),
            dtype=value.dtype.name,
        ),
    )


def _flops_dropout(node: Node, operands: Values, rows: int) -> int:
    return 40 * elements(operands[0].shape, rows)  # ten Philox rounds of four operations


def build_dropout(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """The identity outside training and at p = 0; zeros at p = 1."""
    (value,) = inputs
    b, rate = context.builder, context.option("p")
    if rate == 0 or not context.training:
        return b.add("reshape", value, name=b.scope, shape=value.shape)
    if not value.shape or not isinstance(value.shape[0], Rows):
        raise context.fault(
            "BPC0215", f"dropout needs the batch as first axis, found {format_shape(value.shape)}"
        )
    drawn = [context.state(name) for name in ("seed", "window", "first_row")]
    stream = crc32(b.scope.encode())
    return b.add("dropout", value, *drawn, name=b.scope, p=float(rate), stream=stream)


OPS.register(
    Op(
        "dropout",
        infer_same,
        _reference_dropout,
        _gradient_dropout,
        _expand_dropout,
        flops=_flops_dropout,
        layer=LayerSchema(
            "dropout",
            (
                Option(
                    "p",
                    "float",
                    0.5,
                    minimum=0.0,
                    maximum=1.0,
                    help="share of elements set to 0; the others are scaled by 1 / (1 - p)",
                ),
            ),
            shorthand="p",
            help="elements set to 0 at random while training, the others scaled up; "
            "the identity otherwise",
        ),
        build=build_dropout,
    )
)
