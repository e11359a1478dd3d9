"""What a run says of itself at its beginning and its end, beside what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bpc.entries import Entries
from bpc.errors import Note
from bpc.runtime.device import Device
from bpc.spec.model import Spec
from bpc.train.tally import Tally
from bpc.types import count_of

MANY_ZERO_UNITS = 0.05
_MOST_TROUBLES = 3


def limit_steps(spec: Spec, steps: int | None) -> Spec:
    """The spec that asks for so many steps by itself."""
    if steps is None:
        return spec
    return replace(spec, train=replace(spec.train, steps=steps, epochs=None))


def describe_start(spec: Spec, entries: Entries, device: Device) -> dict[str, Any]:
    """What runs where, and how large it is."""
    states = entries.states_of("parameter")
    return {
        "name": spec.name,
        "parameters": sum(device.read_state(state.name).size for state in states),
        "precision": spec.train.precision,
        "device": device.summary,
        "planned_peak_bytes": device.planned_peak_bytes,
        "budget_bytes": spec.train.memory_bytes,
    }


def make_notes(given: Sequence[Note], tally: Tally, troubles: list[str]) -> list[dict[str, Any]]:
    """What a person should know, each with a place where it has one."""
    said = (*given, *(Note(text) for text in troubles[:_MOST_TROUBLES]))
    notes: list[dict[str, Any]] = [
        {"text": note.text, "place": note.span.to_json() if note.span else None} for note in said
    ]
    if tally.skipped:
        were = "was" if tally.skipped == 1 else "were"
        text = f"{tally.skipped} of {count_of(tally.step, 'step')} {were} skipped: not finite"
        notes.append({"text": text, "place": None})
    for unit in sorted(tally.units, key=lambda unit: -unit.share):
        if unit.share >= MANY_ZERO_UNITS:
            text = f"layer {unit.layer}: {unit.share:.0%} of its units were zero on every example"
            notes.append({"text": text, "place": unit.span.to_json()})
    return notes
