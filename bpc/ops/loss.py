"""Losses: each gives a sum of terms and the weight that the sum is divided by.

Sum and weight stay apart so that unequal batches add up to what one large batch would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bpc.expr import Call, Const, Expr, Var, absolute, maximum, softplus
from bpc.ir import Attrs, Builder, Node, Result, Value
from bpc.ops.base import OPS, Arrays, LayerContext, Op, RunContext, ShapeFault
from bpc.ops.primitive import Gradients, Values
from bpc.ops.tensor import shifted_exponentials
from bpc.types import (
    F64,
    LayerSchema,
    Option,
    Shape,
    compute_type,
    elements,
    format_shape,
    multiply,
)

x, t, m, s, g, lse_, u = (Var(name) for name in ("x", "t", "m", "s", "g", "l", "u"))


@dataclass(frozen=True, slots=True)
class Loss:
    """What a spec may write under `loss:`; `build` gives (sum of terms, weight), f64 scalars."""

    schema: LayerSchema
    build: Callable[[LayerContext, Value, Value], tuple[Value, Value]]


LOSSES: dict[str, Loss] = {}


def _total(b: Builder, value: Value, name: str) -> Value:
    """The sum of all elements as an f64 scalar."""
    axes = tuple(range(len(value.shape)))
    return b.add("sum", value, name=name, axes=axes, dtype="f64")


def _count(b: Builder, shape: Shape, name: str) -> Value:
    """The number of elements as an f64 scalar."""
    extent = b.add("extent", name=f"{name}.extent", dim=multiply(shape))
    return b.add("map", extent, name=name, expr=x, arguments=("x",), dtype="f64")


# -- softmax and cross-entropy in one -------------------------------------------------------------


def _infer_cross_entropy(operands: Values, attrs: Attrs) -> tuple[Result, ...]:
    """logits [..., c], class numbers [...]; results: sum, weight, log-sum-exp [..., 1]."""
    logits, target = operands
    if target.shape != logits.shape[:-1] or target.dtype.kind != "int":
        raise ShapeFault(
            f"cross_entropy takes scores [..., classes] and class numbers [...], found "
            f"{format_shape(logits.shape)} and {target.dtype} {format_shape(target.shape)}"
        )
    real = compute_type(logits.dtype)
    return (F64, ()), (F64, ()), (real, (*logits.shape[:-1], 1))


def _reference_cross_entropy(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    logits, target = operands
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    lse = np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)) + top
    counted = target != node.attr("ignore_index")
    index = np.where(counted, target, 0)[..., None].astype(np.int64)
    smoothing = node.attr("label_smoothing")
    terms = (1 - smoothing) * (lse - np.take_along_axis(logits, index, -1))
    if smoothing:
        terms = terms + smoothing * (lse - logits.mean(axis=-1, keepdims=True))
    loss = np.where(counted[..., None], terms, 0).sum(dtype=np.float64)
    return np.asarray(loss), np.asarray(counted.sum(), dtype=np.float64), lse


def _columns(b: Builder, logits: Value, target: Value, stem: str) -> tuple[Value, Value]:
    """The column numbers of the logits, and the targets as a column."""
    axis = len(logits.shape) - 1
    column = b.add("index", name=f"{stem}.column", axis=axis, shape=logits.shape)
    rows = (*target.shape, 1)
    return column, b.add("reshape", target, name=f"{stem}.target", shape=rows)


def _gradient_cross_entropy(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """dx = g (softmax(x) - (1 - e) onehot - e / c) for rows that count, 0 for the others.

    A gradient of the log-sum-exp itself, as second derivatives have one, adds itself * softmax(x).
    """
    parts = [
        _gradient_of_terms(b, node, results[0]) if results[0] else None,
        _gradient_of_lse(b, node, results[2]) if results[2] else None,
    ]
    found = [part for part in parts if part]
    if len(found) == 2:
        return b.add("add", *found, name=f"d_{node.inputs[0]}"), None
    return (found[0] if found else None), None


def _gradient_of_lse(b: Builder, node: Node, grad: Value) -> Value:
    logits, lse = b.values[node.inputs[0]], b.values[node.outputs[2].name]
    name, kind = f"d_{logits.name}", logits.dtype.name
    expr, names = g * Call("exp", (x - lse_,)), ("x", "l", "g")
    return b.add("map", logits, lse, grad, name=name, expr=expr, arguments=names, dtype=kind)


def _gradient_of_terms(b: Builder, node: Node, grad: Value) -> Value:
    logits, target = (b.values[name] for name in node.inputs)
    lse, stem = b.values[node.outputs[2].name], node.name
    column, rows = _columns(b, logits, target, stem)
    smoothing, ignored = node.attr("label_smoothing"), node.attr("ignore_index")
    hit = Call("select", (Call("eq", (u, t)), Const(1.0 - smoothing), Const(0.0)))
    inner: Expr = Call("exp", (x - lse_,)) - hit
    if smoothing:
        classes = logits.shape[-1]
        assert isinstance(classes, int)
        inner = inner - Const(smoothing / classes)
    expr: Expr = g * inner
    if ignored is not None:
        expr = Call("select", (Call("ne", (t, Const(ignored))), expr, Const(0.0)))
    operands = (logits, lse, grad, column, rows)
    names = ("x", "l", "g", "u", "t")
    name, kind = f"d_{logits.name}", logits.dtype.name
    return b.add("map", *operands, name=name, expr=expr, arguments=names, dtype=kind)


def _expand_cross_entropy(b: Builder, node: Node) -> tuple[Value, ...]:
    logits, target = (b.values[name] for name in node.inputs)
    loss, weight, lse_out = node.outputs
    real, stem = lse_out.dtype.name, node.name
    sums = {"count": 1, "kind": "sum", "dtype": real}
    column, rows = _columns(b, logits, target, stem)
    top, _, total = shifted_exponentials(b, logits, stem)
    names = ("s", "m")
    expr = Call("log", (s,)) + m
    lse = b.add("map", total, top, name=lse_out.name, expr=expr, arguments=names, dtype=real)
    hit = Call("select", (Call("eq", (u, t)), x, Const(0.0)))
    chosen = b.add(
        "map",
        logits,
        column,
        rows,
        name=f"{stem}.chosen",
        expr=hit,
        arguments=("x", "u", "t"),
        dtype=real,
    )
    picked = b.add("row_reduce", chosen, name=f"{stem}.picked", **sums)
    operands, arguments = [lse, picked, rows], ["l", "x", "t"]
    smoothing, ignored = node.attr("label_smoothing"), node.attr("ignore_index")
    term: Expr = lse_ - x
    if smoothing:
        classes = logits.shape[-1]
        assert isinstance(classes, int)
        operands.append(b.add("row_reduce", logits, name=f"{stem}.scores", **sums))
        arguments.append("s")
        term = Const(1.0 - smoothing) * term + Const(smoothing) * (lse_ - s / Const(float(classes)))
    counted = Call("ne", (t, Const(0 if ignored is None else ignored)))
    if ignored is not None:
        term = Call("select", (counted, term, Const(0.0)))
    terms = b.add(
        "map", *operands, name=f"{stem}.terms", expr=term, arguments=tuple(arguments), dtype=real
    )
    whole = {"count": len(terms.shape), "kind": "sum", "dtype": "f64"}
    summed = b.add("row_reduce", terms, name=f"{stem}.total", **whole)
    flat = b.add("reshape", summed, name=loss.name, shape=())
    if ignored is None:
        return flat, _count(b, target.shape, weight.name), lse
    ones = Call("select", (counted, Const(1.0), Const(0.0)))
    weights = b.add(
        "map", rows, name=f"{stem}.weights", expr=ones, arguments=("t",), dtype=real
    )
    summed = b.add("row_reduce", weights, name=f"{stem}.counted", **whole)
    return flat, b.add("reshape", summed, name=weight.name, shape=()), lse


def _flops_cross_entropy(node: Node, operands: Values, rows: int) -> int:
    return 14 * elements(operands[0].shape, rows)


OPS.register(
    Op(
        "cross_entropy",
        _infer_cross_entropy,
        _reference_cross_entropy,
        _gradient_cross_entropy,
        _expand_cross_entropy,
        saves=(0, -3),
        flops=_flops_cross_entropy,
    )
)


def _build_cross_entropy(
    context: LayerContext, prediction: Value, target: Value
) -> tuple[Value, Value]:
    results = context.builder.add_all(
        "cross_entropy",
        (prediction, target),
        "loss",
        label_smoothing=float(context.option("label_smoothing")),
        ignore_index=context.option("ignore_index"),
    )
    return results[0], results[1]


LOSSES["cross_entropy"] = Loss(
    LayerSchema(
        "cross_entropy",
        (
            Option(
                "label_smoothing",
                "float",
                0.0,
                minimum=0.0,
                maximum=1.0,
                help="share of the target spread evenly over all classes",
            ),
            Option("ignore_index", "int", None, help="rows with this target do not count"),
        ),
        shorthand="label_smoothing",
        help="softmax and cross-entropy of scores against class numbers",
    ),
    _build_cross_entropy,
)

# -- sums of element-wise terms -------------------------------------------------------------------


def _register_terms(name: str, term: Expr, help: str) -> None:
    """A loss that adds `term(x, t)` over all elements, times the option `scale`."""

    def build(context: LayerContext, prediction: Value, target: Value) -> tuple[Value, Value]:
        b = context.builder
        if prediction.shape != target.shape:
            raise ShapeFault(
                f"{name} compares equal shapes, found {format_shape(prediction.shape)} against "
                f"the target's {format_shape(target.shape)}",
                help="make the last layer's output as large as the target",
            )
        scale = float(context.option("scale"))
        expr = term if scale == 1 else Const(scale) * term
        terms = b.add(
            "map",
            prediction,
            target,
            name="loss.terms",
            expr=expr,
            arguments=("x", "t"),
            dtype=compute_type(prediction.dtype).name,
        )
        return _total(b, terms, "loss"), _count(b, prediction.shape, "loss.weight")

    scale_option = Option("scale", "float", 1.0, help="factor of every term")
    schema = LayerSchema(name, (scale_option,), shorthand="scale", help=help)
    LOSSES[name] = Loss(schema, build)


_register_terms("mse", Call("square", (x - t,)), "mean of the squared differences")
_register_terms("l1", Call("abs", (x - t,)), "mean of the absolute differences")
_register_terms(
    "bce_with_logits",
    # max(x, 0) - x t + log(1 + exp(-|x|)): no digit is lost where the score is far from 0
    (maximum(x, 0.0) - x * t) + softplus(-absolute(x)),
    "binary cross-entropy of scores against targets in [0, 1]",
)
