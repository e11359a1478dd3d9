from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bpc import api

HEAD = "bpc: 1\ndata: {source: digits, batch: 64}\n"
TAIL = "loss: cross_entropy\ntrain: {lr: 0.1}\n"
ALL = "model:\n  - linear: 10\n  - gt: 0.0\n"
SOME = "model:\n  - linear: 8\n  - stop_gradient\n  - linear: 10\n"
NONE = "model:\n  - linear: 8\n  - relu\n  - linear: 10\n"


def list_notes(net: api.Net) -> list[tuple[str, Any]]:
    """What a run says, which is what the plan says too."""
    of_run = net.train(steps=1)["notes"]
    of_plan = net.plan_memory()["notes"]
    assert all(note in of_run for note in of_plan)
    return [(note["text"], note["place"]["line"]) for note in of_plan]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ALL, "no weight gets a gradient, so that nothing is learnt: linear1.weight, linear1.bias"),
        (SOME, "2 weights without a gradient, never trained: linear1.weight, linear1.bias"),
        (NONE, None),
    ],
)
def test_weights_without_a_gradient(
    model: str, expected: str | None, make: Callable[..., api.Net]
) -> None:
    found = list_notes(make(HEAD + model + TAIL))
    assert found == ([(expected, 4)] if expected else [])


def test_rows_that_are_never_used(make: Callable[..., api.Net]) -> None:
    text = (HEAD + NONE + TAIL).replace("batch: 64", "batch: 5000")
    assert list_notes(make(text)) == [("only 1,438 of 5,000 planned rows are ever used", 2)]


def test_what_decay_leaves_alone_is_told(make: Callable[..., api.Net]) -> None:
    decayed = TAIL.replace("lr: 0.1", "lr: 0.1, optimizer: {sgd: {weight_decay: 0.1}}")
    text = "weight decay leaves biases and norms alone: linear1.bias, linear2.bias"
    assert list_notes(make(HEAD + NONE + decayed)) == [(text, 8)]
    all_of_them = decayed.replace("lr: 0.1,", 'lr: 0.1, groups: {"*": {weight_decay: 0.2}},')
    assert list_notes(make(HEAD + NONE + all_of_them)) == []
    assert list_notes(make(HEAD + NONE + TAIL)) == []
    grouped = f"{HEAD}{NONE}{TAIL}".rstrip().removesuffix("}")
    alone = f'{grouped}, groups: {{\n  "linear1.weight": {{weight_decay: 0.1}}}}}}\n'
    assert list_notes(make(alone)) == [(text, 9)]
