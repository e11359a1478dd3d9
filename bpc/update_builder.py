"""What builds the update graph: scalars of the control block, tensors, and further states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bpc.expr import Expr, Var
from bpc.ir import Builder, Init, State, Value
from bpc.spec.model import Spec
from bpc.types import DType


@dataclass(slots=True)
class UpdateBuilder:
    """Builds the update graph; scalars are f64, tensors keep their type.

    `real` is the widest type that any parameter is moved in; rates and factors round to it.
    """

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

    def tensor(self, name: str, expr: Expr, dtype: DType, **operands: Value) -> Value:
        """A map over the elements of a parameter."""
        names = tuple(operands)
        values = operands.values()
        return self.b.add("map", *values, name=name, expr=expr, arguments=names, dtype=dtype.name)

    def rounded(self, name: str, expr: Expr, **operands: Value) -> Value:
        """A scalar computed in f64 and rounded once to the type of the update; made once a name.

        1 - beta^t cancels: nothing of it may be rounded to f32 before the end.
        """
        known = self.b.values.get(name)
        if known is not None:
            return known
        here = self.b
        span = self.spec.train.optimizer.span
        self.b = replace(here, span=span, scope="update", role="control")
        exact = self.scalar(f"{name}.exact", expr, "f64", **operands)
        made = self.scalar(name, Var("x"), self.real, x=exact)
        self.b = here
        return made

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
