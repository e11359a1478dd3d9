"""How the update treats each parameter, as plain data."""

from __future__ import annotations

from typing import Any

from bpc.entries import Entries
from bpc.parameter_groups import assign_settings
from bpc.spec.model import Spec


def describe_parameters(spec: Spec, entries: Entries) -> list[dict[str, Any]]:
    """Name, type, rate, decay and clip group of each parameter, in order.

    `lr` is the rate before warmup and schedule; `decay_exempt` marks biases and norms that no group
    speaks of; `clip_group` is a pattern of `clip.groups`, null for the rest.
    """
    states = entries.states_of("parameter")
    settings = assign_settings(spec, states)
    groups = spec.train.clip_groups
    found = []
    for state in states:
        own = settings[state.name]
        rate = own.lr if own.lr is not None else own.factor * spec.train.lr
        found.append(
            {
                "name": state.name,
                "type": str(state.value.dtype),
                "lr": rate,
                "weight_decay": own.weight_decay,
                "decay_exempt": own.exempt,
                "clip_group": None if own.clip is None else groups[own.clip].pattern.text,
            }
        )
    return found
