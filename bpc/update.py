"""The two training graphs: `micro_step` (loss and gradients) and `update` (clip, scale, step).

Everything that moves a number is a node: schedule, unscaling, norm, clipping, the check for
inf and NaN, moments, weights and their low-precision copies. A window whose gradients are not
finite is skipped whole: neither weights nor moments nor counters of updates move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bpc.autodiff import differentiate
from bpc.clipping import Clipped, build_clipping
from bpc.expr import Const, Expr, Var, ge, maximum, select
from bpc.ir import Builder, Graph, Init, State, Value, retain, verify
from bpc.learning_rate import build_rates
from bpc.ops import OPS
from bpc.optimizer import gradient_name
from bpc.optimizer_rules import Step, declare_master, step_parameter
from bpc.parameter_groups import assign_settings
from bpc.spec.model import Spec
from bpc.types import F64, I64, PRECISIONS, DType, compute_type
from bpc.update_builder import UpdateBuilder
from bpc.widen import widen_results

REAL_CONTROL = ("scale", "divisor", "base_lr", "warmup", "total", "final", "lr", "norm")
WHOLE_CONTROL = ("seed", "window", "first_row", "updates", "good", "found_inf", "late")


def control_states(spec: Spec) -> tuple[State, ...]:
    """The control block: scalars that a call reads and the next one may find changed."""

    def scalars(names: Sequence[str], dtype: DType) -> list[State]:
        values = (Value(f"control.{name}", dtype, ()) for name in names)
        return [State(value, "control", _zero(), spec.span) for value in values]

    sums = scalars(("loss", "weight"), F64)
    return (*scalars(REAL_CONTROL, F64), *scalars(WHOLE_CONTROL, I64), *sums)


def _zero() -> Init:
    return Init("zeros")


def parameters_of(graph: Graph) -> tuple[State, ...]:
    """The trained tensors of a graph, in the order in which the spec made them."""
    return tuple(state for state in graph.states if state.kind == "parameter")


def gradient_type(spec: Spec, state: State) -> DType:
    """What a parameter's gradient is kept in: the type of the parameter, or at least f32."""
    stored = state.value.dtype
    return compute_type(stored) if spec.train.gradients == "fp32" else stored


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
    graph = _with_states(forward, spec, parameters)
    loss, weight = forward.output("loss"), forward.output("weight")
    b = Builder.on(OPS, graph, spec.loss.span)
    b.scope, b.phase = "loss", "backward"
    scale, divisor = (b.values[f"control.{name}"] for name in ("scale", "divisor"))
    real = compute_type(PRECISIONS[spec.train.precision]).name
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
    wanted = {
        made: gradient_type(spec, state)
        for state in parameters
        if (made := done.gradients[state.name])
    }
    joint = widen_results(joint, wanted)
    return _finish_micro_step(joint, spec, parameters, done.gradients, (loss, weight), add)


def _with_states(forward: Graph, spec: Spec, parameters: Sequence[State]) -> Graph:
    """The graph with the whole control block and one gradient state per parameter."""
    control = control_states(spec)
    names = {state.name for state in control}
    others = [state for state in forward.states if state.name not in names]
    gradients = [
        State(
            Value(gradient_name(state.name), gradient_type(spec, state), state.value.shape),
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
        elif any(value.name == other for _, other in updates) or value.dtype != target.dtype:
            value = _copy(here, value, target.dtype)
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


def _copy(b: Builder, value: Value, dtype: DType) -> Value:
    named = {"expr": Var("x"), "arguments": ("x",), "dtype": dtype.name}
    return b.add("map", value, name=value.name, **named)


# -- clip, scale, step ----------------------------------------------------------------------------


def build_update(forward: Graph, spec: Spec) -> Graph:
    """The graph that turns accumulated gradients into new weights, once per window."""
    parameters = parameters_of(forward)
    settings = assign_settings(spec, parameters)
    base = _with_states(forward, spec, parameters)
    kept = [state for state in base.states if state.kind != "buffer"]
    span = spec.train.optimizer.span
    b = Builder(OPS, span, scope="update", phase="update", role="control")
    for state in kept:
        b.declare(state.value)
    real = compute_type(PRECISIONS[spec.train.precision])
    make = UpdateBuilder(spec, b, real.name, list(kept))
    clipped = build_clipping(make, parameters, settings)
    rates, number = build_rates(make, clipped, list(settings.values()))
    if spec.scales_loss:
        _scale(make, clipped)
    labels = {rate: f".group{k}" if k else "" for k, rate in enumerate(rates)}
    for state in parameters:
        own = settings[state.name]
        make.b = replace(b, span=state.span, scope=state.name, role=spec.train.optimizer.kind)
        master, rate = declare_master(make, state), rates[own.rate]
        step_parameter(Step(make, state, master, clipped, own, rate, number, labels[own.rate]))
    graph = Graph("update", (), tuple(make.states), tuple(b.nodes), (), tuple(make.updates))
    return verify(retain(graph), OPS)


def _scale(make: UpdateBuilder, clipped: Clipped) -> None:
    """Dynamic loss scaling: back off after a bad window, grow after enough good ones.

    Source: mixed precision training, Micikevicius et al. 2017 (arXiv:1710.03740).
    """
    settings = make.spec.train.loss_scale
    found, held = clipped.found, clipped.held
    scale, good = make.control("scale"), make.control("good")
    count = Var("g") + 1
    full = ge(count, settings.growth_interval)
    grown = select(full, Var("s") * settings.growth, Var("s"))
    reduced: Expr = Var("s") * settings.backoff
    if make.spec.train.nonfinite == "skip":  # else the run stops there
        reduced = maximum(reduced, settings.floor)
    moved = select(Var("h"), Var("s"), select(Var("f"), reduced, grown))
    make.write("control.scale", make.scalar("scale", moved, h=held, f=found, s=scale, g=good))
    counted = select(Var("f"), 0, select(full, 0, count))  # which a step run again leaves at 0, too
    make.write("control.good", make.scalar("good", counted, "i64", f=found, g=good))
