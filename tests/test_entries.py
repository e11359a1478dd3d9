from __future__ import annotations

from pathlib import Path

import pytest

from bpc import api
from bpc.entries import unite_states
from bpc.errors import SpecError
from bpc.resources import spec_root
from bpc.runtime.reference_device import ReferenceDevice, count_bytes
from bpc.types import nbytes

DIGITS = spec_root() / "digits_mlp.yaml"


def compile_digits(**settings: object) -> api.Net:
    sets = {key.replace("__", "."): value for key, value in settings.items()}
    return api.compile(DIGITS, set=sets, device="reference")


def test_entry_points_and_their_outputs() -> None:
    graphs = compile_digits().entries.graphs
    assert list(graphs) == ["micro_step", "update", "evaluate", "predict"]
    assert all(graph.name == name for name, graph in graphs.items())
    assert [role for role, _ in graphs["evaluate"].outputs] == ["prediction", "loss", "weight"]
    assert [role for role, _ in graphs["predict"].outputs] == ["prediction"]
    assert [value.name for value in graphs["predict"].inputs] == ["x"]
    assert not graphs["evaluate"].updates and graphs["micro_step"].updates


def test_only_windows_of_several_batches_add() -> None:
    graphs = compile_digits(train__accumulate=2).entries.graphs
    assert list(graphs)[:2] == ["micro_step", "micro_step_add"]


def test_dropout_is_off_outside_training() -> None:
    graphs = compile_digits().entries.graphs
    has_dropout = {
        name: any(node.op == "dropout" for node in graph.nodes) for name, graph in graphs.items()
    }
    assert [name for name, found in has_dropout.items() if found] == ["micro_step"]


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_states_come_once_parameters_first(precision: str) -> None:
    entries = compile_digits(train__precision=precision).entries
    names = [state.name for state in entries.states]
    assert len(names) == len(set(names))
    assert names[0] == "linear1.weight"
    assert len(entries.states_of("master")) == (6 if precision in ("bf16", "fp16") else 0)
    assert len(entries.states_of("moment")) == 12
    known = {state.name: state for state in entries.states}
    for graph in entries.graphs.values():
        assert all(known[state.name].value == state.value for state in graph.states)
    again = unite_states(reversed(list(entries.graphs.values())))
    assert {state.name for state in again} == set(names)


def test_the_bytes_of_the_reference_are_those_of_its_tensors() -> None:
    entries = compile_digits().entries
    step = entries.graphs["micro_step"]
    computed = sum(nbytes(v.dtype, v.shape, 64) for node in step.nodes for v in node.outputs)
    states = sum(nbytes(state.value.dtype, state.value.shape, 64) for state in entries.states)
    update = entries.graphs["update"]
    updated = sum(nbytes(v.dtype, v.shape, 64) for node in update.nodes for v in node.outputs)
    inputs = 64 * 64 * 4 + 64 * 8
    assert count_bytes(entries) == states + inputs + max(computed, updated)
    assert ReferenceDevice(entries).arena_bytes == count_bytes(entries)


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "bpc: 1\ndata: {source: digits, batch: 4}\nmodel: [relu]\nloss: cross_entropy\n"
        "train: {optimizer: {sgd: {lr: 0.1}}}\n"
    )
    with pytest.raises(SpecError, match="nothing to train"):
        api.compile(path)
