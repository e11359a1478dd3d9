"""Field cases about windows, clipping, loss scaling, optimizers and schedules.

Gradients are given as data: the loss is the mean of w x, so its gradient by w is the mean of x.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_cases import assert_near, expected, setup_of
from field_nets import BELOW_ALL, Maker

from bpc.api import Net
from bpc.errors import SpecError
from bpc.train.stepper import Stepper

reals = pytest.mark.parametrize("precision", ["fp64", "fp32"])


def linear(
    make: Maker, start: Sequence[float], train: str, precision: str = "fp64", batch: int = 1
) -> Net:
    """The sum of w x over columns, one row a micro-batch: row x is the gradient."""
    n = len(start)
    return make.build(
        "mul: {name: y, from: [x, w]}",
        data=f"source: synthetic, shape: [{n}], target_shape: [{n}], batch: {batch}",
        loss=f"{{l1: {{scale: {float(n)}}}}}",
        precision=precision,
        train=train,
        parameters={"w": list(start)},
    )


def feed(net: Net, gradients: Any, updates: int = 10) -> Stepper:
    """A stepper over these gradients, one a row."""
    rows = np.asarray(gradients, np.float64)
    return net.stepper((rows, np.full(rows.shape, BELOW_ALL)), updates=updates)


def weight(net: Net) -> Any:
    return net.parameters()["w"]


def numbers(name: str) -> Any:
    """The case's gradients, "nan" and "inf" read as what they say."""
    setup = setup_of(name)
    for key in ("micro_batch_gradients", "gradients", "gradient_per_step"):
        if key in setup:
            return np.array([[float(value) for value in row] for row in setup[key]])
    raise AssertionError(name)


def metrics(result: dict[str, Any]) -> list[dict[str, Any]]:
    text = Path(result["run_dir"], "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def run_text(
    gradients: Any, train: str, precision: str, start: Sequence[float], scale: float | None = None
) -> str:
    """The same as a spec whose data are these gradients, for `net.train`."""
    rows = np.asarray(gradients, np.float64)
    low = np.full(rows.shape, BELOW_ALL).tolist()
    n = rows.shape[1]
    return (
        f"data: {{source: inline, x: {rows.tolist()}, y: {low}, batch: 1, shuffle: false}}\n"
        f"parameters: {{w: {{shape: [{n}], init: {list(start)}}}}}\n"
        f"model:\n  - mul: {{name: y, from: [x, w]}}\nloss: {{l1: {{scale: {scale or n}}}}}\n"
        f"train: {{{train}, precision: {precision}, log_every: 1}}\n"
    )


# -- accumulation ---------------------------------------------------------------------------------


@reals
@pytest.mark.parametrize("cuts", [(1, 3), (4,), (2, 2), (1, 1, 1, 1)])
def test_train_accum_unequal_tokens(make: Maker, precision: str, cuts: tuple[int, ...]) -> None:
    name = "train-accum-unequal-tokens"
    want, batches = expected(name), setup_of(name)["micro_batches"]
    x, t = (np.concatenate([batch[key] for batch in batches])[:, None] for key in "xt")
    net = make.build(
        "mul: {name: p, from: [x, w]}",
        data="source: synthetic, shape: [1], batch: 4",
        loss="mse",
        precision=precision,
        train=f"lr: 0.1, optimizer: sgd, accumulate: {len(cuts)}",
        parameters={"w": [1.0]},
    )
    stepper = net.stepper((x, t))
    assert stepper.step(*np.split(np.arange(4), np.cumsum(cuts)[:-1]))
    assert_near(name, precision, stepper.loss(), want["loss"])
    assert_near(name, precision, net.device.read_state("grad.w"), want["grad"]["w"])
    assert_near(name, precision, weight(net), want["w_after"])


@reals
def test_train_accum_unequal_tokens_of_which_some_do_not_count(make: Maker, precision: str) -> None:
    """Valid tokens by `ignore_index`: a micro-batch may have none."""
    x = np.arange(12.0).reshape(6, 2) / 8
    target = np.array([0, -1, 1, -1, -1, 1])
    moved = []
    for cuts in ([6], [3, 3], [1, 2, 2, 1]):
        net = make.build(
            "mul: {name: p, from: [x, w]}",
            data="source: synthetic, shape: [2], classes: 2, batch: 6",
            loss="{cross_entropy: {ignore_index: -1}}",
            precision=precision,
            train=f"lr: 0.1, optimizer: sgd, accumulate: {len(cuts)}",
            parameters={"w": [1.0, 0.5]},
        )
        stepper = net.stepper((x, target))
        assert stepper.step(*np.split(np.arange(6), np.cumsum(cuts)[:-1]))
        assert stepper.terms() == 3
        moved.append(weight(net))
    for other in moved[1:]:
        assert_near("train-accum-unequal-tokens", precision, other, moved[0])


def test_train_accum_last_window_scale(make: Maker) -> None:
    name = "train-accum-last-window-scale"
    want, gradients = expected(name), numbers(name)
    train = "lr: 0.1, optimizer: sgd, accumulate: 2, epochs: 1"
    net = linear(make, [0.0], train)
    stepper = feed(net, gradients)
    for rows, slope, after in zip(
        ([0, 1], [2, 3], [4]), want["applied_gradients"], want["w_after_each"], strict=True
    ):
        assert stepper.step(*([row] for row in rows))
        assert_near(name, "fp64", net.device.read_state("grad.w"), slope)
        assert_near(name, "fp64", weight(net), after)
    looped = make.net(run_text(gradients, train, "fp64", [0.0]))
    result = looped.train()
    assert result["steps"] == want["updates"]
    assert weight(looped).tobytes() == weight(net).tobytes()


def test_train_accum_schedule_per_update(make: Maker) -> None:
    name = "train-accum-schedule-per-update"
    want, gradients = expected(name), numbers(name)
    train = (
        "lr: 0.1, optimizer: sgd, accumulate: 2, epochs: 1, "
        "schedule: {step: {every: 1, factor: 0.1}}"
    )
    net = make.net(run_text(gradients, train, "fp64", [0.0]))
    rows = metrics(net.train())
    assert_near(name, "fp64", [row["lr"] for row in rows], want["lr_used"])
    assert_near(name, "fp64", weight(net), want["w_after"])
    for value in ("0", "-1", "1.5", "two"):
        with pytest.raises(SpecError) as caught:
            make.net(run_text(gradients, f"lr: 0.1, accumulate: {value}", "fp64", [0.0]))
        found = caught.value.diagnostics[0]
        assert "train.accumulate" in found.message and found.span is not None
    few = make.net(run_text(gradients, "lr: 0.1, accumulate: 9, epochs: 2", "fp64", [0.0]))
    assert few.train()["steps"] == 2


def test_train_accum_constant_divisor(make: Maker) -> None:
    name = "train-accum-constant-divisor"
    net = linear(make, [0.0], "lr: 1.0, optimizer: sgd, accumulate: 3")
    assert feed(net, numbers(name)).step([0], [1], [2])
    assert_near(name, "fp64", weight(net), expected(name)["w_after"])


# -- clipping -------------------------------------------------------------------------------------


def test_clip_once_per_window(make: Maker) -> None:
    name = "clip-once-per-window"
    want = expected(name)
    train = "lr: 1.0, optimizer: sgd, accumulate: 2, clip: {global_norm: 1.0}"
    net = linear(make, [0.0, 0.0], train)
    assert feed(net, numbers(name)).step([0], [1])
    assert_near(name, "fp64", net.device.read_state("grad.w"), want["mean_gradient"])
    assert_near(name, "fp64", net.device.read_scalar("control.norm"), want["norm_before_clip"])
    assert_near(name, "fp64", weight(net), want["w_after"])
    assert_near(name, "fp64", -weight(net), want["clipped"])


def test_clip_after_unscale(make: Maker) -> None:
    name = "clip-after-unscale"
    want, setup = expected(name), setup_of(name)
    cases = [
        (setup["true_gradient"], want["logged_norm"], want["w_after"]),
        (
            want["second"]["true_gradient"],
            want["second"]["logged_norm"],
            want["second"]["w_after"],
        ),
    ]
    train = (
        "lr: 1.0, optimizer: sgd, epochs: 1, clip: {global_norm: 1.0}, loss_scale: {start: 1024}"
    )
    for gradient, norm, after in cases:
        net = make.net(run_text([gradient], train, "fp16", [0.0, 0.0]))
        (row,) = metrics(net.train())
        assert row["scale"] == 1024
        assert_near(name, "fp32", row["gradient_norm"], norm)
        assert_near(name, "fp32", net.device.read_state("master.w"), after)


TWO = """
mul: {name: ya, from: [x, a]}
mul: {name: yb, from: [x2, b]}
add: {name: y, from: [ya, yb]}
"""


def two_parameters(make: Maker, clip: str) -> Net:
    """d loss / da = x and d loss / db = x2."""
    return make.build(
        TWO,
        data="source: synthetic, inputs: {x: [2], x2: [2]}, target_shape: [2], batch: 1",
        loss="{l1: {scale: 2.0}}",
        precision="fp64",
        train=f"lr: 1.0, optimizer: sgd, clip: {clip}",
        parameters={"a": [0.0, 0.0], "b": [0.0, 0.0]},
    )


def test_clip_group_versus_global(make: Maker) -> None:
    name = "clip-group-versus-global"
    want, given = expected(name), setup_of(name)["gradients"]
    batch = {"x": np.array([given["a"]]), "x2": np.array([given["b"]])}
    batch["target"] = np.full((1, 2), BELOW_ALL)
    clips = {
        "global": "{global_norm: 2.5}",
        "per_group": "{groups: {a: 1.0}}",
        "both_group_first": "{global_norm: 2.0, groups: {a: 1.0, b: 10.0}}",
    }
    for key, clip in clips.items():
        net = two_parameters(make, clip)
        assert net.stepper(batch).step([0])
        assert net.device.read_scalar("control.norm") == 5
        for parameter in ("a", "b"):
            moved = -net.parameters()[parameter]
            assert_near(name, "fp64", moved, want[key][parameter])
    # a tied weight has one name, so it has one group; a pattern that nothing is left for is refused
    for groups in ("{c: 1.0}", "{a: 1.0, '*': 2.0}"):
        with pytest.raises(SpecError) as caught:
            two_parameters(make, f"{{groups: {groups}}}")
        assert caught.value.diagnostics[0].span is not None


def test_clip_nonfinite_norm(make: Maker) -> None:
    name = "clip-nonfinite-norm"
    want = expected(name)
    train = "lr: 0.1, optimizer: adam, clip: {global_norm: 1.0}, nonfinite: skip"
    net = linear(make, [1.0, 1.0, 1.0], train, "fp32")
    stepper = feed(net, numbers(name))
    applied = [stepper.step([row]) for row in (0, 1)]
    assert np.array_equal(weight(net), want["w_after_two"])
    for kind in "mv":
        assert not np.any(net.device.read_state(f"{kind}.w"))
    applied.append(stepper.step([2]))
    assert applied == want["steps_applied"]
    assert net.device.read_scalar("control.updates") == want["adam_step_after_three"]
    # Adam's first moment is (1 - beta1) of the clipped gradient
    clipped = net.device.read_state("m.w") / 0.1
    np.testing.assert_allclose(clipped, [1 / 3, 2 / 3, 2 / 3], rtol=2e-6)
    # a run says which parameter and where: 10 x overflows in its first element
    rows = [[3e38, 1.0, 2.0], [1.0, 2.0, 2.0]]
    looped = make.net(run_text(rows, f"{train}, epochs: 1", "fp32", [0.0, 1.0, 1.0], scale=30))
    result = looped.train()
    event = next(row for row in metrics(result) if "event" in row)
    assert result["skipped_steps"] == 1 and event["step"] == 1
    assert event["parameter"] == "w" and event["element"] == [0, 0]


@pytest.mark.parametrize("key", ["a", "b", "c"])
def test_clip_norm_overflow(make: Maker, key: str) -> None:
    name = "clip-norm-overflow"
    want = expected(name)
    count, value, precision = {"a": (4, 5e3, "fp16"), "b": (128, 1e19, "fp32")}.get(
        key, (4, 1e-30, "fp32")
    )
    train = "lr: 1.0, optimizer: sgd, clip: {global_norm: 2.0}, loss_scale: {start: 1.0}"
    net = linear(make, [0.0] * count, train, precision)
    gradients = np.full((1, count), value)
    assert feed(net, gradients).step([0])
    norm = net.device.read_scalar("control.norm")
    tolerance = 1e-6 if key != "a" else 2e-3
    assert norm == pytest.approx(want["norms"][key], rel=tolerance)
    each = want["clipped"].get(f"{key}_each")
    moved = -weight(net)
    wanted = value if isinstance(each, str) else each
    np.testing.assert_allclose(moved, np.full(count, wanted), rtol=tolerance)


# -- loss scaling and steps that are not finite ---------------------------------------------------


def test_amp_skip_does_not_advance(make: Maker) -> None:
    name = "amp-skip-does-not-advance"
    want = expected(name)
    train = (
        "lr: 0.1, optimizer: adam, warmup: {steps: 4}, "
        "loss_scale: {start: 65536, growth_interval: 2}"
    )
    net = linear(make, [1.0], train, "fp16")
    # gradients that fit f16 only below a scale of 65536: the first step overflows by the scale
    stepper = feed(net, [[1.0], [1.0], [1.0]], updates=4)
    read = net.device.read_scalar
    scales, rates = [], []
    for row in range(3):
        scales.append(read("control.scale"))
        if stepper.step([row]):
            rates.append(read("control.lr"))
    assert scales == want["scale_before_each"]
    assert read("control.scale") == want["scale_after"]
    assert read("control.updates") == want["updates_done"] == want["adam_step"]
    assert read("control.window") == want["batches_consumed"]
    assert read("control.good") == 0  # the scale has just grown
    assert_near(name, "fp32", rates, want["lr_used"])
    assert_near(name, "fp32", net.device.read_state("master.w"), want["w_after"])


@reals
def test_adam_step_counter_after_skip(make: Maker, precision: str) -> None:
    name = "adam-step-counter-after-skip"
    want = expected(name)
    train = "lr: 0.01, optimizer: {adam: {beta2: 0.95}}, nonfinite: skip"
    net = linear(make, [0.0], train, precision)
    stepper = feed(net, [[0.1], [np.nan], [-0.2], [0.05]])
    for row, after in enumerate(want["w_after_each"]):
        assert stepper.step([row]) == (row != 1)
        assert_near(name, precision, weight(net), after)
    assert net.device.read_scalar("control.updates") == want["step"]


@reals
def test_adam_epsilon_placement(make: Maker, precision: str) -> None:
    name = "adam-epsilon-placement"
    net = linear(make, [0.0], "lr: 0.001, optimizer: {adam: {eps: 1e-3}}", precision)
    stepper = feed(net, numbers(name))
    for row, after in enumerate(expected(name)["w_after_each"]):
        assert stepper.step([row])
        assert_near(name, precision, weight(net), after)


def test_amp_bad_microbatch_in_window(make: Maker) -> None:
    name = "amp-bad-microbatch-in-window"
    want, gradients = expected(name), numbers(name)
    train = "lr: 1.0, optimizer: sgd, accumulate: 2, nonfinite: skip"
    net = linear(make, [0.0], train, "fp32")
    stepper = feed(net, gradients)
    done = [stepper.step([0], [1]), stepper.step([2], [3])]
    assert [k for k, good in enumerate(done) if not good] == want["skipped_windows"]
    assert net.device.read_scalar("control.updates") == want["updates"]
    # nothing of the bad window is in the next one's gradient: (2 + 4) / 2
    assert net.device.read_state("grad.w") == 3
    assert_near(name, "fp32", weight(net), want["w_after"])
    # the second micro-batch overflows: rows of the data tell which it was
    rows = [[1.0], [3e38], [2.0], [4.0]]
    looped = make.net(run_text(rows, f"{train}, epochs: 1", "fp32", [2.0]))
    result = looped.train()
    event = next(row for row in metrics(result) if "event" in row)
    assert (event["step"], event["batch"], event["row"]) == (1, 2, 1)
    assert_near(name, "fp32", weight(looped), 2 + want["w_after"])


# -- schedules and decay --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_sched_warmup_first_step(make: Maker, precision: str) -> None:
    name = "sched-warmup-first-step"
    want = expected(name)["lr_used"]
    ones = np.ones((6, 1))
    for warmup, rates in ((4, want), (0, [0.1] * 6), (1, [0.1] * 6)):
        train = f"lr: 0.1, optimizer: sgd, warmup: {{steps: {warmup}}}"
        net = linear(make, [0.0], train, precision)
        stepper = feed(net, ones, updates=6)
        used = []
        for row in range(6):
            before = weight(net)
            assert stepper.step([row])
            used.append(net.device.read_scalar("control.lr"))
            assert before != weight(net)
        assert_near(name, precision, used, rates)
        assert_near(name, precision, -weight(net), np.sum(rates))


def test_wd_excluded_parameters(make: Maker) -> None:
    name = "wd-excluded-parameters"
    want = expected(name)["after"]
    layers = """
linear: {out: 1, name: linear, init: 2.0, bias_init: 2.0}
layernorm: {name: norm}
"""

    def step(optimizer: str) -> Net:
        net = make.build(
            layers,
            data="source: synthetic, shape: [1], rows: 4, batch: 4",
            loss="{l1: {scale: 0.0}}",
            precision="fp64",
            train=f"optimizer: {optimizer}",
        )
        net.load_parameters({"norm.gamma": [2.0], "norm.beta": [2.0]})
        assert net.stepper().step(range(4))
        return net

    net = step("{adamw: {lr: 0.1, weight_decay: 0.25}}")
    for parameter, value in net.parameters().items():
        assert_near(name, "fp64", value, want[parameter])
        for kind in "mv":
            assert not np.any(net.device.read_state(f"{kind}.{parameter}"))
    listed = net.write(out="written")["parameters"]
    assert {row["name"]: row["decay_exempt"] for row in listed} == {
        "linear.weight": False,
        "linear.bias": True,
        "norm.gamma": True,
        "norm.beta": True,
    }
    coupled = step("{adam: {lr: 0.1, weight_decay: 0.25}}")
    assert coupled.parameters()["linear.weight"] == pytest.approx(1.9, rel=1e-7)
