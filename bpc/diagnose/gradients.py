"""`bpc check`: gradients of the generated code against differences of the forward graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log2
from typing import Any
from zlib import crc32

import numpy as np

from bpc.data.describe import Description
from bpc.diagnose.differences import ForwardLoss, Slope, measure_slope
from bpc.errors import Span
from bpc.expr import Const, Var, gt, select
from bpc.gradients import GradientGraph, build_forward, build_gradients
from bpc.ir import Graph, State
from bpc.passes import run_passes
from bpc.runtime.device import Array
from bpc.runtime.reference import round_to, run_graph
from bpc.runtime.select import RunGraph
from bpc.spec.model import Spec
from bpc.train.control import initial_control
from bpc.train.nonfinite import find_in_forward, make_check_error
from bpc.types import F16, DType

EVERY_ELEMENT, SAMPLED_ELEMENTS, DIRECTIONS = 64, 32, 8
"""Tensors up to the first size are checked at every element; larger ones at so many elements and
along so many random directions."""

RULE_BOUND = 1e-6
"""What a rule in float64 may differ from a difference, beside that difference's own error."""

TOLERATED = 1e-5
"""A difference with a larger error has met a kink. Both are shares of the largest gradient."""

LEAST_SHARE = 1e-4
"""Gradients of a tensor are compared with its largest, or with this share of the network's."""

MOVED_BY = 0.05

_UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_HEADROOM = 2.0**10  # the largest scaled 16-bit gradient: f16 ends at 2^16


@dataclass(frozen=True, slots=True)
class Kink:
    """A place where the loss has no slope: an element (or direction, None) of a parameter."""

    parameter: str
    element: tuple[int, ...] | None
    left: float
    right: float
    gradient: float


@dataclass(frozen=True, slots=True)
class ParameterCheck:
    """What a parameter's gradient differs by, as shares of its largest element.

    `error` is that of the code that ran, in the spec's types; `rule_error` that of the same
    backward graph in float64, which has no rounding to hide behind. `moved`: every probe met a kink
    where the parameter was, so its errors were found a little away from there.
    """

    name: str
    span: Span
    elements: int
    probes: int
    error: float
    bound: float
    rule_error: float
    rule_bound: float
    kinks: tuple[Kink, ...]
    moved: bool = False

    @property
    def ok(self) -> bool:
        """Whether both are within their bounds; NaN is not."""
        return self.error <= self.bound and self.rule_error <= self.rule_bound


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The checks of all parameters on `rows` rows; `scale` multiplied the loss in 16 bits."""

    parameters: tuple[ParameterCheck, ...]
    rows: int
    scale: float
    mean_loss: float

    @property
    def ok(self) -> bool:
        """Whether every parameter is."""
        return all(item.ok for item in self.parameters)


@dataclass(frozen=True, slots=True)
class _Probe:
    """One direction in a parameter's space; `element` is set for a unit vector."""

    element: tuple[int, ...] | None
    direction: Array


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The gradient of each parameter, three times: as run, in float64, and by NumPy in types."""

    ran: Mapping[str, Array]
    exact: Mapping[str, Array]
    native: Mapping[str, Array]
    scale: float


def check_gradients(
    spec: Spec,
    description: Description,
    parameters: Mapping[str, Array],
    batch: Mapping[str, Array],
    run: RunGraph,
) -> GradientCheck:
    """Compare every parameter's gradient with differences of the loss in float64.

    Args:
        spec: any network; dropout draws as in the first step of a run, the same for every probe.
        description: of its data.
        parameters: the point at which gradients are taken, by name.
        batch: inputs and target by name, as many rows as are to be checked.
        run: runs the gradient graph: what is checked.

    A parameter all of whose probes meet kinks is checked again at a point nearby.

    Raises:
        NonFiniteError: the loss is inf or NaN, in the spec's types or in float64.
    """
    forward = build_forward(spec, description)
    _check_loss(forward, spec, _give(forward, spec, parameters, batch), len(batch["target"]))
    states = [state for state in forward.states if state.kind == "parameter"]
    first = _check_at(forward, spec, states, parameters, batch, run)
    stuck = {item.name for item in first.parameters if len(item.kinks) == item.probes}
    if not stuck:
        return first
    moved = {name: _move(name, a) if name in stuck else a for name, a in parameters.items()}
    again = _check_at(forward, spec, states, moved, batch, run)
    second = {item.name: item for item in again.parameters if item.name in stuck}
    merged = (_merge(item, second.get(item.name)) for item in first.parameters)
    return replace(first, parameters=tuple(merged))


def _move(name: str, array: Array) -> Array:
    """A parameter a little away from where it was: zeros put many inputs of a relu on its kink."""
    rng = np.random.default_rng(crc32(f"move {name}".encode()))
    return np.asarray(array, np.float64) + MOVED_BY * rng.normal(size=array.shape)


def _merge(first: ParameterCheck, second: ParameterCheck | None) -> ParameterCheck:
    """What was found away from the kinks, with the kinks that were found first."""
    return first if second is None else replace(second, kinks=first.kinks, moved=True)


def _check_at(
    forward: Graph,
    spec: Spec,
    states: Sequence[State],
    parameters: Mapping[str, Array],
    batch: Mapping[str, Array],
    run: RunGraph,
) -> GradientCheck:
    """Check every parameter at one point."""
    rows = len(batch["target"])
    given = _give(forward, spec, parameters, batch)
    loss = ForwardLoss(forward, given, rows)
    found = _find_gradients(forward, spec, states, given, rows, run)
    network = max(_largest(found.exact[state.name]) for state in states)
    checks = tuple(_check_parameter(state, loss, found, network) for state in states)
    return GradientCheck(checks, rows, found.scale, loss.mean(loss.base))


def _check_loss(graph: Graph, spec: Spec, given: Mapping[str, Array], rows: int) -> None:
    """Refuse a loss without slopes: the first value that is not finite, and its layer, are told."""
    for exact in (False, True):
        with np.errstate(all="ignore"):
            values = run_graph(graph, given, rows, exact=exact)
        if np.isfinite(values[graph.output("loss")]).all():
            continue
        fault = find_in_forward(graph, given, rows, spec.data.span, exact)
        raise make_check_error(fault, values[graph.output("loss")])


def _give(
    graph: Graph, spec: Spec, parameters: Mapping[str, Array], batch: Mapping[str, Array]
) -> dict[str, Array]:
    """Inputs and states as the program holds them: every path starts from the same numbers."""
    control = {name: np.asarray(x) for name, x in initial_control(spec, 0).items()}
    given = {**control, **parameters, **batch}
    wanted = [*graph.inputs, *(state.value for state in graph.states)]
    return {value.name: round_to(np.asarray(given[value.name]), value.dtype) for value in wanted}


def _largest(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))


# -- gradients ------------------------------------------------------------------------------------


def _find_gradients(
    forward: Graph,
    spec: Spec,
    states: Sequence[State],
    given: Mapping[str, Array],
    rows: int,
    run: RunGraph,
) -> _Gradients:
    made = build_gradients(forward, spec, [state.name for state in states])
    plain = run_passes(made.graph)
    exact = run_graph(plain, given, rows, exact=True)
    scale = _choose_scale(plain, exact)
    scaled = replace(made, graph=_scale_loss(made.graph, scale))
    native = run_graph(run_passes(scaled.graph), given, rows)
    ran = run(scaled.graph, given, rows)
    return _Gradients(
        _read(scaled, ran, given, scale),
        _read(made, exact, given, 1.0),
        _read(scaled, native, given, scale),
        scale,
    )


def _read(
    made: GradientGraph, values: Mapping[str, Array], given: Mapping[str, Array], scale: float
) -> dict[str, Array]:
    """Gradients by parameter in float64; zeros where the loss does not depend on one."""
    roles = dict(made.graph.outputs)
    found = {}
    for name, (_, role) in made.found.items():
        zeros = np.zeros(given[name].shape)
        found[name] = zeros if role is None else np.asarray(values[roles[role]], np.float64) / scale
    return found


def _choose_scale(graph: Graph, values: Mapping[str, Array]) -> float:
    """A power of two that lifts fp16 gradients out of the subnormals; 1 for every other type."""
    backward = [node for node in graph.nodes if node.phase == "backward"]
    half = [v.name for node in backward for v in node.outputs if v.dtype == F16]
    largest = max((_largest(values[name]) for name in half), default=0.0)
    if not 0 < largest < float("inf"):
        return 1.0
    return float(2.0 ** floor(log2(_HEADROOM / largest)))


def _scale_loss(graph: Graph, scale: float) -> Graph:
    """The same gradients times `scale`."""
    seed = select(gt(Var("w"), 0), Const(scale) / Var("w"), 0)
    nodes = tuple(
        replace(node, attrs=tuple((k, seed if k == "expr" else v) for k, v in node.attrs))
        if node.name == "loss.seed"
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


# -- one parameter --------------------------------------------------------------------------------


def _check_parameter(
    state: State, loss: ForwardLoss, found: _Gradients, network: float
) -> ParameterCheck:
    name = state.name
    ran, exact = found.ran[name], found.exact[name]
    largest = max(_largest(exact), LEAST_SHARE * network) or 1.0
    errors, rule_errors, doubts = [0.0], [0.0], [0.0]
    kinks: list[Kink] = []
    probes = list(_choose_probes(name, exact))
    for probe in probes:
        slope = measure_slope(loss.along(name, probe.direction), TOLERATED * largest)
        gradient = float(np.vdot(ran, probe.direction))
        if not slope.error <= TOLERATED * largest:
            kinks.append(Kink(name, probe.element, slope.left, slope.right, gradient))
            continue
        rule = float(np.vdot(exact, probe.direction))
        errors.append(_apart(gradient, slope) / largest)
        rule_errors.append(_apart(rule, slope) / largest)
        doubts.append(slope.error / largest)
    rule_bound = RULE_BOUND + 4 * max(doubts)
    rounding = _rounding(state.value.dtype, exact, found.native[name], largest)
    return ParameterCheck(
        name=name,
        span=state.span,
        elements=exact.size,
        probes=len(probes),
        error=_worst(errors),
        bound=rounding + rule_bound,
        rule_error=_worst(rule_errors),
        rule_bound=rule_bound,
        kinks=tuple(kinks),
    )


def _apart(gradient: float, slope: Slope) -> float:
    return abs(gradient - slope.central)


def _worst(errors: Sequence[float]) -> float:
    """The largest, where NaN counts as larger than every number."""
    return float("nan") if any(error != error for error in errors) else max(errors)


def _rounding(dtype: DType, exact: Array, native: Array, largest: float) -> float:
    """What rounding may do to a gradient, as a share of its largest element.

    Measured: the same graph run by NumPy in the same types, against itself in float64. A fault of
    a rule is in both and cancels, so this is rounding alone, with the decisions that it turned
    around. Sums run in another order in the code that is checked, so twice that is allowed; and
    16 units of the type, since on few elements a measurement can be small by luck.
    """
    measured = _largest(native - exact) / largest
    return 2 * measured + 16 * _UNIT[dtype.name]


def _choose_probes(name: str, gradient: Array) -> Iterator[_Probe]:
    """Every element of a small tensor; else sampled elements, half of them where there is a
    gradient at all, and random directions of length 1."""
    shape, size = gradient.shape, gradient.size
    rng = np.random.default_rng(crc32(name.encode()))
    if size <= EVERY_ELEMENT:
        places = np.arange(size)
    else:
        alive = np.flatnonzero(gradient)
        half = rng.permutation(alive)[: SAMPLED_ELEMENTS // 2]
        others = np.setdiff1d(np.arange(size), half)
        places = np.concatenate([half, rng.permutation(others)[: SAMPLED_ELEMENTS - len(half)]])
    for place in places:
        unit = np.zeros(size)
        unit[place] = 1.0
        element = tuple(int(k) for k in np.unravel_index(int(place), shape))
        yield _Probe(element, unit.reshape(shape))
    for _ in range(DIRECTIONS if size > EVERY_ELEMENT else 0):
        drawn = rng.normal(size=shape)
        yield _Probe(None, drawn / np.linalg.norm(drawn))


def to_json(check: GradientCheck) -> dict[str, Any]:
    """The check as plain data."""
    return {
        "rows": check.rows,
        "mean_loss": check.mean_loss,
        "loss_scale": check.scale,
        "parameters": [_parameter_json(item) for item in check.parameters],
        "kinks": [_kink_json(kink) for item in check.parameters for kink in item.kinks],
    }


def _parameter_json(item: ParameterCheck) -> dict[str, Any]:
    return {
        "name": item.name,
        "ok": item.ok,
        "span": item.span.to_json(),
        "elements": item.elements,
        "probes": item.probes,
        "moved": item.moved,
        "max_rel_error": item.error,
        "bound": item.bound,
        "rule_error": item.rule_error,
        "rule_bound": item.rule_bound,
        "kinks": len(item.kinks),
    }


def _kink_json(kink: Kink) -> dict[str, Any]:
    return {
        "parameter": kink.parameter,
        "element": None if kink.element is None else list(kink.element),
        "left": kink.left,
        "right": kink.right,
        "gradient": kink.gradient,
    }
