"""Norms of gradients, what is not finite, and the factor that clips each gradient, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bpc.expr import (
    Const,
    Expr,
    Var,
    and_,
    clip,
    gt,
    isfinite,
    minimum,
    select,
    sqrt,
    square,
)
from bpc.ir import Init, State, Value
from bpc.optimizer import gradient_name
from bpc.parameter_groups import Settings
from bpc.types import F64, DType, compute_type
from bpc.update_builder import UpdateBuilder


def norm_name(parameter: str) -> str:
    """The state that holds a parameter's unscaled gradient norm."""
    return f"norm.{parameter}"


@dataclass(frozen=True, slots=True)
class Clipped:
    """What the rules read of a window's gradients.

    `found` is 1 where the loss or any gradient is not finite, so that weights stay; `held` is 1
    where counters and scale stay, too. `factors` has one scalar for each clip group (None for the
    parameters of no group) and each type that its parameters are moved in. `limit` bounds each
    element, if given.
    """

    found: Value
    held: Value
    factors: Mapping[tuple[int | None, DType], Value]
    limit: float | None

    def gradient(self) -> Expr:
        """The unscaled and clipped gradient of `g` and the factor `k`."""
        scaled = Var("g") * Var("k")
        return scaled if self.limit is None else clip(scaled, -self.limit, self.limit)


def build_clipping(
    make: UpdateBuilder, parameters: Sequence[State], settings: Mapping[str, Settings]
) -> Clipped:
    """Norms, the check for inf and NaN, and the factors.

    A norm is that of the unscaled gradients, summed in f64, so that neither squares of large
    numbers overflow nor squares of small ones vanish. A group's share is min(1, limit / norm);
    then the norm of all that is left is measured for the limit of all, which multiplies each.
    """
    train, unscale = make.spec.train, _build_unscale(make)
    squares = {state.name: _measure(make, state, unscale) for state in parameters}
    total = _add_up(make, squares, "squares_through")
    norm = _root(make, "norm", total, unscale)
    make.write("control.norm", norm)
    found, held = _check(make, total)
    members: dict[int | None, dict[str, Value]] = {}
    for name, value in squares.items():
        members.setdefault(settings[name].clip, {})[name] = value
    shares: dict[int | None, Value] = {
        key: _clip_group(make, key, parts, unscale)
        for key, parts in members.items()
        if key is not None
    }
    whole = _clip_all(make, members, shares, norm, unscale)
    factors = {}
    for state in parameters:
        key, real = settings[state.name].clip, compute_type(state.value.dtype)
        if (key, real) not in factors:
            factors[key, real] = _factor(make, key, real, unscale, shares.get(key), whole)
    return Clipped(found, held, factors, train.clip_value)


def _check(make: UpdateBuilder, squares: Value) -> tuple[Value, Value]:
    """Whether the window is not finite, and whether all of it has to be run again.

    With `control.late`, the host issues a window before it knows of the last one. From a window
    on that is not finite, weights, moments, counters and scale then stay, and `found_inf` stays 1,
    until the host has seen that and runs the first of these windows again with both at 0.
    """
    loss, weight = make.control("loss"), make.control("weight")
    mean = Var("l") / select(gt(Var("w"), 0), Var("w"), 1)
    sound = and_(isfinite(Var("q")), isfinite(mean))
    now = make.scalar("nonfinite.now", select(sound, 0, 1), "i64", q=squares, l=loss, w=weight)
    late, before = make.control("late"), make.control("found_inf")
    stuck = select(and_(Var("late"), Var("before")), 1, Var("now"))
    found = make.scalar("nonfinite", stuck, "i64", now=now, before=before, late=late)
    make.write("control.found_inf", found)
    held = make.scalar("held", select(Var("late"), Var("f"), 0), "i64", f=found, late=late)
    return found, held


def _clip_group(make: UpdateBuilder, key: int, parts: Mapping[str, Value], unscale: Value) -> Value:
    """The share of its gradients that a group keeps."""
    name = f"factor.group{key + 1}"
    norm = _root(make, f"{name}.norm", _add_up(make, parts, f"{name}.through"), unscale)
    return _limit(make, f"{name}.share", make.spec.train.clip_groups[key].norm, norm)


def _clip_all(
    make: UpdateBuilder,
    members: Mapping[int | None, Mapping[str, Value]],
    shares: Mapping[int | None, Value],
    norm: Value,
    unscale: Value,
) -> Value | None:
    """The share that all gradients keep, measured after the groups' own clipping."""
    limit = make.spec.train.clip
    if limit is None:
        return None
    if shares:
        parts = {}
        for key, values in members.items():
            label = "rest" if key is None else f"group{key + 1}"
            part = _add_up(make, values, f"factor.part.{label}")
            if key in shares:
                clipped = Var("q") * square(Var("s"))
                part = make.scalar(f"factor.part.{label}", clipped, q=part, s=shares[key])
            parts[label] = part
        norm = _root(make, "factor.norm", _add_up(make, parts, "factor.through"), unscale)
    return _limit(make, "factor.share", limit, norm)


def _limit(make: UpdateBuilder, name: str, limit: float, norm: Value) -> Value:
    return make.scalar(name, minimum(Const(1.0), Const(limit) / Var("n")), n=norm)


def _factor(
    make: UpdateBuilder,
    key: int | None,
    real: DType,
    unscale: Value,
    share: Value | None,
    whole: Value | None,
) -> Value:
    """What a stored gradient is multiplied by: 1 / scale and the shares that it keeps."""
    expr: Expr = Var("u")
    operands = {"u": unscale}
    for name, value in (("s", share), ("w", whole)):
        if value is not None:
            expr, operands[name] = expr * Var(name), value
    label = "factor" if key is None else f"factor.group{key + 1}"
    return make.scalar(make.typed(label, real), expr, real.name, **operands)


def _build_unscale(make: UpdateBuilder) -> Value:
    """What turns a stored gradient into that of the mean loss: divisor / (weight scale)."""
    inverse = Var("d") / (Var("w") * Var("s"))
    expr = select(gt(Var("w"), 0), inverse, 0)
    weight, scale, divisor = (make.control(name) for name in ("weight", "scale", "divisor"))
    return make.scalar("unscale", expr, d=divisor, w=weight, s=scale)


def _measure(make: UpdateBuilder, state: State, unscale: Value) -> Value:
    """The sum of a gradient's squares; its unscaled root becomes the parameter's metric."""
    b, g = make.b, make.b.values[gradient_name(state.name)]
    here = replace(b, span=state.span, scope=state.name, role="norm")
    name = state.name
    squares = here.add(
        "map",
        g,
        name=f"square.{name}",
        expr=square(Var("g")),
        arguments=("g",),
        dtype="f64",
    )
    axes = tuple(range(len(g.shape)))
    part = here.add("sum", squares, name=f"squares.{name}", axes=axes, dtype="f64")
    make.b = here
    norm = _root(make, f"grad_norm.{name}", part, unscale)
    make.b = b
    metric = make.declare(norm_name(name), unscale, "metric", F64, Init("zeros"))
    make.write(metric.name, norm)
    return part


def _root(make: UpdateBuilder, name: str, squares: Value, unscale: Value) -> Value:
    return make.scalar(name, sqrt(Var("q")) * Var("u"), q=squares, u=unscale)


def _add_up(make: UpdateBuilder, parts: Mapping[str, Value], stem: str) -> Value:
    """The sum over parameters in their order; each running sum is named by how far it goes."""
    assert parts, "a network without parameters has no update"
    (_, total), *others = parts.items()
    for name, part in others:
        total = make.b.add("add", total, part, name=f"{stem}.{name}")
    return total
