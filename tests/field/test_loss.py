"""Field cases about losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from field_cases import Array, assert_near, expected, inputs_of
from field_nets import Maker

from bpc.api import Net
from bpc.errors import BpcError, DataError

reals = pytest.mark.parametrize("precision", ["fp64", "fp32"])


def score(make: Maker, name: str, loss: str, precision: str, **more: Any) -> Net:
    """Scores that pass a weight of 1 on their way to the loss."""
    shape = inputs_of(name)["logits"].shape
    columns = shape[-1]
    return make.build(
        "mul: {from: [x, one]}",
        data=f"source: synthetic, shape: [{columns}], classes: {columns}, batch: {shape[0]}",
        loss=f"{{cross_entropy: {{{loss}}}}}",
        precision=precision,
        parameters={"one": [1.0]},
        **more,
    )


def run(net: Net, x: Array, target: Array) -> tuple[float, float, Array]:
    """Mean loss, number of terms, and the gradient of the mean by x."""
    slope = net.gradients((x, target), ["x"])["x"]
    stepper = net.stepper((x, target))
    assert stepper.step(range(len(x)))
    return stepper.loss(), stepper.terms(), slope


@reals
def test_loss_ce_ignore_denominator(make: Maker, precision: str) -> None:
    name = "loss-ce-ignore-denominator"
    given, want = inputs_of(name), expected(name)
    net = score(make, name, "ignore_index: 255", precision)
    loss, terms, slope = run(net, given["logits"], given["target"])
    assert terms == 2
    assert_near(name, precision, loss, want["loss"])
    assert_near(name, precision, slope, want["grad"]["logits"])
    assert np.array_equal(slope[1], np.zeros(3))


def test_loss_ce_all_ignored(make: Maker) -> None:
    name = "loss-ce-all-ignored"
    given, want = inputs_of(name), expected(name)
    net = score(make, name, "ignore_index: -1", "fp32", train="lr: 0.5, optimizer: sgd")
    loss, terms, slope = run(net, given["logits"], given["target"])
    assert (loss, terms) == (want["loss"], 0)
    assert np.array_equal(slope, want["grad"]["logits"])
    assert net.parameters()["one"] == 1
    both = np.concatenate([given["logits"], np.zeros((1, 3))]), np.array([-1, 2])
    layers = "add: {from: [x, shift]}"
    net = make.build(
        layers,
        data="source: synthetic, shape: [3], classes: 3, batch: 1",
        loss="{cross_entropy: {ignore_index: -1}}",
        train="lr: 1.0, optimizer: sgd, accumulate: 2",
        parameters={"shift": [0.0, 0.0, 0.0]},
    )
    stepper = net.stepper(both)
    assert stepper.step([0], [1])
    assert_near(name, "fp32", stepper.loss(), want["second_run_loss"])
    moved = -net.parameters()["shift"]
    assert_near(name, "fp32", moved, np.ravel(want["second_run_grad_of_normal_logits"]))


@reals
def test_loss_ce_smoothing_with_ignored(make: Maker, precision: str) -> None:
    name = "loss-ce-smoothing-with-ignored"
    given, want = inputs_of(name), expected(name)
    net = score(make, name, "ignore_index: -100, label_smoothing: 0.2", precision)
    loss, terms, slope = run(net, given["logits"], given["target"])
    assert_near(name, precision, loss, want["loss_mean"])
    assert_near(name, precision, slope, want["grad_mean"]["logits"])
    assert np.array_equal(slope[1], np.zeros(3))
    # bpc's losses are means; the sum is the mean times what it was divided by
    assert_near(name, precision, loss * terms, want["loss_sum"])
    assert_near(name, precision, slope * terms, want["grad_sum"]["logits"])


@reals
@pytest.mark.parametrize("smoothing", ["0", "0.1"])
def test_loss_ce_class_weights_denominator(make: Maker, precision: str, smoothing: str) -> None:
    name = "loss-ce-class-weights-denominator"
    given, want = inputs_of(name), expected(name)
    weights = given["class_weight"].tolist()
    net = score(make, name, f"class_weights: {weights}, label_smoothing: {smoothing}", precision)
    loss, terms, slope = run(net, given["logits"], given["target"])
    assert terms == 6
    assert_near(name, precision, loss, want[f"loss_smoothing_{smoothing}"])
    assert_near(name, precision, slope, want[f"grad_smoothing_{smoothing}"])


@pytest.mark.parametrize("row", [0, 1, 2])
def test_loss_ce_target_out_of_range(make: Maker, row: int) -> None:
    name = "loss-ce-target-out-of-range"
    given = inputs_of(name)
    target = given["target"][row].astype(np.int64)
    net = score(make, name, "ignore_index: -1", "fp32")
    before = net.parameters()["one"].tobytes()
    batch = given["logits"], target
    for ask in (lambda: net.stepper(batch), lambda: net.gradients(batch, ["x"])):
        with pytest.raises(BpcError) as caught:
            ask()
        assert f"target, row 1: {target[1]} is not a class" in str(caught.value)
    assert net.parameters()["one"].tobytes() == before
    rows = f"x: {given['logits'].tolist()}, y: {target.tolist()}"
    net = make.build(
        "mul: {from: [x, one]}",
        data=f"source: inline, classes: 3, {rows}",
        loss="{cross_entropy: {ignore_index: -1}}",
        parameters={"one": [1.0]},
    )
    with pytest.raises(DataError) as found:
        net.train(steps=1)
    assert f"target, row 1: class {target[1]} is not in 0..2" in str(found.value)


@reals
def test_loss_ce_ignore_is_valid_class(make: Maker, precision: str) -> None:
    name = "loss-ce-ignore-is-valid-class"
    given, want = inputs_of(name), expected(name)
    net = score(make, name, "ignore_index: 2", precision)
    loss, _, slope = run(net, given["logits"], given["target"])
    assert_near(name, precision, loss, want["loss"])
    assert_near(name, precision, slope, want["grad"]["logits"])
    assert slope[0, 2] > 0.6 and np.array_equal(slope[1], np.zeros(3))


def test_loss_log_softmax_range(make: Maker) -> None:
    name = "loss-log-softmax-range"
    given, want = inputs_of(name), expected(name)
    net = score(make, name, "label_smoothing: 0", "fp32")
    loss, terms, slope = run(net, given["logits"], given["target"])
    assert_near(name, "fp32", loss * terms, want["loss"])
    assert_near(name, "fp32", slope * terms, want["grad"]["logits"])


def binary(make: Maker, name: str, options: str, precision: str) -> tuple[float, Array]:
    """The loss of one column of scores, and the gradient of the mean."""
    given = inputs_of(name)
    rows = len(given["logits"])
    net = make.build(
        "mul: {from: [x, one]}",
        data=f"source: synthetic, shape: [1], batch: {rows}",
        loss=f"{{bce_with_logits: {{{options}}}}}",
        precision=precision,
        parameters={"one": [1.0]},
    )
    loss, _, slope = run(net, given["logits"][:, None], given["target"][:, None])
    return loss, slope[:, 0]


@reals
def test_loss_bce_pos_weight(make: Maker, precision: str) -> None:
    name = "loss-bce-pos-weight"
    want = expected(name)
    loss, slope = binary(make, name, "pos_weight: 1", precision)
    assert_near(name, precision, loss, want["loss"])
    assert_near(name, precision, slope, want["grad"]["logits"])
    plain = binary(make, name, "scale: 1", precision)
    assert plain[0] == loss and plain[1].tobytes() == slope.tobytes()
    # a weight that is not 1 goes by the same stable terms: 3 (120) for the second row
    loss, slope = binary(make, name, "pos_weight: 3", precision)
    assert_near(name, precision, 2 * loss, np.log(2) + 3 * 120)
    assert_near(name, precision, 2 * slope, [0.5, -3.0])


def test_loss_bce_saturated(make: Maker) -> None:
    name = "loss-bce-saturated"
    want = expected(name)
    loss, slope = binary(make, name, "scale: 1", "fp32")
    assert_near(name, "fp32", 4 * loss, want["loss"])
    assert_near(name, "fp32", 4 * slope, want["grad"]["logits"])
    assert 4 * slope[2] == pytest.approx(want["grad"]["logits"][2], rel=1e-5)
