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
from bpc.ops.class_weights import MOST_RUNS, count_runs, weight_of
from bpc.ops.primitive import Gradients, Values, spread_to_largest
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

x, t, m, s, g, l_, u = (Var(name) for name in ("x", "t", "m", "s", "g", "l", "u"))


@dataclass(frozen=True, slots=True)
class Loss:
    """What a spec may write under `loss:`; `build` gives (sum of terms, weight), f64 scalars."""

    schema: LayerSchema
    build: Callable[[LayerContext, Value, Value], tuple[Value, Value]]


LOSSES: dict[str, Loss] = {}

BAD_WEIGHTS = "BPC0223"


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
    """logits [..., c], class numbers [...].

    Results: sum of terms, weight, and per row [..., 1] the maximum m and log(sum(exp(x - m))).
    The two stay apart: their sum would round away what a large common part of the scores leaves.
    """
    logits, target = operands
    if target.shape != logits.shape[:-1] or target.dtype.kind != "int":
        raise ShapeFault(
            f"cross_entropy takes scores [..., classes] and class numbers [...], found "
            f"{format_shape(logits.shape)} and {target.dtype} {format_shape(target.shape)}"
        )
    of_row = (compute_type(logits.dtype), (*logits.shape[:-1], 1))
    return (F64, ()), (F64, ()), of_row, of_row


def _reference_cross_entropy(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    logits, target = operands
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    shifted = logits - top
    log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    counted = target != node.attr("ignore_index")
    index = np.where(counted, target, 0)[..., None].astype(np.int64)
    smoothing = node.attr("label_smoothing")
    given = node.attr("class_weights")
    of_class = np.ones(logits.shape[-1]) if given is None else np.asarray(given)
    of_class = of_class.astype(log_sum.dtype)
    of_row = of_class[index]
    terms = (1 - smoothing) * of_row * (log_sum - np.take_along_axis(shifted, index, -1))
    if smoothing:
        terms = terms + smoothing * (of_class * (log_sum - shifted)).mean(axis=-1, keepdims=True)
    loss = np.where(counted[..., None], terms, 0).sum(dtype=np.float64)
    weight = np.where(counted[..., None], of_row, 0).sum(dtype=np.float64)
    return np.asarray(loss), np.asarray(weight), top, log_sum


def _columns(b: Builder, logits: Value, target: Value, stem: str) -> tuple[Value, Value]:
    """The column numbers of the logits, and the targets as a column."""
    axis = len(logits.shape) - 1
    column = b.add("index", name=f"{stem}.column", axis=axis, shape=logits.shape)
    rows = (*target.shape, 1)
    return column, b.add("reshape", target, name=f"{stem}.target", shape=rows)


def _gradient_cross_entropy(b: Builder, node: Node, results: Sequence[Value | None]) -> Gradients:
    """dx = g (softmax(x) - (1 - e) onehot - e / c) for rows that count, 0 for the others.

    With weights w of classes the parts have the factors (1 - e) w[t] + e mean(w), w[t] and w.

    Gradients of the row's maximum and log sum, as second derivatives have them, are added.
    """
    of_terms, _, of_top, of_log = results
    parts = [_gradient_of_terms(b, node, of_terms)] if of_terms else []
    if of_log:
        parts.append(_gradient_of_log_sum(b, node, of_log))
    if of_log or of_top:
        parts.append(_gradient_of_top(b, node, of_top, of_log))
    if not parts:
        return None, None
    total = parts[0]
    for part in parts[1:]:
        total = b.add("add", total, part, name=f"d_{node.inputs[0]}")
    return total, None


_SOFTMAX = Call("exp", ((x - m) - l_,))


def _gradient_of_log_sum(b: Builder, node: Node, grad: Value) -> Value:
    """log(sum(exp(x - m))) with m held: softmax(x)."""
    logits, _, top, log_sum = _saved(b, node)
    operands, names = (grad, logits, top, log_sum), ("g", "x", "m", "l")
    name, kind = f"d_{logits.name}", logits.dtype.name
    return b.add("map", *operands, name=name, expr=g * _SOFTMAX, arguments=names, dtype=kind)


def _gradient_of_top(b: Builder, node: Node, of_top: Value | None, of_log: Value | None) -> Value:
    """The maximum itself, and -1 of it in the log sum."""
    logits, _, top, _ = _saved(b, node)
    operands = [value for value in (of_top, of_log) if value]
    names = tuple(name for name, value in (("g", of_top), ("l", of_log)) if value)
    expr: Expr = g - l_ if len(names) == 2 else (g if of_top else -l_)
    kind = top.dtype.name
    share = b.add("map", *operands, name=f"d_{top.name}", expr=expr, arguments=names, dtype=kind)
    options = {"count": 1, "kind": "sum"}
    return spread_to_largest(b, logits, top, share, "row_reduce", options)


def _saved(b: Builder, node: Node) -> tuple[Value, Value, Value, Value]:
    """Logits, target, and the two results per row."""
    logits, target = (b.values[name] for name in node.inputs)
    top, log_sum = (b.values[value.name] for value in node.outputs[2:])
    return logits, target, top, log_sum


def _gradient_of_terms(b: Builder, node: Node, grad: Value) -> Value:
    logits, target, top, log_sum = _saved(b, node)
    column, rows = _columns(b, logits, target, node.name)
    smoothing, ignored = node.attr("label_smoothing"), node.attr("ignore_index")
    given = node.attr("class_weights")
    share = _weigh(node, t, 1.0 - smoothing)
    hit = Call("select", (Call("eq", (u, t)), share, Const(0.0)))
    inner: Expr = _SOFTMAX - hit
    if given is not None:
        inner = _SOFTMAX * (share + Const(smoothing * sum(given) / len(given))) - hit
    if smoothing:
        inner = inner - _weigh(node, u, smoothing / _classes(logits))
    expr: Expr = g * inner
    if ignored is not None:
        expr = Call("select", (Call("ne", (t, Const(ignored))), expr, Const(0.0)))
    operands = (logits, top, log_sum, grad, column, rows)
    names = ("x", "m", "l", "g", "u", "t")
    name, kind = f"d_{logits.name}", logits.dtype.name
    return b.add("map", *operands, name=name, expr=expr, arguments=names, dtype=kind)


def _weigh(node: Node, index: Expr, factor: float) -> Expr:
    """`factor` times the weight of the class `index`, 1 without weights."""
    weights = node.attr("class_weights")
    if weights is None:
        return Const(factor)
    return weight_of([factor * weight for weight in weights], index)


def _classes(logits: Value) -> int:
    classes = logits.shape[-1]
    assert isinstance(classes, int)
    return classes


def _expand_cross_entropy(b: Builder, node: Node) -> tuple[Value, ...]:
    logits, target = (b.values[name] for name in node.inputs)
    loss, weight, top_out, log_out = node.outputs
    real, stem = log_out.dtype.name, node.name
    column, rows = _columns(b, logits, target, stem)
    top, _, total = shifted_exponentials(b, logits, stem, top_out.name)
    expr = Call("log", (s,))
    log_sum = b.add("map", total, name=log_out.name, expr=expr, arguments=("s",), dtype=real)
    term = _expand_terms(b, node, (logits, top, log_sum), (column, rows), real)
    ignored = node.attr("ignore_index")
    whole = {"count": len(rows.shape), "kind": "sum", "dtype": "f64"}
    summed = b.add("row_reduce", term, name=f"{stem}.total", **whole)
    flat = b.add("reshape", summed, name=loss.name, shape=())
    if ignored is None and node.attr("class_weights") is None:
        return flat, _count(b, target.shape, weight.name), top, log_sum
    ones = _weigh(node, t, 1.0)
    if ignored is not None:
        ones = Call("select", (Call("ne", (t, Const(ignored))), ones, Const(0.0)))
    weights = b.add("map", rows, name=f"{stem}.weights", expr=ones, arguments=("t",), dtype=real)
    summed = b.add("row_reduce", weights, name=f"{stem}.counted", **whole)
    return flat, b.add("reshape", summed, name=weight.name, shape=()), top, log_sum


def _expand_terms(
    b: Builder,
    node: Node,
    scores: tuple[Value, Value, Value],
    targets: tuple[Value, Value],
    real: str,
) -> Value:
    """The loss of each row: log sum - (x[t] - m), mixed with that of the uniform distribution.

    Weights of classes multiply each part of it.
    """
    logits, top, log_sum = scores
    stem, smoothing, ignored = node.name, node.attr("label_smoothing"), node.attr("ignore_index")
    sums = {"count": 1, "kind": "sum", "dtype": real}
    hit = Call("select", (Call("eq", (u, t)), x - m, Const(0.0)))
    operands, names = (logits, top, *targets), ("x", "m", "u", "t")
    chosen = b.add(
        "map", *operands, name=f"{stem}.chosen", expr=hit, arguments=names, dtype=real
    )
    picked = b.add("row_reduce", chosen, name=f"{stem}.picked", **sums)
    read, arguments = [log_sum, picked, targets[1]], ["l", "x", "t"]
    given = node.attr("class_weights")
    term: Expr = l_ - x
    if smoothing:
        scaled = x - m if given is None else _weigh(node, u, 1.0) * (x - m)
        read_too = [logits, top] if given is None else [logits, top, targets[0]]
        shifted = b.add(
            "map",
            *read_too,
            name=f"{stem}.shifted",
            expr=scaled,
            arguments=("x", "m", "u")[: len(read_too)],
            dtype=real,
        )
        read.append(b.add("row_reduce", shifted, name=f"{stem}.scores", **sums))
        arguments.append("s")
        classes = float(_classes(logits))
        whole: Expr = l_ if given is None else Const(sum(given) / classes) * l_
        uniform = whole - s / Const(classes)
        term = _weigh(node, t, 1.0 - smoothing) * term + Const(smoothing) * uniform
    elif given is not None:
        term = _weigh(node, t, 1.0) * term
    if ignored is not None:
        term = Call("select", (Call("ne", (t, Const(ignored))), term, Const(0.0)))
    return b.add(
        "map", *read, name=f"{stem}.terms", expr=term, arguments=tuple(arguments), dtype=real
    )


def _flops_cross_entropy(node: Node, operands: Values, rows: int) -> int:
    return 14 * elements(operands[0].shape, rows)


OPS.register(
    Op(
        "cross_entropy",
        _infer_cross_entropy,
        _reference_cross_entropy,
        _gradient_cross_entropy,
        _expand_cross_entropy,
        saves=(0, -3, -4),
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
        **_read_weights(context, prediction),
    )
    return results[0], results[1]


def _read_weights(context: LayerContext, prediction: Value) -> dict[str, tuple[float, ...]]:
    """The weights of classes as an attribute, if the spec gives any."""
    given = context.option("class_weights")
    if given is None:
        return {}
    flat = given if isinstance(given, tuple) else ()
    weights = tuple(float(item) for item in flat if isinstance(item, int | float))
    scores = prediction.shape[-1] if prediction.shape else 0
    if len(weights) != scores or len(flat) != len(weights):
        found = f"found {len(flat)}" if len(flat) == len(weights) else "found nested lists"
        raise context.fault(
            BAD_WEIGHTS,
            f"class_weights needs a list of {scores} numbers, one a class, {found}",
            "class_weights",
        )
    if min(weights) < 0 or not max(weights):
        message = "class_weights are at least 0 and not all 0"
        raise context.fault(BAD_WEIGHTS, message, "class_weights")
    if count_runs(weights) > MOST_RUNS:
        message = f"class_weights tells {count_runs(weights)} runs of equal weights apart"
        help = f"at most {MOST_RUNS} are possible; round them to fewer values"
        raise context.fault(BAD_WEIGHTS, message, "class_weights", help)
    return {"class_weights": weights}


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
            Option("class_weights", "numbers", None, help="how much the rows of each class count"),
        ),
        shorthand="label_smoothing",
        help="softmax and cross-entropy of scores against class numbers",
    ),
    _build_cross_entropy,
)

# -- sums of element-wise terms -------------------------------------------------------------------


_SCALE = Option("scale", "float", 1.0, help="factor of every term")
_POSITIVE = Option("pos_weight", "float", 1.0, minimum=0.0, help="factor of the part of target 1")


def _register_terms(
    name: str,
    term: Callable[[LayerContext], Expr],
    help: str,
    options: tuple[Option, ...] = (_SCALE,),
) -> None:
    """A loss that adds `term`, in x and t, over all elements, times the option `scale`."""

    def build(context: LayerContext, prediction: Value, target: Value) -> tuple[Value, Value]:
        b = context.builder
        if prediction.shape != target.shape:
            raise ShapeFault(
                f"{name} compares equal shapes, found {format_shape(prediction.shape)} against "
                f"the target's {format_shape(target.shape)}",
                help="make the last layer's output as large as the target",
            )
        scale = float(context.option("scale"))
        expr = term(context) if scale == 1 else Const(scale) * term(context)
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

    schema = LayerSchema(name, options, shorthand="scale", help=help)
    LOSSES[name] = Loss(schema, build)


def _binary_terms(context: LayerContext) -> Expr:
    """No digit is lost where the score is far from 0: with q = log(1 + exp(-|x|)),

    max(x, 0) - x t + q; with a weight w, (1 - t) x + (1 + (w - 1) t) (q + max(-x, 0)).
    """
    tail, weight = softplus(-absolute(x)), float(context.option("pos_weight"))
    if weight == 1:
        return (maximum(x, 0.0) - x * t) + tail
    share = Const(1.0) + Const(weight - 1) * t
    return (Const(1.0) - t) * x + share * (tail + maximum(-x, 0.0))


_register_terms("mse", lambda _: Call("square", (x - t,)), "mean of the squared differences")
_register_terms("l1", lambda _: Call("abs", (x - t,)), "mean of the absolute differences")
_register_terms(
    "bce_with_logits",
    _binary_terms,
    "binary cross-entropy of scores against targets in [0, 1]",
    (_SCALE, _POSITIVE),
)
