"""The entry points of a program as graphs, and the states that live between their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bpc.data.describe import Description
from bpc.errors import SpecError
from bpc.ir import Graph, State, verify
from bpc.lower import lower
from bpc.ops import OPS
from bpc.spec.model import Spec
from bpc.update import build_micro_step, build_update, parameters_of

MICRO_STEP, MICRO_STEP_ADD, UPDATE = "micro_step", "micro_step_add", "update"
EVALUATE, PREDICT = "evaluate", "predict"

NOTHING_TO_TRAIN = "BPC0218"

_ORDER = ("parameter", "master", "moment", "gradient", "metric", "control")


@dataclass(frozen=True, slots=True)
class Entries:
    """The graphs of a program by entry point, in the ops of the spec (not yet expanded).

    `micro_step` replaces gradients, loss and weight, `micro_step_add` adds to them (only where
    windows hold several batches), `update` turns them into new weights, `evaluate` gives loss,
    weight and prediction without dropout, `predict` needs no target. `rows` is the planned batch.
    """

    graphs: Mapping[str, Graph]
    states: tuple[State, ...]
    rows: int

    def states_of(self, kind: str) -> tuple[State, ...]:
        """The states of one kind, such as parameter, in order."""
        return tuple(state for state in self.states if state.kind == kind)


def build_entries(spec: Spec, description: Description) -> Entries:
    """All entry points of a spec.

    Raises:
        SpecError: layers, shapes or formulas do not fit, or nothing in the model can be trained.
    """
    forward = lower(spec, description, training=True)
    if not parameters_of(forward):
        raise SpecError.at(
            NOTHING_TO_TRAIN,
            "no layer of the model has a weight, so there is nothing to train",
            spec.span,
            help="add a layer with weights, such as - linear: 10",
        )
    graphs = {MICRO_STEP: build_micro_step(forward, spec)}
    if spec.train.accumulate > 1:
        graphs[MICRO_STEP_ADD] = build_micro_step(forward, spec, add=True)
    graphs[UPDATE] = build_update(forward, spec)
    graphs[EVALUATE] = lower(spec, description, training=False)
    graphs[PREDICT] = lower(spec, description, training=False, with_loss=False)
    named = {name: verify(replace(graph, name=name), OPS) for name, graph in graphs.items()}
    return Entries(named, unite_states(named.values()), spec.data.batch)


def unite_states(graphs: Iterable[Graph]) -> tuple[State, ...]:
    """Every state of several graphs once: parameters first, within a kind as first met."""
    found: dict[str, State] = {}
    for graph in graphs:
        for state in graph.states:
            known = found.setdefault(state.name, state)
            assert known.value == state.value and known.kind == state.kind, (
                f"two entry points differ over a state: {known.value} and {state.value}"
            )
    return tuple(sorted(found.values(), key=lambda state: _ORDER.index(state.kind)))
