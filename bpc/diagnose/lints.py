"""Lints: what a spec may say, and what is seldom meant. Each is a row of `LINTS`.

A lint is a function from a network to what it found; it fires only where its page in
`docs/lints.md` explains what goes wrong. Codes are BPC07xx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from bpc.data.describe import Description
from bpc.errors import Diagnostic, Note, Span
from bpc.ir import Graph, Init, Node, State
from bpc.lower import lower
from bpc.spec.inits import INITS
from bpc.spec.model import LayerSpec, Spec
from bpc.types import Shape

PAGE = "docs/lints.md"

SOFTMAX_TWICE = "BPC0701"
BIAS_CANCELLED = "BPC0702"
SATURATION = "BPC0703"
INIT_MISMATCH = "BPC0704"
ALL_EQUAL = "BPC0705"
UNSCALED_FP16 = "BPC0707"
NO_WARMUP = "BPC0708"
OUTPUT_SIZE = "BPC0709"
# BPC0706, a relu before batch statistics, waits for batch norm; BPC0710, a learning rate written as
# text, is an error of the loader already.

LARGE_ADAM_RATE, LARGE_SGD_RATE = 1e-2, 1.0
DEEP_SIGMOIDS = 4
GAIN_RANGE = (0.5, 2.0)

_RELUS = ("relu", "leaky_relu", "prelu")
_SQUASHING = ("sigmoid", "tanh")
_VIEWS = ("reshape", "dropout", "stop_gradient")


@dataclass(frozen=True, slots=True)
class Network:
    """What a lint looks at: the spec, its data, and the forward graph in training mode."""

    spec: Spec
    description: Description
    graph: Graph
    makers: Mapping[str, Node] = field(init=False)
    readers: Mapping[str, list[Node]] = field(init=False)
    states: Mapping[str, State] = field(init=False)
    layers: Mapping[str, LayerSpec] = field(init=False)

    def __post_init__(self) -> None:
        states = {state.name: state for state in self.graph.states}
        layers = {layer.full_name: layer for layer in self.spec.layers}
        found = (
            ("makers", self.graph.producers()),
            ("readers", self.graph.consumers()),
            ("states", states),
            ("layers", layers),
        )
        for name, value in found:
            object.__setattr__(self, name, value)

    def weighted(self) -> Iterator[tuple[Node, State]]:
        """Nodes that multiply by a matrix of weights, with that matrix."""
        for node in self.graph.nodes:
            if node.op in ("linear", "matmul", "conv2d") and node.inputs[1] in self.states:
                yield node, self.states[node.inputs[1]]

    def after(self, node: Node) -> Node | None:
        """The one reader of a node's result, views passed over."""
        readers = self.readers.get(node.output.name, [])
        if len(readers) != 1:
            return None
        return self.after(readers[0]) if readers[0].op in _VIEWS else readers[0]

    def before(self, name: str) -> Node | None:
        """What makes a value, views passed over."""
        node = self.makers.get(name)
        while node is not None and node.op in _VIEWS:
            node = self.makers.get(node.inputs[0])
        return node

    def place(self, node: Node, option: str) -> Span:
        """Where an option of a layer is written, else the layer."""
        layer = self.layers.get(node.scope)
        return layer.spans.get(option, layer.span) if layer else node.span


Lint = Callable[[Network], Iterator[Diagnostic]]


def find_lints(spec: Spec, description: Description) -> list[Diagnostic]:
    """Everything that the lints find, in order of place.

    Raises:
        SpecError: the spec has faults; those come first.
    """
    network = Network(spec, description, lower(spec, description, training=True))
    found = [item for lint in LINTS.values() for item in lint(network)]
    return sorted(found, key=_order)


def _order(item: Diagnostic) -> tuple[str, int, int, str]:
    assert item.span is not None
    return item.span.file, item.span.line, item.span.column, item.code


def _warn(
    code: str, message: str, span: Span, help: str, notes: tuple[Note, ...] = ()
) -> Diagnostic:
    page = f"{help}; see {PAGE}#{code.lower()}"
    return Diagnostic(code, message, span, notes, page, "warning")


# -- the loss -------------------------------------------------------------------------------------

_INSIDE = {
    (
        "cross_entropy",
        "softmax",
    ): "makes its own softmax: a second one flattens gradients",
    ("cross_entropy", "log_softmax"): "makes its own log of a softmax: the layer does nothing",
    ("bce_with_logits", "sigmoid"): "has the sigmoid inside: a second one keeps scores in (0, 1)",
}


def _softmax_twice(network: Network) -> Iterator[Diagnostic]:
    loss = network.spec.loss
    last = network.before(network.graph.output("prediction"))
    told = _INSIDE.get((loss.op, last.op)) if last else None
    if told and last:
        message = f"{last.op} '{last.scope}' stands before {loss.op}, which {told}"
        notes = (Note(f"{loss.op} is", loss.span),)
        yield _warn(SOFTMAX_TWICE, message, last.span, f"remove the layer {last.scope}", notes)


def _output_size(network: Network) -> Iterator[Diagnostic]:
    spec, classes = network.spec, network.description.target.classes
    shape = network.graph.values()[network.graph.output("prediction")].shape
    if spec.loss.op != "cross_entropy" or classes is None or shape[-1] == classes:
        return
    last = network.before(network.graph.output("prediction"))
    span = network.place(last, "out") if last else spec.loss.span
    # Fewer scores than classes are an error of lowering already.
    told = "scores without a class learn to lose"
    message = f"the model gives {shape[-1]} scores, the data has {classes} classes: {told}"
    notes = (Note("the data is", spec.data.span),)
    yield _warn(OUTPUT_SIZE, message, span, f"make the last layer {classes} wide", notes)


# -- initialisation -------------------------------------------------------------------------------


def _init_mismatch(network: Network) -> Iterator[Diagnostic]:
    for node, weight in network.weighted():
        after, kind = network.after(node), weight.init.kind
        if after is None or ("gain" in dict(weight.init.options) and _wrote_gain(network, node)):
            continue
        family = kind.split("_")[0]
        if family == "he" and after.op in _SQUASHING:
            told = f"he keeps the variance of a relu; before {after.op} it is twice what suits"
            better = "xavier"
        elif family == "xavier" and after.op in _RELUS:
            told = f"xavier suits what is linear near 0; behind {after.op} signals shrink by half"
            better = "he"
        else:
            continue
        span = network.place(node, "init")
        message = f"{node.op} '{node.scope}' starts with {kind}, but {told}"
        notes = (Note(f"{after.op} is", after.span),)
        yield _warn(INIT_MISMATCH, message, span, f"write init: {better}", notes)


def _wrote_gain(network: Network, node: Node) -> bool:
    """Whether the init has a gain of its own: whoever writes one has thought about it."""
    layer = network.layers.get(node.scope)
    init: Any = layer.options.get("init") if layer else None
    if init is None:
        return False
    default = next(o.default for o in INITS[init.kind].options if o.name == "gain")
    return bool(init.options.get("gain", default) != default)


def _saturation(network: Network) -> Iterator[Diagnostic]:
    """Squashing functions in a row: signals saturate, or gradients die out, layer by layer."""
    stack = [(n, w, a) for n, w in network.weighted() if (a := network.after(n))]
    squashed = [(n, w, a) for n, w, a in stack if a.op in _SQUASHING]
    if len(squashed) >= 2:
        for node, weight, after in squashed:
            gain = _gain(weight.init, weight.value.shape)
            if gain is not None and not GAIN_RANGE[0] <= gain <= GAIN_RANGE[1]:
                yield _saturates(network, node, after, gain, len(squashed))
    sigmoids = [(n, w) for n, w, a in squashed if a.op == "sigmoid"]
    if len(sigmoids) >= DEEP_SIGMOIDS and not _is_normalised(network):
        gains = [_gain(weight.init, weight.value.shape) for _, weight in sigmoids]
        if all(gain is not None and gain < GAIN_RANGE[1] for gain in gains):
            node = sigmoids[0][0]
            message = (
                f"{len(sigmoids)} sigmoids in a row: each passes at most a quarter of a gradient, "
                f"so '{node.scope}' gets at most {0.25 ** len(sigmoids):.0e} of it"
            )
            yield _warn(SATURATION, message, node.span, "use tanh or relu between layers")


def _saturates(network: Network, node: Node, after: Node, gain: float, count: int) -> Diagnostic:
    low = gain < GAIN_RANGE[0]
    told = "signals and gradients fade" if low else f"{after.op} saturates and passes no gradient"
    message = (
        f"{node.op} '{node.scope}' multiplies the spread of its input by {gain:.2g}, and {count} "
        f"layers end in {' or '.join(_SQUASHING)}: {told}"
    )
    return _warn(SATURATION, message, network.place(node, "init"), "write init: xavier")


def _is_normalised(network: Network) -> bool:
    return any(node.op == "layernorm" for node in network.graph.nodes)


def _gain(init: Init, shape: Shape) -> float | None:
    """What a layer multiplies the standard deviation of its input by; None if it is not drawn."""
    options = {**_defaults(init.kind), **dict(init.options)}
    fan_in = init.fan_in or 1
    family = init.kind.split("_")[0]
    if family == "normal":
        return float(options["std"]) * sqrt(fan_in)
    if init.kind == "uniform":
        return float(options["high"] - options["low"]) / sqrt(12) * sqrt(fan_in)
    if family == "he":
        fan = init.fan_out if options.get("mode") == "fan_out" else fan_in
        return float(options["gain"]) * sqrt(fan_in / (fan or fan_in))
    if family == "xavier":
        return float(options["gain"]) * sqrt(2 * fan_in / (fan_in + (init.fan_out or fan_in)))
    return float(options["gain"]) if family == "orthogonal" else None


def _defaults(kind: str) -> dict[str, Any]:
    return {o.name: o.default for o in INITS[kind].options} if kind in INITS else {}


def _all_equal(network: Network) -> Iterator[Diagnostic]:
    """Hidden units that start alike stay alike: they get the same gradient for ever."""
    for node, weight in network.weighted():
        after = network.after(node)
        if not _is_constant(weight.init) or after is None or after.op == "add":
            continue
        if weight.value.shape[-1 if node.op != "conv2d" else 0] == 1:
            continue
        if not _reaches_weights(network, node):
            continue
        message = f"all weights of {node.op} '{node.scope}' start equal, so its units stay alike"
        span = network.place(node, "init")
        yield _warn(ALL_EQUAL, message, span, "write init: he or init: xavier")


def _is_constant(init: Init) -> bool:
    options = {**_defaults(init.kind), **dict(init.options)}
    if init.kind == "values":
        return bool(np.ptp(np.asarray(options["values"], np.float64)) == 0)
    return init.kind in ("zeros", "ones", "constant") or options.get("std") == 0


def _reaches_weights(network: Network, node: Node) -> bool:
    """Whether another layer with weights stands behind this one."""
    reached = {node.output.name}
    for each in network.graph.nodes:
        if not reached.intersection(each.inputs):
            continue
        if each.op in ("linear", "matmul", "conv2d"):
            return True
        reached.update(value.name for value in each.outputs)
    return False


def _bias_cancelled(network: Network) -> Iterator[Diagnostic]:
    """A bias that is the same for all elements that a norm takes the mean of."""
    for node in network.graph.nodes:
        after = network.after(node)
        if node.op not in ("linear", "conv2d") or len(node.inputs) < 3:
            continue
        if after is None or after.op != "layernorm":
            continue
        count = len(network.graph.values()[after.inputs[1]].shape)
        own = len(node.output.shape) - (1 if node.op == "linear" else 3)
        viewed = network.graph.values()[after.inputs[0]].shape != node.output.shape
        if viewed or own >= len(node.output.shape) - count:
            continue
        message = (
            f"the bias of {node.op} '{node.scope}' is constant over what layernorm "
            f"'{after.scope}' takes the mean of, and cancels"
        )
        notes = (Note("layernorm is", after.span),)
        span = network.place(node, "bias")
        yield _warn(BIAS_CANCELLED, message, span, "write bias: false", notes)


# -- training -------------------------------------------------------------------------------------


def _unscaled_fp16(network: Network) -> Iterator[Diagnostic]:
    train = network.spec.train
    adaptive = train.optimizer.kind.startswith("adam")
    if train.precision == "fp16" and adaptive and train.loss_scale.start <= 1:
        span = train.spans.get("loss_scale", train.span)
        message = (
            f"fp16 with a loss scale of {train.loss_scale.start:g}: gradients below 6e-8 become 0, "
            f"and {train.optimizer.kind} divides what is left by its own size"
        )
        yield _warn(UNSCALED_FP16, message, span, "leave loss_scale out, it starts at 65536")


def _no_warmup(network: Network) -> Iterator[Diagnostic]:
    train = network.spec.train
    if train.warmup_steps or train.optimizer.kind not in ("sgd", "adam", "adamw"):
        return
    rate, limit = train.lr, LARGE_ADAM_RATE
    if train.optimizer.kind == "sgd":
        momentum: Any = train.optimizer.options.get("momentum", 0.0)
        rate, limit = train.lr / max(1 - momentum, 1e-9), LARGE_SGD_RATE
    if rate >= limit:
        span = train.spans.get("lr", train.optimizer.span)
        message = f"{train.optimizer.kind} starts at a rate of {train.lr:g} without warmup"
        yield _warn(NO_WARMUP, message, span, "write warmup: {steps: 100}, or a smaller rate")


LINTS: Mapping[str, Lint] = {
    SOFTMAX_TWICE: _softmax_twice,
    BIAS_CANCELLED: _bias_cancelled,
    SATURATION: _saturation,
    INIT_MISMATCH: _init_mismatch,
    ALL_EQUAL: _all_equal,
    UNSCALED_FP16: _unscaled_fp16,
    NO_WARMUP: _no_warmup,
    OUTPUT_SIZE: _output_size,
}
