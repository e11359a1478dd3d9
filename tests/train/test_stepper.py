from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpc import api
from bpc.errors import UsageError


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_steps_by_hand_are_the_steps_of_the_loop(make: Any, device: str) -> None:
    """Five steps that cross an epoch, whose last batch is short: equal to the last bit."""
    make(train__precision="fp32")
    settings = {"train.precision": "fp32", "train.optimizer": {"adam": {"lr": 1e-2}}}
    nets = [api.compile("net.yaml", set=settings, device=device) for _ in range(2)]
    nets[0].train(steps=5)
    stepper = nets[1].stepper(updates=5)
    source = api.Batches(nets[1].data.train, 16, nets[1].spec.seed, shuffle=True)
    for number in range(5):
        assert stepper.step(source.rows(*source.locate(number))) is True
    for name, value in nets[0].parameters().items():
        np.testing.assert_array_equal(value, nets[1].parameters()[name])
    assert stepper.loss() == nets[0].device.read_scalar("control.loss") / 16


def test_loss_is_that_before_the_update(make: Any) -> None:
    net = make()
    part = net.data.train
    stepper = net.stepper()
    scores = net.predict(part["x"][:16])
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    stepper.step(range(16))
    picked = shares[np.arange(16), part["target"][:16]]
    assert stepper.loss() == pytest.approx(-np.log(picked).mean(), rel=1e-12)


def test_two_batches_of_a_window_move_like_one(make: Any) -> None:
    whole, halves = make(), make(train__accumulate=2)
    whole.stepper().step(range(16))
    halves.stepper().step(range(10), range(10, 16))
    for name, value in whole.parameters().items():
        np.testing.assert_allclose(value, halves.parameters()[name], rtol=1e-12, atol=1e-15)


def test_data_may_be_given(make: Any) -> None:
    net = make()
    part = net.data.train
    losses = []
    for data in (None, (part["x"].astype(np.float64), part["target"].astype(np.int32))):
        stepper = make().stepper(data)
        stepper.step([3, 1, 2])
        losses.append(stepper.loss())
    assert losses[0] == losses[1]


def test_a_step_that_is_not_finite_leaves_the_weights(make: Any) -> None:
    net = make()
    part = net.data.train
    x = part["x"].copy()
    x[1] = np.nan
    before = net.parameters()
    assert net.stepper((x, part["target"])).step([0, 1]) is False
    for name, value in net.parameters().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ((), "0 batches in a step, from 1 to 1 are possible"),
        (([0], [1]), "2 batches in a step, from 1 to 1 are possible"),
        ((np.arange(17),), "17 rows in a batch, from 1 to 16 are planned"),
        ((np.arange(0),), "0 rows in a batch, from 1 to 16 are planned"),
        (([0, 50],), "row numbers from 0 to 50, rows are 0..49"),
        (([-1, 3],), "row numbers from -1 to 3, rows are 0..49"),
        (([0.5],), "row numbers are float64 [1], not integers [n]"),
        (([[1]],), "row numbers are int64 [1, 1], not integers [n]"),
    ],
)
def test_wrong_rows_are_refused(make: Any, batches: Any, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        make().stepper().step(*batches)
    assert caught.value.diagnostics[0].message == told


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_gathered_rows_are_the_rows(make: Any, device: str, kind: Any) -> None:
    """Of the slot's type or not, of every count up to the planned one."""
    make()
    net = api.compile("net.yaml", set={"train.precision": "fp32"}, device=device)
    x = net.data.train["x"].astype(kind)
    for rows in (np.arange(49, 33, -1), np.array([7]), np.array([3, 3, 0, 49])):
        net.device.write_input("x", np.zeros((16, 6), np.float32))
        net.device.write_rows("x", x, rows)
        net.device.run("predict", len(rows))
        found = net.device.read_output("predict", "prediction", len(rows))
        np.testing.assert_array_equal(found, net.predict(x[rows]))
