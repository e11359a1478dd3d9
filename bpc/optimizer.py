"""Optimizers: how a gradient, already clipped and unscaled by a factor, moves one parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bpc.expr import Const, Expr, Var, select, sqrt, square, walk
from bpc.ir import Builder, Init, State, Value
from bpc.spec.model import Spec
from bpc.types import DType, LayerSchema, Option, compute_type

_LR = Option("lr", "float", None, minimum=0.0, help="learning rate; `train.lr` is the same")
_DECAY = Option("weight_decay", "float", 0.0, minimum=0.0, help="times w, added to the gradient")
_BETAS = (
    Option("beta1", "float", 0.9, minimum=0.0, maximum=1.0, help="share kept of the mean of g"),
    Option("beta2", "float", 0.999, minimum=0.0, maximum=1.0, help="the same of g squared"),
    Option("eps", "float", 1e-8, minimum=0.0, help="added to the root after bias correction"),
)
OPTIMIZERS: Mapping[str, LayerSchema] = {
    "sgd": LayerSchema(
        "sgd",
        (
            _LR,
            Option("momentum", "float", 0.0, minimum=0.0, help="share kept of the last move"),
            _DECAY,
        ),
        shorthand="lr",
    ),
    "adam": LayerSchema("adam", (_LR, *_BETAS, _DECAY), shorthand="lr"),
    "adamw": LayerSchema(
        "adamw",
        (_LR, *_BETAS, replace(_DECAY, default=0.01, help="of matrices; times lr w, beside Adam")),
        shorthand="lr",
    ),
}


def gradient_name(parameter: str) -> str:
    """The state that holds a parameter's gradient between `micro_step` and `update`."""
    return f"grad.{parameter}"


def master_name(parameter: str, storage: DType) -> str:
    """The full-precision copy of a parameter: itself, unless it is stored in 16 bits."""
    return f"master.{parameter}" if storage.bits < 32 else parameter


@dataclass(slots=True)
class UpdateBuilder:
    """Builds the update graph; scalars are f64, tensors keep their type."""

    spec: Spec
    b: Builder
    real: str
    states: list[State]
    updates: list[tuple[str, str]] = field(default_factory=list)

    def scalar(self, name: str, expr: Expr, dtype: str = "f64", **operands: Value) -> Value:
        """A scalar from scalars."""
        names = tuple(operands)
        values = operands.values()
        return self.b.add("map", *values, name=name, expr=expr, arguments=names, dtype=dtype)

    def control(self, name: str) -> Value:
        """The control value at entry."""
        return self.b.values[f"control.{name}"]

    def write(self, state: str, value: Value) -> None:
        """Make `value` the next version of a state."""
        self.updates.append((state, value.name))

    def declare(self, name: str, like: Value, kind: str, dtype: DType, init: Init) -> Value:
        """A further state of the shape of `like`."""
        value = self.b.declare(Value(name, dtype, like.shape))
        self.states.append(State(value, kind, init, self.b.span))
        return value


def step_parameter(
    make: UpdateBuilder,
    state: State,
    storage: DType,
    found: Value,
    factor: Value,
    rates: dict[str, Value],
) -> None:
    """New master weight, moments and low-precision copy of one parameter."""
    g = make.b.values[gradient_name(state.name)]
    master = make.b.values[state.name]
    if storage.bits < 32:
        name = master_name(state.name, storage)
        master = make.declare(name, state.value, "master", compute_type(storage), state.init)
    rule = _sgd if make.spec.train.optimizer.kind == "sgd" else _adam
    moved = rule(make, state, master, g, factor, found, rates)
    make.write(master.name, moved)
    if storage.bits < 32:
        rounded = make.b.add(
            "map",
            moved,
            name=f"next.{state.name}",
            expr=Var("w"),
            arguments=("w",),
            dtype=storage.name,
        )
        make.write(state.name, rounded)


def _tensor(make: UpdateBuilder, name: str, expr: Expr, **operands: Value) -> Value:
    """A map over the elements of a parameter; constants come from the optimizer's line."""
    names = tuple(operands)
    values = operands.values()
    constants = any(isinstance(part, Const) for part in walk(expr))
    here = replace(make.b, span=make.spec.train.optimizer.span) if constants else make.b
    return here.add("map", *values, name=name, expr=expr, arguments=names, dtype=make.real)


def _decays(state: State) -> bool:
    """Decoupled decay leaves vectors alone: biases, and scales and shifts of norms."""
    return len(state.value.shape) > 1


def _sgd(
    make: UpdateBuilder,
    state: State,
    master: Value,
    g: Value,
    factor: Value,
    found: Value,
    rates: dict[str, Value],
) -> Value:
    """w - lr (momentum * buffer + g)."""
    options = make.spec.train.optimizer.options
    momentum, decay = float(str(options["momentum"])), float(str(options["weight_decay"]))
    grad: Expr = Var("g") * Var("k")
    if decay:
        grad = grad + decay * Var("w")
    lr = _cast(make, "lr.rate", Var("lr"), lr=rates["lr"])
    operands = {"w": master, "g": g, "k": factor, "f": found}
    if not momentum:
        stepped = select(Var("f"), Var("w"), Var("w") - Var("lr") * grad)
        return _tensor(make, f"next.{master.name}", stepped, **operands, lr=lr)
    real = master.dtype
    buffer = make.declare(f"momentum.{state.name}", master, "moment", real, Init("zeros"))
    kept = select(Var("f"), Var("m"), momentum * Var("m") + grad)
    used = operands if decay else {key: operands[key] for key in ("g", "k", "f")}
    moved = _tensor(make, f"next.{buffer.name}", kept, **used, m=buffer)
    make.write(buffer.name, moved)
    stepped = select(Var("f"), Var("w"), Var("w") - Var("lr") * Var("m"))
    return _tensor(make, f"next.{master.name}", stepped, w=master, f=found, lr=lr, m=moved)


def _cast(make: UpdateBuilder, name: str, expr: Expr, **operands: Value) -> Value:
    """A scalar in the type that tensors compute in; made once."""
    known = make.b.values.get(name)
    here = make.b
    make.b = replace(here, span=make.spec.train.optimizer.span, scope="update", role="control")
    if known is None:
        # 1 - beta^t cancels: computed in f64, rounded once.
        exact = make.scalar(f"{name}.exact", expr, "f64", **operands)
        known = make.scalar(name, Var("x"), make.real, x=exact)
    make.b = here
    return known


def _adam(
    make: UpdateBuilder,
    state: State,
    master: Value,
    g: Value,
    factor: Value,
    found: Value,
    rates: dict[str, Value],
) -> Value:
    """Adam, with decay decoupled from the gradient for adamw.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    w = w (1 - lr decay) - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps).

    Source: Kingma and Ba 2014 (arXiv:1412.6980); Loshchilov and Hutter 2017 (arXiv:1711.05101).
    """
    options = make.spec.train.optimizer.options
    beta1, beta2, eps, decay = (
        float(str(options[key])) for key in ("beta1", "beta2", "eps", "weight_decay")
    )
    decoupled = make.spec.train.optimizer.kind == "adamw"
    real = master.dtype
    moment = make.declare(f"m.{state.name}", master, "moment", real, Init("zeros"))
    second = make.declare(f"v.{state.name}", master, "moment", real, Init("zeros"))
    grad: Expr = Var("g") * Var("k")
    operands = {"g": g, "k": factor}
    if decay and not decoupled:
        grad, operands = grad + decay * Var("w"), {**operands, "w": master}
    gradient = _tensor(make, f"clipped.{state.name}", grad, **operands)
    mean = beta1 * Var("m") + (1 - beta1) * Var("g")
    moved = _tensor(
        make, f"next.{moment.name}", select(Var("f"), Var("m"), mean), m=moment, g=gradient, f=found
    )
    variance = beta2 * Var("v") + (1 - beta2) * square(Var("g"))
    spread = _tensor(
        make,
        f"next.{second.name}",
        select(Var("f"), Var("v"), variance),
        v=second,
        g=gradient,
        f=found,
    )
    make.write(moment.name, moved)
    make.write(second.name, spread)
    t = rates["t"]
    step = _cast(
        make, "step.size", Var("lr") / (1 - Const(beta1) ** Var("t")), lr=rates["lr"], t=t
    )
    root = _cast(make, "root.size", 1 / sqrt(1 - Const(beta2) ** Var("t")), t=t)
    weight: Expr = Var("w")
    operands = {"w": master, "m": moved, "v": spread, "s": step, "r": root, "f": found}
    if decay and decoupled and _decays(state):
        kept = _cast(make, "decay.kept", 1 - Var("lr") * decay, lr=rates["lr"])
        weight, operands = Var("w") * Var("d"), {**operands, "d": kept}
    change = Var("s") * Var("m") / (sqrt(Var("v")) * Var("r") + eps)
    stepped = select(Var("f"), Var("w"), weight - change)
    return _tensor(make, f"next.{master.name}", stepped, **operands)

