"""Field cases about the graph: values read twice, broadcasting, reductions, 16-bit means."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from field_cases import assert_near, expected, inputs_of
from field_nets import BELOW_ALL, Maker

from bpc.errors import SpecError

reals = pytest.mark.parametrize("precision", ["fp64", "fp32"])


@reals
def test_graph_diamond_reuse(make: Maker, precision: str) -> None:
    name = "graph-diamond-reuse"
    layers = """
mul: {name: xa, from: [x, a]}
mul: {name: x2, from: [x, x]}
mul: {name: f1, from: [x, xa]}
mul: {name: f3, from: [x2, a]}
mul: {name: f2, from: [x, xa]}
add: {name: first, from: [f1, f2]}
add: {name: y, from: [first, f3]}
"""
    found = make.probe(layers, inputs_of(name), [1], precision=precision)
    assert found.value == expected(name)["loss"]
    assert found.gradients["x"] == expected(name)["grad"]["x"]
    doubled = "{repeat: 60, name: deep, layers: [residual: [mul: 1.0]]}"
    found = make.probe(doubled, {"x": [1.0]}, [1], precision=precision)
    assert found.value == 2.0**60 and found.gradients["x"] == 2.0**60


@reals
def test_graph_tied_weight_and_bias(make: Maker, precision: str) -> None:
    name = "graph-tied-weight-and-bias"
    given, want = inputs_of(name), expected(name)
    # bpc's weights are [in, out]: the case's W is read transposed
    stored = {"w": given["W"].T, "b": given["b"]}
    layers = """
matmul: {name: p1, from: [x, w]}
add: {name: h, from: [p1, b]}
matmul: {name: p2, from: [h, w]}
add: {name: y, from: [p2, b]}
"""
    net = make.build(
        layers,
        data="source: synthetic, shape: [2], target_shape: [2], batch: 1",
        loss="{l1: {scale: 2.0}}",
        precision=precision,
        train="lr: 0.5, optimizer: adam, log_every: 1",
        parameters=stored,
    )
    batch = given["x"], np.full((1, 2), BELOW_ALL)
    assert_near(name, precision, net.predict(given["x"]), want["y"])
    slope = net.gradients(batch, ["w", "b", "x"])
    assert_near(name, precision, slope["w"].T, want["grad"]["W"])
    assert_near(name, precision, slope["b"], want["grad"]["b"])
    assert_near(name, precision, slope["x"], want["grad"]["x"])
    # once in the parameters, in the moments of the optimizer and in the norm of all gradients
    assert list(net.parameters()) == ["w", "b"]
    moments = [state.name for state in net.entries.states_of("moment")]
    assert sorted(moments) == sorted(f"{kind}.{key}" for kind in "mv" for key in stored)
    net.stepper(batch).step([0])
    norm = np.sqrt(sum(np.sum(np.square(want["grad"][key])) for key in ("W", "b")))
    assert net.device.read_scalar("control.norm") == pytest.approx(norm, rel=1e-6)
    result = net.train(steps=1)
    rows = Path(result["run_dir"], "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(json.loads(rows[0])["gradient_norms"]) == ["w", "b"]
    saved = Path(result["run_dir"], "model.safetensors").read_bytes()
    header = json.loads(saved[8 : 8 + int.from_bytes(saved[:8], "little")])
    assert sorted(header.keys() - {"__metadata__"}) == ["b", "w"]


@reals
def test_graph_broadcast_reduce(make: Maker, precision: str) -> None:
    name = "graph-broadcast-reduce"
    layers = """
mul: {name: p, from: [a, b]}
add: {name: q, from: [p, given_s]}
square: {name: y}
"""
    found = make.probe(layers, inputs_of(name), [2, 3], precision=precision)
    for key, slope in expected(name)["grad"].items():
        assert_near(name, precision, found.gradients[key], slope)


REDUCED = "  - mul: {{name: z, from: [given, unit]}}\n  - mean: {{axes: {axes}, name: n}}\n"
# One row stands in front of the case's axes, so that its axis k is axis k + 1 here.
MEANS = "data: {{source: synthetic, inputs: {{unit: [1, 1, 1]}}, target_shape: {target}}}\n"


def reduce_text(axes: str, target: str = "[3]") -> str:
    given = np.arange(24.0).reshape(2, 3, 4).tolist()
    return (
        MEANS.format(target=target)
        + f"parameters: {{given: {{shape: [2, 3, 4], init: {given}}}}}\nmodel:\n"
        + REDUCED.format(axes=axes)
        + "loss: l1\ntrain: {lr: 1.0, optimizer: sgd, precision: fp64}\n"
    )


def test_graph_reduce_empty_axis_list(make: Maker) -> None:
    name = "graph-reduce-empty-axis-list"
    for axes in ("[]", "[1, 1]", "[1, -3]", "[6]", "[-5]"):
        with pytest.raises(SpecError) as caught:
            make.net(reduce_text(axes))
        assert caught.value.diagnostics[0].span is not None
    slopes = []
    for axes in ("[1, 3]", "[-1, -3]"):
        layers = f"mean: {{axes: {axes}, from: z}}"
        found = make.probe(
            layers + "\nformula: {formula: 'x', name: y}",
            {"z": np.arange(24.0).reshape(2, 3, 4)},
            [3],
            precision="fp64",
            upstream=[1.0, 10.0, 100.0],
        )
        slopes.append(found.gradients["z"])
        for k, want in enumerate(expected(name)["grad"]["z[:,k,:]"]):
            assert np.array_equal(slopes[-1][:, k, :], np.full((2, 4), want))
    assert slopes[0].tobytes() == slopes[1].tobytes()


def test_math_fp16_norm_internal(make: Maker) -> None:
    name = "math-fp16-norm-internal"
    layers = "norm: {p: 3, name: y, from: a}"
    found = make.probe(layers, inputs_of(name), [], precision="fp16")
    assert_near(name, "fp16", found.value, expected(name)["y"])
    assert_near(name, "fp16", found.gradients["a"], expected(name)["grad"]["a"])


def test_math_fp16_mean_overflow(make: Maker) -> None:
    name = "math-fp16-mean-overflow"
    want = expected(name)
    x, z = np.full((64, 1, 16, 16), 4.0), np.ones(100_000)
    mean = "mean: {{axes: {axes}, name: y, from: {of}}}"
    made = {}
    for key, array, of in (("m", x, "x"), ("n", z, "z")):
        axes = list(range(1, array.ndim + 1))
        net = make.build(
            f"mul: {{name: {of}, from: [{of}_in, one]}}\n" + mean.format(axes=axes, of=of),
            data=f"source: synthetic, inputs: {{{of}_in: {list(array.shape)}}}, "
            "target_shape: [], batch: 1, rows: 1, test_rows: 1",
            precision="fp16",
            parameters={"one": [1.0]},
        )
        made[key] = net.predict(array[None])
        slope = net.gradients((array[None], np.full((1,), BELOW_ALL)), [f"{of}_in"])
        wanted = want["grad"]["z"] if of == "z" else 1 / x.size
        assert_near(name, "fp16", slope[f"{of}_in"], np.full((1, *array.shape), wanted))
    assert made["m"] == want["m"] and made["n"] == want["n"]
    net = make.build(
        "mul: {from: [x, one]}",
        data="source: synthetic, shape: [1, 16, 16], target_shape: [1, 16, 16], batch: 64",
        precision="fp16",
        parameters={"one": [1.0]},
    )
    batch = x, -x
    stepper = net.stepper(batch)
    assert stepper.step(range(64)) is not None
    assert stepper.loss() == want["mae"]
    slope = net.gradients(batch, ["x"])["x"]
    assert_near(name, "fp16", slope, np.full(x.shape, want["grad"]["x_of_mae"]))
