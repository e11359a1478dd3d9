"""Field cases about dropout, plans that repeat, and what a plan counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from field_cases import assert_near, expected, inputs_of
from field_nets import BELOW_ALL, Maker, find_plans

from bpc.api import Net
from bpc.errors import SpecError

TWO_DROPOUTS = """
mul: {name: x, from: [one, w]}
dropout: {p: 0.5, name: a}
mul: {name: b, from: [a, a]}
dropout: {p: 0.25, name: c}
"""


def two_dropouts(make: Maker, memory: int | None) -> Net:
    """x is a weight [64, 64], of which the loss is the sum after both."""
    return make.build(
        TWO_DROPOUTS,
        data="source: synthetic, inputs: {one: [64, 64]}, target_shape: [64, 64], batch: 1, "
        "rows: 1, test_rows: 1",
        loss=f"{{l1: {{scale: {64 * 64}}}}}",
        train="lr: 0.0, optimizer: sgd",
        parameters={"w": np.ones((64, 64))},
        memory=memory,
    )


def test_drop_budget_recompute_mask(make: Maker) -> None:
    want = expected("drop-budget-recompute-mask")
    plans = find_plans(lambda memory: two_dropouts(make, memory))
    batch = {"one": np.ones((1, 64, 64)), "target": np.zeros((1, 64, 64))}
    runs = []
    for _, net in plans:
        stepper = net.stepper(batch)
        steps = []
        for _ in range(3):
            assert stepper.step([0])
            steps.append((stepper.loss(), net.device.read_state("grad.w")))
        runs.append(steps)
    for steps in runs[1:]:
        for (loss, slope), (first_loss, first) in zip(steps, runs[0], strict=True):
            assert loss == first_loss and slope.tobytes() == first.tobytes()
    kept = []
    for loss, slope in runs[0]:
        alive = slope != 0
        np.testing.assert_allclose(slope[alive], want["grad_where_kept"], rtol=2e-6)
        # every element that is kept gives 16 / 3 to the loss, so none has a gradient without it
        assert loss == pytest.approx(want["value_where_kept"] * alive.sum(), rel=2e-6)
        assert abs(alive.mean() - 0.5 * 0.75) < 0.04
        kept.append(alive)
    assert not any(np.array_equal(kept[k], kept[k - 1]) for k in range(3))
    # the first layer alone keeps half; the second keeps another choice of what is left
    net = two_dropouts(make, None)
    batch["target"] = np.full((1, 64, 64), BELOW_ALL)
    by_layer = net.gradients(batch, ["b"])
    second = by_layer["b"] != 0
    assert abs(second.mean() - 0.75) < 0.04
    first = make.build(
        "mul: {name: x, from: [one, w]}\ndropout: {p: 0.5, name: a}",
        data="source: synthetic, inputs: {one: [64, 64]}, target_shape: [64, 64], batch: 1",
        parameters={"w": np.ones((64, 64))},
    ).gradients(batch, ["w"])["w"]
    assert abs((first != 0).mean() - 0.5) < 0.04
    assert np.array_equal((first != 0) & second[0], kept[0])
    assert not np.array_equal(first != 0, second[0])


HIDDEN = """
{repeat: DEPTH, name: hidden, layers: [linear: 32, relu, dropout: 0.1]}
linear: {out: 4, name: head}
"""


@pytest.mark.parametrize(("depth", "least_plans"), [(2, 2), (6, 3)])
def test_drop_checkpoint_rng_training(make: Maker, depth: int, least_plans: int) -> None:
    """50 steps under plans from keeping all to repeating most; the deeper one has some between."""

    def compile_with(memory: int | None) -> Net:
        return make.build(
            HIDDEN.replace("DEPTH", str(depth)),
            data="source: synthetic, shape: [16], classes: 4, rows: 256, test_rows: 8, batch: 64",
            loss="cross_entropy",
            train="lr: 1e-2, optimizer: adam, steps: 50",
            memory=memory,
        )

    plans = find_plans(compile_with)
    assert len(plans) >= least_plans and plans[0][0] == 0 < plans[-1][0]
    chosen = sorted({0, len(plans) // 2, len(plans) - 1})
    runs = []
    for _, net in (plans[k] for k in chosen):
        stepper = net.stepper(updates=50)
        losses = []
        for step in range(50):
            stepper.step(np.arange(step * 64, step * 64 + 64) % 256)
            losses.append(stepper.loss())
        weights = {name: value.tobytes() for name, value in net.parameters().items()}
        runs.append((losses, weights, net.device.read_scalar("control.window")))
    assert runs[0][2] == 50 and len(set(runs[0][0])) == 50
    for run in runs[1:]:
        assert run == runs[0]


def test_drop_rate_one(make: Maker) -> None:
    name = "drop-rate-one"
    want = expected(name)
    x = inputs_of(name)["x"][None]
    for p, key in (("0.0", "p0"), ("1.0", "p1")):
        net = make.build(
            f"mul: {{from: [x, w]}}\ndropout: {{p: {p}}}",
            data="source: synthetic, shape: [3], target_shape: [3], batch: 1, rows: 1",
            loss="{l1: {scale: 3.0}}",
            train="lr: 0.0, optimizer: sgd",
            parameters={"w": np.ones(3)},
        )
        stepper = net.stepper((x, np.full((1, 3), BELOW_ALL)))
        assert stepper.step([0])
        # d loss / dw is x where an element is kept
        kept = net.device.read_state("grad.w") / x[0]
        assert np.array_equal(kept, want[key]["grad"])
        slope = net.gradients((x, np.full((1, 3), BELOW_ALL)), ["x"])["x"]
        assert np.array_equal(slope[0], want[key]["grad"])
        far = net.stepper((x, np.full((1, 3), -8.0)))
        far.step([0])
        assert far.loss() == pytest.approx(sum(want[key]["y"]) + 24, rel=1e-12)
        assert np.array_equal(net.predict(x), x)
    for p in ("-0.1", "1.1", ".nan"):
        with pytest.raises(SpecError) as caught:
            make.build(f"dropout: {{p: {p}}}", data="source: digits")
        found = caught.value.diagnostics[0]
        assert found.span is not None and found.message.startswith("dropout: p must be")


def test_rec_inplace_inside_segment(make: Maker) -> None:
    precision = "fp64"
    name = "rec-inplace-inside-segment"
    want = expected(name)
    factors = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
    layers = "layernorm: {eps: 1e-5, from: x}\nrelu: {name: y}"
    found = make.probe(layers, inputs_of(name), [2, 3], precision=precision, upstream=factors)
    assert_near(name, precision, np.sum(found.value * factors), want["loss"])
    assert_near(name, precision, found.gradients["x"], want["grad"]["x"])

    # a longer chain, whose segments are repeated under small budgets
    def compile_with(memory: int | None) -> Net:
        return make.build(
            "{repeat: 6, layers: [layernorm, relu, linear: 16]}\nlayernorm\nrelu\nlinear: 1",
            data="source: synthetic, shape: [16], rows: 32, batch: 32",
            loss="mse",
            precision=precision,
            memory=memory,
        )

    found_runs: list[dict[str, Any]] = []
    plans = find_plans(compile_with, 6)
    for _, net in plans:
        net.stepper().step(range(32))
        read = net.device.read_state
        names = [state.name for state in net.entries.states_of("gradient")]
        assert len(names) == len(net.parameters())
        found_runs.append({name: read(name).tobytes() for name in names})
        assert all(np.any(read(name)) for name in names)
    assert plans[-1][0] > 0
    assert all(run == found_runs[0] for run in found_runs)


def test_mem_estimate_counts_everything(make_reference: Maker) -> None:
    name = "mem-estimate-counts-everything"
    want = expected(name)["bytes"]

    def plan(precision: str) -> dict[str, Any]:
        net = make_reference.build(
            "linear: {out: 1000, bias: false}",
            data="source: synthetic, shape: [1000], target_shape: [1000], batch: 10",
            loss="mse",
            precision=precision,
            train="lr: 1e-3, optimizer: adam",
        )
        facts = net.plan_memory()
        assert sum(facts["classes"].values()) + facts["unused_bytes"] == facts["planned_peak_bytes"]
        return facts

    def bytes_of(facts: dict[str, Any], *names: str) -> int:
        found = {tensor["name"]: tensor["bytes"] for tensor in facts["tensors"]}
        return sum(found[name] for name in names)

    facts = plan("fp32")
    weight, moments = "linear1.weight", ("m.linear1.weight", "v.linear1.weight")
    assert bytes_of(facts, weight) == want["parameters"]
    assert bytes_of(facts, f"grad.{weight}") == want["gradients"]
    assert bytes_of(facts, *moments) == want["adam_moments"]
    assert bytes_of(facts, "x") == want["saved_input_for_dW"]
    assert bytes_of(facts, "linear1") == want["output"] or facts["classes"]["workspace"] > 0
    assert facts["classes"]["parameters"] >= want["parameters"]
    assert facts["classes"]["gradients"] >= want["gradients"]
    assert facts["classes"]["optimizer"] >= want["adam_moments"]
    least = sum(value for key, value in want.items() if key != "output")
    assert facts["planned_peak_bytes"] >= least
    half, want = plan("fp16"), expected(name)["bytes_fp16_with_master"]
    assert bytes_of(half, weight) == want["parameters_fp16"]
    assert bytes_of(half, f"master.{weight}") == want["master_fp32"]
    assert bytes_of(half, *moments) == want["adam_moments"]
    assert bytes_of(half, f"grad.{weight}") in want["gradients_fp16_or_fp32"]
