"""What a run says of itself at its end, beside numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bpc.errors import Note
from bpc.train.tally import Tally
from bpc.types import count_of

MANY_ZERO_UNITS = 0.05
_MOST_TROUBLES = 3


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
