"""The learning rate of an update: warmup and schedule as nodes, and rates of groups from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi

from bpc.clipping import Clipped
from bpc.expr import (
    Const,
    Expr,
    Var,
    clip,
    cos,
    floor,
    ge,
    maximum,
    minimum,
    power,
    select,
    sqrt,
    variables,
)
from bpc.ir import Value
from bpc.parameter_groups import Rate, Settings
from bpc.spec.model import ScheduleSpec
from bpc.update_builder import UpdateBuilder

_T, _WARMUP, _TOTAL, _FINAL = Var("t"), Var("warmup"), Var("total"), Var("final")
_MADE = _T - 1  # updates that were made before this one


def schedule_share(schedule: ScheduleSpec) -> Expr:
    """The share of the base rate that update `t`, counted from 1, uses.

    Of `warmup`, `total` and `final` it reads what it needs. The rate rises over `warmup` updates.
    After that `cosine` and `linear` fall to `final` over what is left of `total`; `step` counts
    updates from the start of the run, as `inverse_sqrt` does.

    Sources: cosine, Loshchilov and Hutter 2016 (arXiv:1608.03983); inverse square root, Vaswani et
    al. 2017 (arXiv:1706.03762).
    """
    warm = minimum(Const(1.0), _T / maximum(_WARMUP, 1))
    if schedule.kind == "constant":
        return warm
    return warm * _SHARES[schedule.kind](schedule)


def _progress() -> Expr:
    return clip((_MADE - _WARMUP) / maximum(_TOTAL - _WARMUP, 1), 0, 1)


def _cosine(schedule: ScheduleSpec) -> Expr:
    wave = Const(0.5) * (1 + cos(Const(pi) * _progress()))
    return _FINAL + (1 - _FINAL) * wave


def _linear(schedule: ScheduleSpec) -> Expr:
    return 1 - (1 - _FINAL) * _progress()


def _step(schedule: ScheduleSpec) -> Expr:
    """factor^k for k steps so far: one `every` so many updates, or one at each milestone."""
    options = schedule.options
    factor = float(str(options["factor"]))
    every = options.get("every")
    if isinstance(every, int):
        return power(Const(factor), floor(_MADE / every))
    given = options["milestones"]
    share: Expr = Const(1.0)
    for k, milestone in enumerate(given if isinstance(given, tuple) else (given,), 1):
        assert isinstance(milestone, int), "one of every and milestones is given"
        share = select(ge(_MADE, milestone), factor**k, share)
    return share


def _inverse_sqrt(schedule: ScheduleSpec) -> Expr:
    start = maximum(_WARMUP, 1)
    return sqrt(start / maximum(_T, start))


_SHARES = {
    "cosine": _cosine,
    "linear": _linear,
    "step": _step,
    "inverse_sqrt": _inverse_sqrt,
}


def build_rates(
    make: UpdateBuilder, clipped: Clipped, settings: Sequence[Settings]
) -> tuple[Mapping[Rate, Value], Value]:
    """The rate of this update for each kind of group, in f64, and the number of the update.

    Writes the rate of the run and the next values of the counters, which a window that is not
    finite leaves as they are; the number of the window moves unless it is held.
    """
    t, updates = Var("t"), make.control("updates")
    number = make.scalar("update.number", t + 1, "i64", t=updates)
    share = schedule_share(make.spec.train.schedule)
    lr = _scale_rate(make, "lr", Var("base_lr") * share, number)
    make.write("control.lr", lr)
    kept = select(Var("f"), Var("t"), Var("n"))
    found = clipped.found
    make.write("control.updates", make.scalar("updates", kept, "i64", f=found, t=updates, n=number))
    tried = select(Var("h"), Var("w"), Var("w") + 1)
    window = make.scalar("window", tried, "i64", h=clipped.held, w=make.control("window"))
    make.write("control.window", window)
    rates: dict[Rate, Value] = {(None, 1.0): lr}
    for own, factor in dict.fromkeys(item.rate for item in settings):
        if (own, factor) in rates:
            continue
        name = f"lr.group{len(rates)}"
        if own is None:
            rates[own, factor] = make.scalar(name, Var("lr") * factor, lr=lr)
        else:
            rates[own, factor] = _scale_rate(make, name, Const(own) * share, number)
    return rates, number


def _scale_rate(make: UpdateBuilder, name: str, expr: Expr, number: Value) -> Value:
    """A rate from the control values that its formula names."""
    known = {key: make.control(key) for key in ("base_lr", "warmup", "total", "final")}
    used = {key: value for key, value in known.items() if key in variables(expr)}
    return make.scalar(name, expr, "f64", t=number, **used)
