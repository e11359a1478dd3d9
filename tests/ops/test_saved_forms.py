"""The derivative keeps the cheapest thing that it can be computed from."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from graphs import forward_of, read_spec

from bpc.autodiff import differentiate
from bpc.ir import Graph
from bpc.types import BIT, nbytes

ROWS, WIDTH = 32, 256


def joint(layers: str) -> Graph:
    """The joint graph of a model that ends in a mean, by its parameters and input."""
    text = (
        "bpc: 1\nname: saved\n"
        f"data: {{source: synthetic, batch: {ROWS}, shape: [{WIDTH}], target_shape: [1]}}\n"
        f"model:\n{layers}  - mean: {{keepdims: true, name: out}}\nloss: mse\n"
        "train: {steps: 1, optimizer: {sgd: {lr: 0.1}}}\n"
    )
    graph = forward_of(read_spec(text))
    wanted = ["x", *(state.name for state in graph.states if state.kind == "parameter")]
    return differentiate(graph, {graph.output("loss"): None}, wanted).graph


def saved(graph: Graph) -> Mapping[str, int]:
    """Bytes of each computed forward value that a backward node reads, views under their source."""
    makers, found = graph.producers(), {}
    values = graph.values()
    for node in graph.nodes:
        if node.phase != "backward":
            continue
        for name in node.inputs:
            while name in makers and makers[name].op == "reshape":
                name = makers[name].inputs[0]
            if name in makers and makers[name].phase == "forward":
                found[name] = nbytes(values[name].dtype, values[name].shape, ROWS)
    return {name: size for name, size in found.items() if not name.startswith(("loss", "out"))}


FULL, MASK = 4 * ROWS * WIDTH, ROWS * WIDTH // 8
SHIFT = "  - linear: {out: 256, name: fc}\n"


def test_relu_before_a_mean_keeps_one_bit_an_element() -> None:
    graph = joint(SHIFT + "  - relu: {name: act}\n")
    assert saved(graph) == {"act.mask": MASK}
    assert MASK == 1024
    assert graph.values()["act.mask"].dtype == BIT


def test_sigmoid_before_a_mean_keeps_its_output() -> None:
    assert saved(joint(SHIFT + "  - sigmoid: {name: act}\n")) == {"act": FULL}
    assert FULL == 32 * 1024


def test_relu_before_a_residual_add_keeps_one_bit_an_element() -> None:
    layers = "  - residual: [{linear: {out: 256, name: fc}}, {relu: {name: act}}]\n"
    found = saved(joint(layers))
    assert [size for name, size in found.items() if name.endswith("act.mask")] == [MASK]
    assert not any(name.endswith(("act", "fc")) for name in found)


def test_relu_before_linear_reads_the_output_that_linear_keeps_anyway() -> None:
    layers = SHIFT + "  - relu: {name: act}\n  - linear: {out: 8, name: next}\n"
    assert saved(joint(layers)) == {"act": FULL}


def test_relu_before_flatten_and_linear_sees_through_the_view() -> None:
    layers = (
        SHIFT + "  - reshape: [16, 16]\n  - relu: {name: act}\n  - flatten\n"
        "  - linear: {out: 8, name: next}\n"
    )
    assert saved(joint(layers)) == {"act": FULL}


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        ("tanh", "act"),  # 1 - y^2
        ("exp", "act"),  # y
        ("elu", "act"),
        ("selu", "act"),
        ("gelu", "fc"),  # not monotonous: only x tells
        ("silu", "fc"),
        ("softplus", "fc"),  # as large as y, and sigmoid(x) is less work than -expm1(-y)
        ("square", "fc"),
        ("leaky_relu", "act.mask"),
        ("clip", "act.mask"),
    ],
)
def test_what_a_layer_keeps(layer: str, kept: str) -> None:
    expected = {kept: MASK if kept.endswith("mask") else FULL}
    assert saved(joint(SHIFT + f"  - {layer}: {{name: act}}\n")) == expected


@pytest.mark.parametrize("layer", ["neg: {", "add: {value: 2.0, ", "mul: {value: 3.0, "])
def test_linear_functions_keep_nothing(layer: str) -> None:
    assert saved(joint(SHIFT + f"  - {layer}name: act}}\n")) == {}


def test_abs_keeps_its_input_only_where_nothing_smaller_does() -> None:
    assert sum(saved(joint(SHIFT + "  - abs: {name: act}\n")).values()) <= FULL


def test_dropout_keeps_nothing() -> None:
    graph = joint(SHIFT + "  - dropout: {p: 0.3, name: drop}\n")
    assert saved(graph) == {}
    assert [node.phase for node in graph.nodes if node.op == "dropout"] == ["forward", "backward"]


def test_two_readers_of_one_value_keep_it_once() -> None:
    """gelu needs x, and then tanh's x costs nothing more: its y is not kept beside it."""
    layers = (
        SHIFT + "  - gelu: {name: first, from: fc}\n  - tanh: {name: second, from: fc}\n"
        "  - add: {from: [first, second]}\n"
    )
    assert saved(joint(layers)) == {"fc": FULL}
