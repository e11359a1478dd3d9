"""The worked examples of `specs/worked`, with the numbers that one finds by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from graphs import forward_of

from bpc.autodiff import differentiate
from bpc.data.read import read
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.passes import run_passes
from bpc.resources import spec_root
from bpc.runtime.reference import run_graph
from bpc.spec import load_spec
from bpc.train.initial import initial_values
from bpc.update import build_micro_step

EXPECTED: Mapping[str, Mapping[str, object]] = {
    "neuron": {
        "z": 1.1,
        "a": 0.7502601055951177,
        "loss": 0.031185007428680883,
        "grad.z.weight": -0.0935874678657066,
        "grad.z.bias": -0.0467937339328533,
    },
    "two_layer": {
        "loss": 0.05880482973629545,
        "grad.z1.weight": -0.023166799082912862,
        "grad.z1.bias": -0.011583399541456431,
        "grad.z2.weight": -0.05797731860712069,
        "grad.z2.bias": -0.07727629148178178,
    },
    "three_layer": {
        "a3": 0.9285741418938609,
        "loss": 0.008265654981871332,
    },
}
# Given to ten decimal places: the tolerance is half of the last one.
ROUNDED = {
    "grad.z1.weight": [
        [0.0002684242, 0.0002912864, 0.0002929867],
        [0.0005368484, 0.0005825728, 0.0005859734],
    ],
    "grad.z3.weight": [[0.0077027907], [0.0078619773]],
}


def run_example(name: str, expanded: bool, exact: bool) -> dict[str, np.ndarray]:
    """Every value of the loss-and-gradient graph, and the gradients under `grad.*`."""
    path = spec_root() / "worked" / f"{name}.yaml"
    spec = load_spec(path, layer_schemas(), loss_schemas(), OPTIMIZERS)
    data = read(spec.data.source, spec.data.options, spec.data.span, spec.seed)
    graph = build_micro_step(forward_of(spec), spec)
    graph = replace(graph, outputs=tuple((v, v) for v in EXPECTED[name] if v in graph.values()))
    if expanded:
        graph = run_passes(graph)
    given = {**initial_values(graph.states, spec.seed), **data.train}
    given["control.scale"] = given["control.divisor"] = np.array(1.0)
    values = run_graph(graph, given, rows=1, exact=exact)
    for state, value in graph.updates:
        values[state] = values[value]
    return values


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_worked_example(name: str, expanded: bool, exact: bool) -> None:
    values = run_example(name, expanded, exact)
    for what, expected in EXPECTED[name].items():
        found = values[what]
        assert found.size == 1
        assert float(found.reshape(())) == pytest.approx(expected, rel=1e-13), what


@pytest.mark.parametrize("what", ROUNDED)
def test_three_layers_to_ten_places(what: str) -> None:
    found, expected = run_example("three_layer", True, False)[what], np.array(ROUNDED[what])
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 0.5001e-10
    assert np.allclose(found, expected, rtol=1e-6, atol=0)


def test_the_input_of_the_neuron_has_a_gradient_too() -> None:
    """dL/dx = dL/dz w."""
    path = spec_root() / "worked" / "neuron.yaml"
    spec = load_spec(path, layer_schemas(), loss_schemas(), OPTIMIZERS)
    graph = forward_of(spec)
    done = differentiate(graph, {graph.output("loss"): None}, ["x"])
    data = read(spec.data.source, spec.data.options, spec.data.span, spec.seed)
    given = {**initial_values(done.graph.states, spec.seed), **data.train}
    values = run_graph(done.graph, given, rows=1)
    made = done.gradients["x"]
    assert made is not None
    found = float(values[made].reshape(()))
    assert found == pytest.approx(-0.0467937339328533 * 0.5, rel=1e-13)
