"""Training steps on the reference: the two graphs, run one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from graphs import Arrays, forward_of, generator

from bpc.ir import Graph
from bpc.passes import run_passes
from bpc.runtime.reference import round_to, run_graph
from bpc.spec import Spec
from bpc.train.control import initial_control
from bpc.types import shape_at
from bpc.update import build_micro_step, build_update

Batch = tuple[np.ndarray, np.ndarray]


class Trainer:
    """The states of a spec's training program, moved one window at a time."""

    def __init__(self, spec: Spec, exact: bool, updates: int = 10):
        forward = forward_of(spec)
        graphs = build_micro_step(forward, spec), build_micro_step(forward, spec, add=True)
        self.first, self.further = (run_passes(graph) for graph in graphs)
        self.update = run_passes(build_update(forward, spec))
        self.exact = exact
        self.states: Arrays = {}
        self.parameters = [s.name for s in forward.states if s.kind == "parameter"]
        self.low_precision = spec.train.precision in ("fp16", "bf16")
        control = initial_control(spec, updates)
        for graph in (self.first, self.further, self.update):
            for state in graph.states:
                start = control.get(state.name, 0.0)
                if state.kind in ("parameter", "master"):
                    start = starting_value(state.name, shape_at(state.value.shape, 0))
                array = np.broadcast_to(np.asarray(start), shape_at(state.value.shape, 0))
                rounded = array if exact else round_to(array, state.value.dtype)
                self.states.setdefault(state.name, rounded)

    def step(self, batches: Sequence[Batch], terms: float | None = None) -> float:
        """One window; returns its loss, the sum of all terms over the sum of all weights."""
        self.states["control.divisor"] = np.asarray(
            float(sum(len(x) for x, _ in batches)) if terms is None else terms
        )
        for k, (x, target) in enumerate(batches):
            self._run(self.further if k else self.first, {"x": x, "target": target}, len(x))
        loss = float(self.states["control.loss"]) / float(self.states["control.weight"])
        self._run(self.update, {}, 1)
        return loss

    def weights(self) -> Arrays:
        """The full-precision parameters by name."""
        prefix = "master." if self.low_precision else ""
        return {name: self.states[prefix + name] for name in self.parameters}

    def control(self, name: str) -> float:
        """A value of the control block."""
        return float(self.states[f"control.{name}"])

    def _run(self, graph: Graph, inputs: Arrays, rows: int) -> None:
        values = run_graph(graph, {**self.states, **inputs}, rows, self.exact)
        self.states.update((state, values[name]) for state, name in graph.updates)


def starting_value(name: str, shape: Sequence[int]) -> np.ndarray:
    """Normal draws over the root of the fan in, held by float32, the same for a master copy."""
    draws = generator("start", name.removeprefix("master.")).normal(size=tuple(shape))
    fan = shape[0] if len(shape) > 1 else 100
    return np.asarray((draws / np.sqrt(fan)).astype(np.float32).astype(np.float64))
