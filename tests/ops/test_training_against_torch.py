"""Ten training steps of the reference against PyTorch: every parameter and every loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graphs import assert_close, generator, read_spec
from training import Batch, Trainer

STEPS, WARMUP, LR = 10, 3, 0.01
SMALL, MNIST = (5, 8, 6, 3), (784, 256, 128, 10)


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer as a spec writes it, and as PyTorch does."""

    text: str
    make: Callable[[Any], Any]


RULES = {
    "adam": Rule("adam: {}", lambda p: torch.optim.Adam(p, eps=1e-8)),
    "adam-l2": Rule(
        "adam: {beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1}",
        lambda p: torch.optim.Adam(p, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
    "adamw": Rule("adamw: {weight_decay: 0.3}", lambda p: torch.optim.AdamW(p, weight_decay=0.3)),
    "sgd": Rule("sgd: {}", lambda p: torch.optim.SGD(p)),
    "momentum": Rule(
        "sgd: {momentum: 0.9, weight_decay: 0.05}",
        lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=0.05),
    ),
}


def spec_text(sizes: Sequence[int], optimizer: str, precision: str, further: str = "") -> str:
    layers = "  - relu\n".join(f"  - linear: {size}\n" for size in sizes[1:])
    return (
        "bpc: 1\nname: mlp\n"
        f"data: {{source: synthetic, batch: 128, shape: [{sizes[0]}], classes: {sizes[-1]}}}\n"
        f"model:\n{layers}loss: cross_entropy\n"
        f"train:\n  steps: {STEPS}\n  precision: {precision}\n  lr: {LR}\n"
        f"  optimizer: {{{optimizer}}}\n  clip: {{global_norm: 1.0}}\n"
        f"  warmup: {{steps: {WARMUP}}}\n  schedule: {{cosine: 0.1}}\n{further}"
    )


def batches(sizes: Sequence[int], rows: int, count: int = STEPS) -> list[Batch]:
    rng = generator("batches", tuple(sizes))
    # 2 and not 1, so that the first gradients are clipped
    inputs = [2 * rng.normal(size=(rows, sizes[0])).astype(np.float32) for _ in range(count)]
    return [(x, rng.integers(0, sizes[-1], rows)) for x in inputs]


def rate(step: int) -> float:
    """The rate of update `step`, counted from 1: linear warmup, then half a cosine to a tenth."""
    progress = min(max((step - 1 - WARMUP) / (STEPS - WARMUP), 0.0), 1.0)
    return LR * min(1.0, step / WARMUP) * (0.1 + 0.9 * 0.5 * (1 + cos(pi * progress)))


class Peer:
    """The same network in PyTorch, in float64."""

    def __init__(self, start: dict[str, np.ndarray], rule: Rule):
        self.named = {
            name: torch.tensor(np.asarray(value, np.float64), requires_grad=True)
            for name, value in start.items()
        }
        matrices = [p for p in self.named.values() if p.ndim > 1]
        vectors = {"params": [p for p in self.named.values() if p.ndim == 1], "weight_decay": 0.0}
        self.optimizer = rule.make([{"params": matrices}, vectors])
        self.norms: list[float] = []

    def step(self, number: int, batch: Batch) -> float:
        x, parameters = torch.tensor(batch[0], dtype=torch.float64), list(self.named.values())
        for k in range(0, len(parameters), 2):
            x = x @ parameters[k] + parameters[k + 1]
            x = torch.relu(x) if k + 2 < len(parameters) else x
        loss = F.cross_entropy(x, torch.tensor(batch[1]))
        self.optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters]))
        self.norms.append(norm)
        for p in parameters:  # PyTorch's clip_grad_norm_ adds 1e-6 to the norm
            p.grad *= min(1.0, 1.0 / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(number)
        self.optimizer.step()
        return loss.item()


@dataclass(slots=True)
class Distance:
    """How far a run is from PyTorch's, over each tensor's largest element; `mean`: of tensors."""

    worst: float = 0.0
    mean: float = 0.0

    def add(self, found: object, expected: object) -> None:
        want = np.asarray(expected, dtype=np.float64)
        off = (np.asarray(found, dtype=np.float64) - want) / np.abs(want).max()
        self.worst = max(self.worst, float(np.abs(off).max()))
        if off.size > 1:
            self.mean = max(self.mean, float(np.sqrt(np.mean(off * off))))


def run_both(
    sizes: Sequence[int], rule: Rule, precision: str, rows: int
) -> tuple[Distance, list[float]]:
    """The distance over all parameters, losses and norms of ten steps; and the norms."""
    trainer = Trainer(read_spec(spec_text(sizes, rule.text, precision)), precision == "fp64")
    peer = Peer(trainer.weights(), rule)
    distance = Distance()
    for number, batch in enumerate(batches(sizes, rows), 1):
        distance.add(trainer.step([batch]), peer.step(number, batch))
        assert trainer.control("lr") == pytest.approx(rate(number), rel=1e-15)
        assert trainer.control("updates") == trainer.control("window") == number
        distance.add(trainer.control("norm"), peer.norms[-1])
    for name, value in trainer.weights().items():
        distance.add(value, peer.named[name].detach().numpy())
    return distance, peer.norms


# Rounding alone, and Adam divides each gradient by its own size: where a sum of 128 terms nearly
# cancels, its rounding becomes a share of the step. With 235,146 weights some cancel to 1e-3, so
# the worst element is far from the mean one; PyTorch's own float32 run is 1.4e-4 (worst) and
# 8e-7 (mean) away from its float64 run of the large network. Neither may be four times that here.
WORST = {"fp64": 1e-10, "fp32": 5e-4}
MEAN = {"fp64": 1e-12, "fp32": 3e-6}


@pytest.mark.parametrize("precision", WORST)
@pytest.mark.parametrize("rule", RULES)
def test_small_network(rule: str, precision: str) -> None:
    distance, norms = run_both(SMALL, RULES[rule], precision, 16)
    assert distance.worst < (WORST["fp64"] if precision == "fp64" else 2e-5)
    assert distance.mean < MEAN[precision]
    assert max(norms) > 1.0 > min(norms), "some steps are clipped and some are not"


@pytest.mark.parametrize("precision", WORST)
def test_mnist_network(precision: str) -> None:
    distance, norms = run_both(MNIST, RULES["adam"], precision, 128)
    assert distance.worst < WORST[precision]
    assert distance.mean < MEAN[precision]
    assert max(norms) > 1.0, "some steps are clipped"


def test_unequal_micro_batches_are_one_large_batch() -> None:
    spec = read_spec(spec_text(SMALL, RULES["adam"].text, "fp64"))
    whole, parts = Trainer(spec, exact=True), Trainer(spec, exact=True)
    for x, target in batches(SMALL, 16):
        cut = [slice(0, 7), slice(7, 8), slice(8, 16)]
        loss = whole.step([(x, target)])
        assert parts.step([(x[k], target[k]) for k in cut]) == pytest.approx(loss, rel=1e-14)
    for name, value in whole.weights().items():
        assert_close(parts.weights()[name], value, 1e-12, name)


def test_the_divisor_only_moves_rounding() -> None:
    """The number of terms is a guess that the update corrects: any power of two is as good."""
    spec = read_spec(spec_text(SMALL, RULES["adam"].text, "fp64"))
    one, other = Trainer(spec, exact=True), Trainer(spec, exact=True)
    for batch in batches(SMALL, 16):
        one.step([batch], terms=16.0)
        other.step([batch], terms=1.0)
    for name, value in one.weights().items():
        assert np.array_equal(other.weights()[name], value), name


# -- 16 bits ---------------------------------------------------------------------------------------

SCALED = "  loss_scale: {start: 65536, growth_interval: 2}\n"


def without_control(trainer: Trainer) -> dict[str, np.ndarray]:
    kept = {k: v for k, v in trainer.states.items() if not k.startswith(("control.", "grad."))}
    return {name: value for name, value in kept.items() if not name.startswith("norm.")}


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    spec = read_spec(spec_text(SMALL, RULES["adam"].text, "fp16", SCALED))
    trainer = Trainer(spec, exact=False)
    data = batches(SMALL, 16)
    for number in (1, 2):
        trainer.step([data[number]])
        assert trainer.control("found_inf") == 0
        assert trainer.control("updates") == number
    assert trainer.control("scale") == 131072, "two good updates make it grow"
    before, rate_before = without_control(trainer), trainer.control("lr")
    x, target = data[3]
    trainer.step([(x, target), (np.full_like(x, 6e4), target)])
    assert trainer.control("found_inf") == 1
    assert trainer.control("scale") == 65536
    assert trainer.control("good") == 0
    assert (trainer.control("updates"), trainer.control("window")) == (2, 3)
    for name, value in without_control(trainer).items():
        assert np.array_equal(value, before[name]), name
    trainer.step([data[4]])
    assert (trainer.control("updates"), trainer.control("good")) == (3, 1)
    assert trainer.control("lr") == pytest.approx(rate(3), rel=1e-15) != rate_before
    assert not np.array_equal(trainer.weights()["linear1.weight"], before["linear1.weight"])


@pytest.mark.parametrize(("precision", "bound"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_small_types_follow_the_exact_run(precision: str, bound: float) -> None:
    """Weights are full-precision masters; only activations and gradients are rounded."""
    rule = RULES["momentum"]
    further = SCALED.replace("65536", "1024") if precision == "fp16" else ""
    text = spec_text(SMALL, rule.text, precision, further)
    trainer = Trainer(read_spec(text), exact=False)
    peer = Peer(trainer.weights(), rule)
    for number, batch in enumerate(batches(SMALL, 16), 1):
        loss = trainer.step([batch])
        assert loss == pytest.approx(peer.step(number, batch), rel=bound)
    assert trainer.control("updates") == STEPS
    for name, value in trainer.weights().items():
        assert_close(value, peer.named[name].detach().numpy(), bound, name)
        low = trainer.states[name]
        assert low.dtype == np.float32 and not np.array_equal(low, value), "a rounded copy"


def test_a_window_of_ignored_targets_moves_nothing_but_the_counters() -> None:
    text = spec_text(SMALL, "sgd: {}", "fp32").replace(
        "loss: cross_entropy", "loss: {cross_entropy: {ignore_index: 0}}"
    )
    trainer = Trainer(read_spec(text), exact=False)
    start = trainer.weights()
    x, target = batches(SMALL, 16)[0]
    trainer.states["control.divisor"] = np.asarray(1.0)
    trainer._run(trainer.first, {"x": x, "target": 0 * target}, len(x))
    trainer._run(trainer.update, {}, 1)
    assert (trainer.control("loss"), trainer.control("weight")) == (0.0, 0.0)
    assert trainer.control("found_inf") == 0 and trainer.control("norm") == 0.0
    for name, value in trainer.weights().items():
        assert np.array_equal(value, start[name]), name
