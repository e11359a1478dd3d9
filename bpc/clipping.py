"""Norms of gradients, what is not finite, and the factor that clips each gradient, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bpc.expr import Const, Expr, Var, and_, clip, gt, isfinite, minimum, select, sqrt, square
from bpc.ir import Init, State, Value
from bpc.optimizer import gradient_name
from bpc.parameter_groups import Settings
from bpc.types import F64
from bpc.update_builder import UpdateBuilder

CLIP_EPSILON = 1e-6  # added to the norm before dividing, as PyTorch's clip_grad_norm_ does


def norm_name(parameter: str) -> str:
    """The state that holds a parameter's unscaled gradient norm."""
    return f"norm.{parameter}"


@dataclass(frozen=True, slots=True)
class Clipped:
    """What the rules read of a window's gradients.

    `found` is 1 where the loss or any gradient is not finite. `factors` has one scalar for each
    clip group, and None for the parameters of no group. `limit` bounds each element, if given.
    """

    found: Value
    factors: Mapping[int | None, Value]
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
    numbers overflow nor squares of small ones vanish. The factor is min(1, limit / norm).
    """
    train, unscale = make.spec.train, _build_unscale(make)
    squares = {state.name: _measure(make, state, unscale) for state in parameters}
    total = _add_up(make, list(squares.values()), "squares")
    norm = _root(make, "norm", total, unscale)
    make.write("control.norm", norm)
    sound = and_(isfinite(Var("q")), isfinite(Var("l")))
    loss = make.control("loss")
    found = make.scalar("found", select(sound, 0, 1), "i64", q=total, l=loss)
    make.write("control.found_inf", found)
    factors: dict[int | None, Value] = {}
    for key in dict.fromkeys(settings[state.name].clip for state in parameters):
        limit = train.clip if key is None else train.clip_groups[key].norm
        name = "factor" if key is None else f"factor.group{key + 1}"
        if limit is None:
            factors[key] = make.scalar(name, Var("u"), make.real, u=unscale)
            continue
        of_key = [squares[name] for name in squares if settings[name].clip == key]
        mine = norm
        if len(of_key) < len(squares):
            mine = _root(make, f"{name}.norm", _add_up(make, of_key, f"{name}.squares"), unscale)
        share = minimum(Const(1.0), Const(limit) / (Var("n") + Const(CLIP_EPSILON)))
        factors[key] = make.scalar(name, Var("u") * share, make.real, u=unscale, n=mine)
    return Clipped(found, factors, train.clip_value)


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
    norm = _root(make, f"norm2.{name}", part, unscale)
    make.b = b
    metric = make.declare(norm_name(name), unscale, "metric", F64, Init("zeros"))
    make.write(metric.name, norm)
    return part


def _root(make: UpdateBuilder, name: str, squares: Value, unscale: Value) -> Value:
    return make.scalar(name, sqrt(Var("q")) * Var("u"), q=squares, u=unscale)


def _add_up(make: UpdateBuilder, parts: Sequence[Value], name: str) -> Value:
    assert parts, "a network without parameters has no update"
    total = parts[0]
    for part in parts[1:]:
        total = make.b.add("add", total, part, name=name)
    return total
