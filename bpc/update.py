"""The two training graphs: `micro_step` (loss and gradients) and `update` (clip, scale, step).

Everything that moves a number is a node: schedule, unscaling, norm, clipping, the check for
inf and NaN, moments, weights and their low-precision copies. A window whose gradients are not
finite is skipped whole: neither weights nor moments nor counters of updates move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import pi
from typing import Any

from bpc.autodiff import differentiate
from bpc.expr import (
    Const,
    Expr,
    Var,
    and_,
    clip,
    cos,
    ge,
    gt,
    isfinite,
    maximum,
    minimum,
    select,
    sqrt,
    square,
)
from bpc.ir import Builder, Graph, Init, State, Value, retain, verify
from bpc.ops import OPS
from bpc.optimizer import UpdateBuilder, gradient_name, step_parameter
from bpc.spec.model import Spec
from bpc.types import F64, I64, PRECISIONS, DType, compute_type

CLIP_EPSILON = 1e-6  # added to the norm before dividing, as PyTorch's clip_grad_norm_ does

REAL_CONTROL = ("scale", "divisor", "base_lr", "warmup", "total", "final", "lr", "norm")
WHOLE_CONTROL = ("seed", "window", "first_row", "updates", "good", "found_inf")

def control_states(spec: Spec) -> tuple[State, ...]:
    """The control block: scalars that a call reads and the next one may find changed."""

    def scalars(names: Sequence[str], dtype: DType) -> list[State]:
        values = (Value(f"control.{name}", dtype, ()) for name in names)
        return [State(value, "control", _zero(), spec.span) for value in values]

    sums = scalars(("loss", "weight"), F64)
    return (*scalars(REAL_CONTROL, F64), *scalars(WHOLE_CONTROL, I64), *sums)


def _zero() -> Init:
    return Init("zeros")


def norm_name(parameter: str) -> str:
    """The state that holds a parameter's unscaled gradient norm."""
    return f"norm.{parameter}"


def parameters_of(graph: Graph) -> tuple[State, ...]:
    """The trained tensors of a graph, in the order in which the spec made them."""
    return tuple(state for state in graph.states if state.kind == "parameter")


# -- loss and gradients ---------------------------------------------------------------------------


def build_micro_step(forward: Graph, spec: Spec, add: bool = False) -> Graph:
    """The forward graph with the gradients of all parameters.

    The loss is a sum; its gradient starts from scale / divisor, where the divisor is the number
    of terms that the window will have, so that no gradient waits for the last micro-batch.

    Args:
        forward: a training graph with outputs loss and weight.
        spec: the spec it came from.
        add: add to the gradients, loss and weight that are there, instead of replacing them.
    """
    parameters = parameters_of(forward)
    storage = PRECISIONS[spec.train.precision]
    graph = _with_states(forward, spec, parameters, storage)
    loss, weight = forward.output("loss"), forward.output("weight")
    b = Builder.on(OPS, graph, spec.loss.span)
    b.scope, b.phase = "loss", "backward"
    scale, divisor = (b.values[f"control.{name}"] for name in ("scale", "divisor"))
    real = compute_type(storage).name
    ratio = Var("scale") / Var("divisor")
    seed = b.add(
        "map",
        scale,
        divisor,
        name="loss.seed",
        expr=ratio,
        arguments=("scale", "divisor"),
        dtype=real,
    )
    outputs = (*graph.outputs, ("seed", seed.name))
    seeded = replace(graph, nodes=(*graph.nodes, b.nodes[-1]), outputs=outputs)
    done = differentiate(seeded, {loss: seed.name}, [state.name for state in parameters])
    joint = replace(done.graph, outputs=graph.outputs[:1])
    return _finish_micro_step(joint, spec, parameters, done.gradients, (loss, weight), add)


def _with_states(
    forward: Graph, spec: Spec, parameters: Sequence[State], storage: DType
) -> Graph:
    """The graph with the whole control block and one gradient state per parameter."""
    control = control_states(spec)
    names = {state.name for state in control}
    others = [state for state in forward.states if state.name not in names]
    gradients = [
        State(
            Value(gradient_name(state.name), state.value.dtype, state.value.shape),
            "gradient",
            _zero(),
            state.span,
        )
        for state in parameters
    ]
    return replace(forward, states=(*others, *control, *gradients))


def _finish_micro_step(
    graph: Graph,
    spec: Spec,
    parameters: Sequence[State],
    gradients: Mapping[str, str | None],
    sums: tuple[str, str],
    add: bool,
) -> Graph:
    b = Builder.on(OPS, graph, spec.loss.span)
    updates: list[tuple[str, str]] = []
    for state in parameters:
        here = replace(b, span=state.span, scope=state.name.rsplit(".", 1)[0], phase="backward")
        target = here.values[gradient_name(state.name)]
        made = gradients[state.name]
        value = here.values[made] if made else _zeros(here, target)
        if add:
            value = here.add("add", target, value, name=f"sum_{state.name}")
        elif any(value.name == other for _, other in updates):
            value = _copy(here, value)
        updates.append((target.name, value.name))
    for name, made in zip(("loss", "weight"), sums, strict=True):
        state_value, value = b.values[f"control.{name}"], b.values[made]
        if add:
            value = b.add("add", state_value, value, name=f"sum_{name}")
        updates.append((state_value.name, value.name))
    joint = replace(graph, name="micro_step", nodes=tuple(b.nodes), updates=tuple(updates))
    return verify(retain(replace(joint, outputs=())), OPS)


def _zeros(b: Builder, like: Value) -> Value:
    """A parameter that the loss does not depend on has gradient zero."""
    attrs: dict[str, Any] = {"dtype": like.dtype.name, "shape": like.shape}
    return b.add("map", name=f"d_{like.name}", expr=Const(0.0), arguments=(), **attrs)


def _copy(b: Builder, value: Value) -> Value:
    return b.add("map", value, name=value.name, expr=Var("x"), arguments=("x",))


# -- clip, scale, step ----------------------------------------------------------------------------


def build_update(forward: Graph, spec: Spec) -> Graph:
    """The graph that turns accumulated gradients into new weights, once per window."""
    storage = PRECISIONS[spec.train.precision]
    parameters = parameters_of(forward)
    base = _with_states(forward, spec, parameters, storage)
    kept = [state for state in base.states if state.kind != "buffer"]
    span = spec.train.optimizer.span
    b = Builder(OPS, span, scope="update", phase="update", role="control")
    for state in kept:
        b.declare(state.value)
    real = compute_type(storage)
    make = UpdateBuilder(spec, b, real.name, list(kept))
    found, factor = _norm_and_clip(make, parameters)
    rates = _schedule(make, found)
    if spec.train.precision == "fp16":
        _scale(make, found)
    for state in parameters:
        make.b = replace(b, span=state.span, scope=state.name, role=spec.train.optimizer.kind)
        step_parameter(make, state, storage, found, factor, rates)
    graph = Graph("update", (), tuple(make.states), tuple(b.nodes), (), tuple(make.updates))
    return verify(retain(graph), OPS)


def _norm_and_clip(make: UpdateBuilder, parameters: Sequence[State]) -> tuple[Value, Value]:
    """(found, factor): 1 where the loss or any gradient is not finite; the gradients' factor.

    The norm is that of the unscaled gradients, summed in f64, so that neither squares of large
    numbers overflow nor squares of small ones vanish. Clipping: factor min(1, clip / norm).
    """
    b = make.b
    weight, scale, divisor = (make.control(name) for name in ("weight", "scale", "divisor"))
    unscale = make.scalar(
        "unscale",
        select(gt(Var("w"), 0), Var("d") / (Var("w") * Var("s")), 0),
        d=divisor,
        w=weight,
        s=scale,
    )
    total: Value | None = None
    for state in parameters:
        g = b.values[gradient_name(state.name)]
        here = replace(b, span=state.span, scope=state.name, role="norm")
        squares = here.add(
            "map",
            g,
            name=f"square.{state.name}",
            expr=square(Var("g")),
            arguments=("g",),
            dtype="f64",
        )
        axes = tuple(range(len(g.shape)))
        part = here.add("sum", squares, name=f"squares.{state.name}", axes=axes, dtype="f64")
        norm = here.add(
            "map",
            part,
            unscale,
            name=f"grad_norm.{state.name}",
            expr=sqrt(Var("q")) * Var("u"),
            arguments=("q", "u"),
            dtype="f64",
        )
        metric = make.declare(norm_name(state.name), unscale, "metric", F64, _zero())
        make.write(metric.name, norm)
        through = f"squares_through.{state.name}"
        total = part if total is None else b.add("add", total, part, name=through)
    assert total is not None, "a network without parameters has no update"
    norm = make.scalar("norm", sqrt(Var("q")) * Var("u"), q=total, u=unscale)
    make.write("control.norm", norm)
    sound = and_(isfinite(Var("q")), isfinite(Var("l")))
    found = make.scalar("nonfinite", select(sound, 0, 1), "i64", q=total, l=make.control("loss"))
    make.write("control.found_inf", found)
    limit = make.spec.train.clip
    if limit is None:
        factor = make.scalar("factor", Var("u"), make.real, u=unscale)
    else:
        share = minimum(Const(1.0), Const(float(limit)) / (Var("n") + Const(CLIP_EPSILON)))
        factor = make.scalar("factor", Var("u") * share, make.real, u=unscale, n=norm)
    return found, factor


def _schedule(make: UpdateBuilder, found: Value) -> dict[str, Value]:
    """Learning rate of this update, counted from 1, and the next values of the counters."""
    t = Var("t")
    updates = make.control("updates")
    following = make.scalar("update.number", t + 1, "i64", t=updates)
    names = ("base_lr", "warmup", "total", "final")
    values = {name: make.control(name) for name in names}
    warm = minimum(Const(1.0), t / maximum(Var("warmup"), 1))
    share: Expr = warm
    if make.spec.train.schedule.kind == "cosine":
        span = maximum(Var("total") - Var("warmup"), 1)
        progress = clip((t - 1 - Var("warmup")) / span, 0, 1)
        wave = Const(0.5) * (1 + cos(Const(pi) * progress))
        share = warm * (Var("final") + (1 - Var("final")) * wave)
    used = {name: values[name] for name in names if name in ("base_lr", "warmup")}
    if make.spec.train.schedule.kind == "cosine":
        used = values
    lr = make.scalar("lr", Var("base_lr") * share, "f64", t=following, **used)
    make.write("control.lr", lr)
    moved = make.scalar(
        "updates", select(Var("f"), Var("t"), Var("n")), "i64", f=found, t=updates, n=following
    )
    make.write("control.updates", moved)
    window = make.scalar("window", Var("w") + 1, "i64", w=make.control("window"))
    make.write("control.window", window)
    return {"lr": lr, "t": following}


def _scale(make: UpdateBuilder, found: Value) -> None:
    """Dynamic loss scaling: back off after a bad window, grow after enough good ones.

    Source: mixed precision training, Micikevicius et al. 2017 (arXiv:1710.03740).
    """
    settings = make.spec.train.loss_scale
    scale, good = make.control("scale"), make.control("good")
    count = Var("g") + 1
    full = ge(count, settings.growth_interval)
    grown = select(full, Var("s") * settings.growth, Var("s"))
    following = select(Var("f"), Var("s") * settings.backoff, grown)
    make.write("control.scale", make.scalar("scale", following, f=found, s=scale, g=good))
    kept = select(Var("f"), 0, select(full, 0, count))
    make.write("control.good", make.scalar("good", kept, "i64", f=found, g=good))


