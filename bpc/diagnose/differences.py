"""Slopes of a loss by differences: the forward graph in float64, and no backward node.

A slope is wanted with its own error, and where the loss has a kink there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from bpc.ir import Graph, Node
from bpc.runtime.device import Array
from bpc.runtime.reference import run_graph, run_node

STEPS = (1e-5, 1e-3, 1e-4, 6e-7)
"""Distances that are tried in turn. The first crosses few kinks; the second has the least rounding;
the last gets between a point and a kink beside it."""

_UNIT = 2.0**-52
_ROUNDINGS = 16.0  # of one unit each, in the last sums of a loss


@dataclass(frozen=True, slots=True)
class Slope:
    """The derivative along a line at its origin.

    `error` estimates how far off `central` is. `left` and `right` are the one-sided slopes; they
    differ where the loss has a kink.
    """

    central: float
    error: float
    left: float
    right: float


def measure_slope(loss: Callable[[float], float], tolerance: float) -> Slope:
    """The slope of `loss` at 0, at the first of STEPS whose error is within `tolerance`.

    Where none is, the one with the least error is returned.
    """
    best: Slope | None = None
    origin = loss(0.0)
    for step in STEPS:
        found = _slope_at(loss, origin, step)
        if best is None or not found.error >= best.error:
            best = found
        if best.error <= tolerance:
            break
    assert best is not None
    return best


def _slope_at(loss: Callable[[float], float], origin: float, h: float) -> Slope:
    """Central differences at h and h / 2, extrapolated (Richardson 1911).

    On a smooth loss the two differ by h^2 / 8 times the third derivative, and the right slope
    minus the left one halves with h. A kink at t inside (-h, h) makes the first grow with t and
    breaks the second unless |t| = h / 3: one of the two shows it wherever it is.
    """
    far_low, low, high, far_high = (loss(k * h) for k in (-1.0, -0.5, 0.5, 1.0))
    wide, narrow = (far_high - far_low) / (2 * h), (high - low) / h
    bend, half_bend = (far_high - 2 * origin + far_low) / h, 2 * (high - 2 * origin + low) / h
    error = max(abs(wide - narrow), abs(half_bend - bend / 2))
    rounding = _ROUNDINGS * _UNIT * max(map(abs, (origin, low, high))) / h
    return Slope(
        central=(4 * narrow - wide) / 3,
        error=error + rounding,
        left=2 * (origin - low) / h,
        right=2 * (high - origin) / h,
    )


@dataclass(slots=True)
class ForwardLoss:
    """The mean loss of a forward graph in float64 as a function of one parameter at a time.

    What passes a `stop_gradient` is held, as its rule holds it.
    """

    graph: Graph
    given: Mapping[str, Array]
    rows: int
    base: dict[str, Array] = field(init=False)
    _readers: dict[str, tuple[Node, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.base = run_graph(self.graph, self.given, self.rows, exact=True)
        self._readers = {}

    def along(self, parameter: str, direction: Array) -> Callable[[float], float]:
        """The loss at a distance along `direction` from where the parameter is."""
        start = np.asarray(self.base[parameter], np.float64)
        nodes = self._nodes_after(parameter)

        def loss(distance: float) -> float:
            values = dict(self.base)
            values[parameter] = start + distance * direction
            with np.errstate(all="ignore"):
                for node in nodes:
                    operands = [values[name] for name in node.inputs]
                    results = run_node(node, operands, self.graph, self.rows, True)
                    pairs = zip(node.outputs, results, strict=True)
                    values.update((value.name, array) for value, array in pairs)
            return self.mean(values)

        return loss

    def mean(self, values: Mapping[str, Array]) -> float:
        """The mean loss from the values of a pass; 0 where no row counts."""
        weight = float(values[self.graph.output("weight")])
        return float(values[self.graph.output("loss")]) / weight if weight > 0 else 0.0

    def _nodes_after(self, parameter: str) -> tuple[Node, ...]:
        if parameter not in self._readers:
            self._readers[parameter] = tuple(_downstream(self.graph, parameter))
        return self._readers[parameter]


def _downstream(graph: Graph, name: str) -> Iterator[Node]:
    """The nodes that a change of `name` reaches."""
    reached = {name}
    for node in graph.nodes:
        if node.op != "stop_gradient" and reached.intersection(node.inputs):
            reached.update(value.name for value in node.outputs)
            yield node
