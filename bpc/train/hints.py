"""What a person should know of a network before it runs, each with its place."""

from __future__ import annotations

from collections.abc import Iterator

from bpc.data.describe import Description
from bpc.entries import MICRO_STEP, Entries
from bpc.errors import Note, Span
from bpc.expr import Const
from bpc.ir import State
from bpc.optimizer import gradient_name
from bpc.parameter_groups import assign_settings
from bpc.spec.model import Spec
from bpc.types import count_of

_MOST_NAMED = 3


def find_hints(spec: Spec, description: Description, entries: Entries) -> tuple[Note, ...]:
    """Weights that never move, planned rows that are never used, what decay leaves alone."""
    return (
        *_find_untrained(entries),
        *_find_idle_rows(spec, description),
        *_find_undecayed(spec, entries),
    )


def _find_untrained(entries: Entries) -> Iterator[Note]:
    """Weights that the loss does not depend on, or only through what has no gradient."""
    states = entries.states_of("parameter")
    still = _list_still(entries, states)
    if not still:
        return
    names = ", ".join(state.name for state in still[:_MOST_NAMED])
    more = f" and {len(still) - _MOST_NAMED} more" if len(still) > _MOST_NAMED else ""
    if len(still) == len(states):
        text = f"no weight gets a gradient, so that nothing is learnt: {names}{more}"
    else:
        text = f"{count_of(len(still), 'weight')} without a gradient, never trained: {names}{more}"
    yield Note(text, still[0].span)


def _list_still(entries: Entries, states: tuple[State, ...]) -> list[State]:
    """The parameters whose gradient is the constant 0 in the graph of a step."""
    graph = entries.graphs[MICRO_STEP]
    producers, made = graph.producers(), dict(graph.updates)
    found = []
    for state in states:
        node = producers.get(made[gradient_name(state.name)])
        if node is not None and node.op == "map" and node.attr("expr") == Const(0.0):
            found.append(state)
    return found


def _find_undecayed(spec: Spec, entries: Entries) -> Iterator[Note]:
    """Biases and norms, where the optimizer decays the other weights."""
    settings = assign_settings(spec, entries.states_of("parameter")).values()
    exempt = [item.name for item in settings if item.exempt]
    if not exempt or not any(item.weight_decay for item in settings):
        return
    names = ", ".join(exempt[:_MOST_NAMED])
    more = f" and {len(exempt) - _MOST_NAMED} more" if len(exempt) > _MOST_NAMED else ""
    text = f"weight decay leaves biases and norms alone: {names}{more}"
    yield Note(text, _place_of_decay(spec))


def _place_of_decay(spec: Spec) -> Span:
    """The optimizer that decays, or the first group that does where it alone does."""
    optimizer = spec.train.optimizer
    decaying = [group.span for group in spec.train.groups if group.weight_decay]
    return decaying[0] if decaying and not optimizer.options.get("weight_decay") else optimizer.span


def _find_idle_rows(spec: Spec, description: Description) -> Iterator[Note]:
    """A batch larger than the data: memory is planned for rows that never come."""
    planned, used = spec.data.batch, max(description.train_rows, description.test_rows)
    if planned <= used:
        return
    text = f"only {used:,} of {planned:,} planned rows are ever used"
    yield Note(text, spec.data.spans.get("batch", spec.data.span))
