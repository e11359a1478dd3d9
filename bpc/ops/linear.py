"""Rows that multiply matrices and convolve: matmul, linear, conv2d with its two gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bpc.ir import Attrs, Builder, Node, Result, Value
from bpc.ops.base import OPS, Arrays, LayerContext, Op, RunContext, ShapeFault, sum_to
from bpc.ops.primitive import Gradients, Values
from bpc.types import DTYPES, LayerSchema, Option, Rows, Shape, elements, format_shape, multiply

# -- matmul ---------------------------------------------------------------------------------------


def _infer_matmul(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """a [..., k] times w [k, n] gives [..., n]."""
    a, w = operands
    if len(w.shape) != 2 or not a.shape:
        raise ShapeFault(
            f"matmul takes [..., k] and [k, n], found {format_shape(a.shape)} "
            f"and {format_shape(w.shape)}"
        )
    if a.shape[-1] != w.shape[0]:
        raise ShapeFault(
            f"sizes differ: {a.name} has {a.shape[-1]} columns, {w.name} has {w.shape[0]} rows"
        )
    return ((a.dtype, (*a.shape[:-1], w.shape[1])),)


def _reference_matmul(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    return (np.matmul(operands[0], operands[1]),)


def _flat(b: Builder, value: Value, stem: str) -> Value:
    """The value as a matrix: all axes but the last in one."""
    if len(value.shape) == 2:
        return value
    shape: Shape = (multiply(value.shape[:-1]), value.shape[-1])
    return b.add("reshape", value, name=f"{stem}.matrix", shape=shape)


def _shaped(b: Builder, value: Value, shape: Shape, name: str) -> Value:
    return value if value.shape == shape else b.add("reshape", value, name=name, shape=shape)


def _product_gradients(b: Builder, node: Node, g: Value) -> tuple[Value, Value]:
    """y = a @ w gives da = g @ w^T and dw = a^T @ g, over all leading axes of a.

    The weight's gradient comes first: after it a may be needed no more, and da can take its place.
    """
    a, w = (b.values[name] for name in node.inputs[:2])
    rows, grads = _flat(b, a, a.name), _flat(b, g, g.name)
    dw = b.add("gemm", rows, grads, name=f"d_{w.name}", ta=True, tb=False, dtype=w.dtype.name)
    da = b.add("gemm", grads, w, name=f"d_{a.name}", ta=False, tb=True, dtype=a.dtype.name)
    return _shaped(b, da, a.shape, f"d_{a.name}"), dw


def _gradient_matmul(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    return _product_gradients(b, node, results[0]) if results[0] else (None, None)


def _expand_matmul(b: Builder, node: Node) -> tuple[Value, ...]:
    operands = [b.values[name] for name in node.inputs]
    rows = _flat(b, operands[0], operands[0].name)
    final = node.output
    flat = len(final.shape) == 2
    stem = final.name if flat else f"{final.name}.matrix"
    made = b.add("gemm", rows, *operands[1:], name=stem, ta=False, tb=False)
    return (_shaped(b, made, final.shape, final.name),)


def _flops_matmul(node: Node, operands: Values, rows: int) -> int:
    k = operands[1].shape[0]
    assert isinstance(k, int)
    return 2 * k * elements(node.output.shape, rows)


def _build_matmul(context: LayerContext, inputs: Sequence[Value]) -> Value:
    return context.builder.add("matmul", *inputs, name=context.builder.scope)


OPS.register(
    Op(
        "matmul",
        _infer_matmul,
        _reference_matmul,
        _gradient_matmul,
        _expand_matmul,
        saves=(0, 1),
        flops=_flops_matmul,
        layer=LayerSchema("matmul", (), 2, 2, help="[..., k] times [k, n]"),
        build=_build_matmul,
    )
)

# -- linear ---------------------------------------------------------------------------------------


def _infer_linear(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    return _infer_matmul(operands[:2], attrs)


def _reference_linear(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    return (np.matmul(operands[0], operands[1]) + operands[2],)


def _gradient_linear(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """The gradients of the product, and the sum of g over all rows for the bias."""
    g = results[0]
    if g is None:
        return (None,) * 3
    bias = b.values[node.inputs[2]]
    axes = tuple(range(len(g.shape) - 1))
    summed = b.add("sum", g, name=f"d_{bias.name}", axes=axes, dtype=bias.dtype.name)
    return (*_product_gradients(b, node, g), summed)


def _build_linear(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """y = x @ weight + bias; weight is [in, out]."""
    (value,) = inputs
    fan_in = value.shape[-1] if value.shape else 1
    if isinstance(fan_in, Rows):
        raise context.fault("BPC0212", "linear needs a last axis of fixed size; reshape it first")
    out = context.option("out")
    tied = context.option("weight")
    if out is None and tied is None:
        raise context.fault("BPC0213", "linear needs `out`, the number of outputs")
    start = context.init("init", "he", fan_in, out or 0)
    shape: Shape = (fan_in, out) if out is not None else (fan_in,)
    weight = context.parameter("weight", shape, start, "weight")
    if len(weight.shape) != 2:
        found = format_shape(weight.shape)
        raise context.fault("BPC0225", f"linear needs a weight [inputs, outputs], found {found}")
    if not context.option("bias"):
        return context.builder.add("matmul", value, weight, name=context.builder.scope)
    zeros = context.init("bias_init", "zeros", fan_in, 0)
    bias = context.parameter("bias", weight.shape[1:], zeros)
    return context.builder.add("linear", value, weight, bias, name=context.builder.scope)


INIT = Option("init", "init", None, help="initialiser of the weight")
BIAS_INIT = Option("bias_init", "init", None, help="initialiser of the bias; default zeros")
BIAS = Option("bias", "bool", True, help="add a learned bias")

OPS.register(
    Op(
        "linear",
        _infer_linear,
        _reference_linear,
        _gradient_linear,
        _expand_matmul,
        saves=(0, 1),
        flops=_flops_matmul,
        layer=LayerSchema(
            "linear",
            (
                Option("out", "int", None, minimum=1, help="number of outputs"),
                BIAS,
                INIT,
                BIAS_INIT,
                Option("weight", "name", None, help="use this declared or other layer's weight"),
            ),
            shorthand="out",
            help="x @ weight + bias",
        ),
        build=_build_linear,
    )
)

# -- convolution ----------------------------------------------------------------------------------

Pair = tuple[int, int]


def output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """The number of window positions along one axis."""
    return (size + 2 * padding - kernel) // stride + 1


def _infer_conv2d(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """x [n, c, h, w] with weight [o, c, kh, kw] gives [n, o, oh, ow]."""
    x, weight = operands[:2]
    options = dict(attrs)
    n, c, h, w = x.shape
    o, c2, kh, kw = weight.shape
    if c != c2:
        raise ShapeFault(f"sizes differ: {x.name} has {c} channels, {weight.name} takes {c2}")
    assert isinstance(h, int) and isinstance(w, int) and isinstance(kh, int) and isinstance(kw, int)
    (sh, sw), (ph, pw) = options["stride"], options["padding"]
    oh, ow = output_size(h, kh, sh, ph), output_size(w, kw, sw, pw)
    if oh < 1 or ow < 1:
        raise ShapeFault(
            f"the {kh}x{kw} window does not fit the {h}x{w} image with padding {ph}, {pw}",
            option="kernel",
        )
    return ((x.dtype, (n, o, oh, ow)),)


def _windows(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    """All windows of x: [n, c, oh, ow, kh, kw]."""
    (ph, pw), (sh, sw) = padding, stride
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    return sliding_window_view(padded, kernel, axis=(2, 3))[:, :, ::sh, ::sw]


def _reference_conv2d(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    x, weight = operands[:2]
    windows = _windows(x, weight.shape[2:], node.attr("stride"), node.attr("padding"))
    y = np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True)
    return (y + operands[2][:, None, None] if len(operands) == 3 else y,)


def _gradient_conv2d(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """Input gradient, weight gradient, and the sum of g over images and positions."""
    g = results[0]
    if g is None:
        return (None,) * len(node.inputs)
    x, weight = (b.values[name] for name in node.inputs[:2])
    options = {key: node.attr(key) for key in ("stride", "padding")}
    db = None
    if len(node.inputs) == 3:
        bias = b.values[node.inputs[2]]
        db = b.add("sum", g, name=f"d_{bias.name}", axes=(0, 2, 3), dtype=bias.dtype.name)
    dw = b.add("conv2d_weight", x, g, name=f"d_{weight.name}", shape=weight.shape, **options)
    dx = b.add("conv2d_input", g, weight, name=f"d_{x.name}", shape=x.shape, **options)
    return (dx, dw, db)[: len(node.inputs)]


def _infer_shaped(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    named = dict(attrs).get("dtype")
    return ((DTYPES[named] if named else operands[0].dtype, dict(attrs)["shape"]),)


def _reference_conv2d_input(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    """dx[n, c, y, x] = sum over o, i, j of g[n, o, (y + ph - i) / sh, (x + pw - j) / sw] w."""
    g, weight = operands
    (sh, sw), (ph, pw) = node.attr("stride"), node.attr("padding")
    h, w = node.output.shape[2:]
    assert isinstance(h, int) and isinstance(w, int)
    padded = np.zeros((g.shape[0], weight.shape[1], h + 2 * ph, w + 2 * pw), g.dtype)
    oh, ow = g.shape[2:]
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            part = np.einsum("nohw,oc->nchw", g, weight[:, :, i, j], optimize=True)
            padded[:, :, i : i + sh * oh : sh, j : j + sw * ow : sw] += part
    return (padded[:, :, ph : ph + h, pw : pw + w],)


def _reference_conv2d_weight(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    x, g = operands
    shape = node.output.shape
    kernel = (int(str(shape[2])), int(str(shape[3])))
    windows = _windows(x, kernel, node.attr("stride"), node.attr("padding"))
    windows = windows[:, :, : g.shape[2], : g.shape[3]]
    return (np.einsum("nchwij,nohw->ocij", windows, g, optimize=True),)


def _gradient_conv2d_input(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """The input gradient is linear in g and in the weight."""
    r = results[0]
    if r is None:
        return (None, None)
    g, weight = (b.values[name] for name in node.inputs)
    options = {key: node.attr(key) for key in ("stride", "padding")}
    dg = b.add("conv2d", r, weight, name=f"d_{g.name}", **options)
    dw = b.add("conv2d_weight", r, g, name=f"d_{weight.name}", shape=weight.shape, **options)
    return dg, dw


def _gradient_conv2d_weight(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """The weight gradient is linear in x and in g."""
    r = results[0]
    if r is None:
        return (None, None)
    x, g = (b.values[name] for name in node.inputs)
    options = {key: node.attr(key) for key in ("stride", "padding")}
    dx = b.add("conv2d_input", g, r, name=f"d_{x.name}", shape=x.shape, **options)
    return dx, b.add("conv2d", x, r, name=f"d_{g.name}", **options)


def _flops_conv2d(node: Node, operands: Values, rows: int) -> int:
    """Two operations per tap, window position and channel pair, in each of the directions."""
    if node.op == "conv2d":
        positions, weight = node.output, operands[1].shape
    elif node.op == "conv2d_input":
        positions, weight = operands[0], operands[1].shape
    else:
        positions, weight = operands[1], node.output.shape
    taps = prod(dim for dim in weight[1:] if isinstance(dim, int))
    return 2 * taps * elements(positions.shape, rows)


def _build_conv2d(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """Weight [out, channels, kh, kw]; images are [batch, channels, height, width]."""
    (value,) = inputs
    if len(value.shape) != 4:
        raise context.fault(
            "BPC0214",
            f"conv2d takes [batch, channels, height, width], found {format_shape(value.shape)}",
            help="give the data a shape such as [1, 28, 28], or add a `reshape` layer",
        )
    kernel, stride, padding = (_pair(context, key) for key in ("kernel", "stride", "padding"))
    channels = value.shape[1]
    if isinstance(channels, Rows):
        found = format_shape(value.shape)
        raise context.fault("BPC0226", f"conv2d needs a fixed number of channels, found {found}")
    fan_in = channels * prod(kernel)
    start = context.init("init", "he", fan_in, context.option("out") * prod(kernel))
    shape = (context.option("out"), channels, *kernel)
    operands = [value, context.parameter("weight", shape, start, "weight")]
    if context.option("bias"):
        zeros = context.init("bias_init", "zeros", fan_in, 0)
        operands.append(context.parameter("bias", shape[:1], zeros))
    name = context.builder.scope
    return context.builder.add("conv2d", *operands, name=name, stride=stride, padding=padding)


def _pair(context: LayerContext, option: str) -> Pair:
    """One number for both axes, or two; windows and strides are at least 1."""
    given = context.option(option)
    found = tuple(given) if isinstance(given, list | tuple) else (given, given)
    least = 0 if option == "padding" else 1
    if len(found) != 2 or any(part < least for part in found):
        raise context.fault(
            "BPC0216", f"{option} takes one or two numbers of at least {least}", option
        )
    return found[0], found[1]


for _name, _infer, _reference, _gradient in (
    ("conv2d_input", _infer_shaped, _reference_conv2d_input, _gradient_conv2d_input),
    ("conv2d_weight", _infer_shaped, _reference_conv2d_weight, _gradient_conv2d_weight),
):
    OPS.register(
        Op(_name, _infer, _reference, _gradient, saves=(0, 1), flops=_flops_conv2d)
    )
OPS.register(
    Op(
        "conv2d",
        _infer_conv2d,
        _reference_conv2d,
        _gradient_conv2d,
        saves=(0, 1),
        flops=_flops_conv2d,
        layer=LayerSchema(
            "conv2d",
            (
                Option("out", "int", required=True, minimum=1, help="number of output channels"),
                Option("kernel", "ints", 3, help="window height and width"),
                Option("stride", "ints", 1, help="steps of the window down and across"),
                Option("padding", "ints", 0, help="zeros on each side"),
                BIAS,
                INIT,
                BIAS_INIT,
                Option("weight", "name", None, help="use this declared or other layer's weight"),
            ),
            shorthand="out",
            help="2-d convolution of [batch, channels, height, width]; the weight is "
            "[out, channels, height, width]",
        ),
        build=_build_conv2d,
    )
)

__all__ = ["output_size", "sum_to"]
