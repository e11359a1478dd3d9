"""How a gradient, already unscaled and clipped, moves one parameter: a rule for each optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bpc.clipping import Clipped
from bpc.expr import Call, Const, Expr, Var, maximum, select, sqrt, square
from bpc.ir import Init, State, Value
from bpc.optimizer import gradient_name, master_name
from bpc.parameter_groups import Settings
from bpc.types import compute_type
from bpc.update_builder import UpdateBuilder

_F, _G, _LR, _M, _V, _W = (Var(name) for name in ("f", "g", "lr", "m", "v", "w"))


@dataclass(frozen=True, slots=True)
class Step:
    """One parameter that an update moves.

    `master` is the copy that moves: the parameter itself unless it is stored in 16 bits. `rate` is
    its learning rate in f64 and `number` that of the update, from 1. `label` tells scalars of
    groups with other rates apart.
    """

    make: UpdateBuilder
    state: State
    master: Value
    clipped: Clipped
    settings: Settings
    rate: Value
    number: Value
    label: str

    def option(self, name: str) -> float:
        """An option of the optimizer."""
        return float(str(self.make.spec.train.optimizer.options[name]))

    def flag(self, name: str) -> bool:
        """An option that is true or false."""
        return bool(self.make.spec.train.optimizer.options[name])

    def moment(self, prefix: str) -> Value:
        """A state like the parameter that starts at 0."""
        name = f"{prefix}.{self.state.name}"
        return self.make.declare(name, self.master, "moment", self.master.dtype, Init("zeros"))

    def gradient(self, decayed: bool) -> tuple[Expr, dict[str, Value]]:
        """The gradient, with decay added to it if asked, and what the formula reads."""
        factor = self.clipped.factors[self.settings.clip]
        stored = self.make.b.values[gradient_name(self.state.name)]
        expr, operands = self.clipped.gradient(), {"g": stored, "k": factor}
        decay = self.settings.weight_decay
        if decayed and decay:
            return expr + decay * _W, {**operands, "w": self.master}
        return expr, operands

    def gradient_value(self, decayed: bool) -> Value:
        """The gradient as a value that several formulas read."""
        expr, operands = self.gradient(decayed)
        return self.make.tensor(f"clipped.{self.state.name}", expr, self.master.dtype, **operands)

    def keep(self, state: Value, following: Expr, old: str, **operands: Value) -> Value:
        """The next version of a moment: itself, under the name `old`, in a skipped window."""
        expr = select(_F, Var(old), following)
        operands = {old: state, **operands, "f": self.clipped.found}
        made = self.make.tensor(f"next.{state.name}", expr, state.dtype, **operands)
        self.make.write(state.name, made)
        return made

    def move(self, following: Expr, **operands: Value) -> Value:
        """The weight after the step; in a skipped window the old one."""
        operands = {"w": self.master, **operands, "f": self.clipped.found}
        expr = select(_F, _W, following)
        return self.make.tensor(f"next.{self.master.name}", expr, self.master.dtype, **operands)

    def scalar(self, name: str, expr: Expr, **operands: Value) -> Value:
        """A scalar that all parameters with the same rate share."""
        return self.make.rounded(f"{name}{self.label}", expr, **operands)

    def lr(self) -> Value:
        """The rate as tensors use it."""
        return self.scalar("lr.rate", _LR, lr=self.rate)

    def decayed_weight(self) -> tuple[Expr, dict[str, Value]]:
        """The weight less lr decay w, of decay that does not go through the gradient."""
        decay = self.settings.weight_decay
        if not decay:
            return _W, {}
        name = "decay.kept" if decay == self._common() else f"decay{decay:g}.kept"
        kept = self.scalar(name, 1 - _LR * decay, lr=self.rate)
        return _W * Var("d"), {"d": kept}

    def _common(self) -> float:
        return self.option("weight_decay")


def step_parameter(step: Step) -> None:
    """New weight, moments and low-precision copy of one parameter."""
    make, state = step.make, step.state
    moved = _RULES[make.spec.train.optimizer.kind](step)
    make.write(step.master.name, moved)
    if step.master.name != state.name:
        rounded = make.tensor(f"next.{state.name}", _W, state.value.dtype, w=moved)
        make.write(state.name, rounded)


def declare_master(make: UpdateBuilder, state: State) -> Value:
    """What the optimizer moves: the parameter, or its copy where it is stored in 16 bits."""
    storage = state.value.dtype
    if storage.bits >= 32:
        return make.b.values[state.name]
    name = master_name(state.name, storage)
    return make.declare(name, state.value, "master", compute_type(storage), state.init)


def _sgd(step: Step) -> Value:
    """w - lr m with m = momentum m + g; Nesterov's step is g + momentum m.

    Source: Sutskever, Martens, Dahl, Hinton 2013, "On the importance of initialization and
    momentum in deep learning".
    """
    momentum, lr = step.option("momentum"), step.lr()
    if not momentum:
        grad, operands = step.gradient(decayed=True)
        return step.move(_W - _LR * grad, **operands, lr=lr)
    if step.flag("nesterov"):
        g, buffer = step.gradient_value(decayed=True), step.moment("momentum")
        kept = step.keep(buffer, momentum * _M + _G, "m", g=g)
        return step.move(_W - _LR * (_G + momentum * _M), g=g, m=kept, lr=lr)
    grad, operands = step.gradient(decayed=True)
    kept = step.keep(step.moment("momentum"), momentum * _M + grad, "m", **operands)
    return step.move(_W - _LR * _M, m=kept, lr=lr)


def _adam(step: Step) -> Value:
    """Adam, with decay decoupled from the gradient for adamw.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    w = w (1 - lr decay) - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps).

    Source: Kingma and Ba 2014 (arXiv:1412.6980); Loshchilov and Hutter 2017 (arXiv:1711.05101).
    """
    decoupled = step.make.spec.train.optimizer.kind == "adamw"
    beta1, beta2, eps = (step.option(name) for name in ("beta1", "beta2", "eps"))
    first, second = step.moment("m"), step.moment("v")
    g = step.gradient_value(decayed=not decoupled)
    mean = step.keep(first, beta1 * _M + (1 - beta1) * _G, "m", g=g)
    spread = step.keep(second, beta2 * _V + (1 - beta2) * square(_G), "v", g=g)
    t = step.number
    size = step.scalar("step.size", _LR / (1 - Const(beta1) ** Var("t")), lr=step.rate, t=t)
    root = step.make.rounded("root.size", 1 / sqrt(1 - Const(beta2) ** Var("t")), t=t)
    weight, operands = step.decayed_weight() if decoupled else (_W, {})
    change = Var("s") * _M / (sqrt(_V) * Var("r") + eps)
    return step.move(weight - change, m=mean, v=spread, s=size, r=root, **operands)


def _rmsprop(step: Step) -> Value:
    """w - lr g / (sqrt(v) + eps) with v = alpha v + (1 - alpha) g^2.

    Centered: the root is that of v - a^2 with a = alpha a + (1 - alpha) g, at least 0. Momentum: m
    = momentum m + that quotient takes its place.

    Source: Tieleman and Hinton 2012, lecture 6e of "Neural networks for machine learning"; centered
    by Graves 2013 (arXiv:1308.0850).
    """
    alpha, eps, momentum = (step.option(name) for name in ("alpha", "eps", "momentum"))
    square_mean = step.moment("v")
    g, lr = step.gradient_value(decayed=True), step.lr()
    spread = step.keep(square_mean, alpha * _V + (1 - alpha) * square(_G), "v", g=g)
    root: Expr = sqrt(_V)
    operands = {"g": g, "v": spread}
    if step.flag("centered"):
        mean = step.keep(step.moment("a"), alpha * Var("a") + (1 - alpha) * _G, "a", g=g)
        root, operands = sqrt(maximum(_V - square(Var("a")), 0)), {**operands, "a": mean}
    quotient = _G / (root + eps)
    if not momentum:
        return step.move(_W - _LR * quotient, **operands, lr=lr)
    kept = step.keep(step.moment("momentum"), momentum * _M + quotient, "m", **operands)
    return step.move(_W - _LR * _M, m=kept, lr=lr)


def _lion(step: Step) -> Value:
    """w - lr (sign(b1 m + (1 - b1) g) + decay w), then m = b2 m + (1 - b2) g.

    Source: Chen et al. 2023 (arXiv:2302.06675).
    """
    beta1, beta2 = step.option("beta1"), step.option("beta2")
    moment, g, lr = step.moment("m"), step.gradient_value(decayed=False), step.lr()
    change: Expr = Call("sign", (beta1 * _M + (1 - beta1) * _G,))
    if step.settings.weight_decay:
        change = change + step.settings.weight_decay * _W
    moved = step.move(_W - _LR * change, g=g, m=moment, lr=lr)
    step.keep(moment, beta2 * _M + (1 - beta2) * _G, "m", g=g)
    return moved


_RULES: dict[str, Callable[[Step], Value]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adam,
    "rmsprop": _rmsprop,
    "lion": _lion,
}
