"""A hundred updates of every optimizer against PyTorch's, fed with the same gradients.

The update graph alone runs: gradients are written into their states, so that nothing but the
optimizer, its groups, its schedule and its clipping decides where the weights go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
    StepLR,
)

from bpc import api
from bpc.entries import UPDATE
from bpc.train.control import initial_control

STEPS, LR = 100, 0.01
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-6}
COMPILED = "cpu"  # a compiled text takes seconds: of each kind of node one case is enough
TORCH_TYPES = {"fp64": torch.float64, "fp32": torch.float32}

NET = """\
bpc: 1
name: groups
data: {{source: synthetic, shape: [6], classes: 3, rows: 50, test_rows: 21, batch: 16}}
model:
  - linear: {{name: fc1, out: 8}}
  - layernorm: {{name: ln}}
  - relu
  - linear: {{name: fc2, out: 3}}
loss: cross_entropy
train:
  steps: {steps}
  lr: {lr}
  precision: {precision}
  optimizer: {optimizer}
{more}"""

MATRICES, FIRST, SECOND = ("fc1.weight", "fc2.weight"), "fc1.weight", "fc2.weight"


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Updates:
    """The update entry point of a small network on a device, fed with gradients."""

    def __init__(self, optimizer: str, precision: str, device: str, more: str = ""):
        text = NET.format(steps=STEPS, lr=LR, precision=precision, optimizer=optimizer, more=more)
        Path("net.yaml").write_text(text, encoding="utf-8")
        self.net = api.compile("net.yaml", device=device)
        self.device = self.net.device
        for name, value in initial_control(self.net.spec, STEPS).items():
            self.device.write_scalar(name, value)
        self.device.write_scalar("control.divisor", 4.0)
        self.device.write_scalar("control.weight", 8.0)

    def step(self, gradients: dict[str, np.ndarray]) -> None:
        """One update; what is stored are sums: twice the gradient, by divisor and weight."""
        for name, value in gradients.items():
            self.device.write_state(f"grad.{name}", 2 * value)
        self.device.run(UPDATE, self.device.rows)

    def lr(self) -> float:
        return self.device.read_scalar("control.lr")


def draw_gradients(net: api.Net, step: int) -> dict[str, np.ndarray]:
    """Normal draws of changing size, the same for every precision; held by float32."""
    rng = np.random.default_rng(1000 + step)
    scale = 10 ** rng.uniform(-2, 0.5)
    shapes = {name: value.shape for name, value in net.parameters().items()}
    return {
        name: (scale * rng.normal(size=shape)).astype(np.float32).astype(np.float64)
        for name, shape in shapes.items()
    }


Peers = dict[str, torch.Tensor]


def make_peers(net: api.Net, precision: str) -> Peers:
    kind = TORCH_TYPES[precision]
    return {
        name: torch.tensor(np.asarray(value, np.float64), dtype=kind, requires_grad=True)
        for name, value in net.parameters().items()
    }


def without_decay(peers: Peers, **matrices: Any) -> list[dict[str, Any]]:
    """PyTorch's groups as bpc has them by default: vectors are not decayed."""
    vectors = [value for name, value in peers.items() if name not in MATRICES]
    decayed = [peers[name] for name in MATRICES]
    return [{"params": decayed, **matrices}, {"params": vectors, "weight_decay": 0.0}]


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer as a spec writes it, and as PyTorch does."""

    text: str
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


optim = torch.optim
RULES = {
    "sgd": Rule("{sgd: {weight_decay: 0.1}}", lambda p: optim.SGD(p, LR, weight_decay=0.1)),
    "momentum": Rule("{sgd: {momentum: 0.9}}", lambda p: optim.SGD(p, LR, momentum=0.9)),
    "nesterov": Rule(
        "{sgd: {momentum: 0.9, nesterov: true, weight_decay: 0.05}}",
        lambda p: optim.SGD(p, LR, momentum=0.9, nesterov=True, weight_decay=0.05),
    ),
    "adam": Rule(
        "{adam: {beta1: 0.8, weight_decay: 0.1}}",
        lambda p: optim.Adam(p, LR, betas=(0.8, 0.999), weight_decay=0.1),
    ),
    "adamw": Rule(
        "{adamw: {beta2: 0.95, eps: 1e-6, weight_decay: 0.3}}",
        lambda p: optim.AdamW(p, LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.3),
    ),
    "rmsprop": Rule("rmsprop", lambda p: optim.RMSprop(p, LR)),
    "rmsprop-momentum": Rule(
        "{rmsprop: {alpha: 0.9, momentum: 0.8, weight_decay: 0.02}}",
        lambda p: optim.RMSprop(p, LR, alpha=0.9, momentum=0.8, weight_decay=0.02),
    ),
    "rmsprop-centered": Rule(
        "{rmsprop: {alpha: 0.95, centered: true, eps: 1e-4}}",
        lambda p: optim.RMSprop(p, LR, alpha=0.95, centered=True, eps=1e-4),
    ),
    "rmsprop-both": Rule(
        "{rmsprop: {centered: true, momentum: 0.5, eps: 1e-3, weight_decay: 0.1}}",
        lambda p: optim.RMSprop(p, LR, centered=True, momentum=0.5, eps=1e-3, weight_decay=0.1),
    ),
}


def assert_close(found: np.ndarray, expected: np.ndarray, relative: float, what: str) -> None:
    """Within `relative` of the tensor's largest element."""
    worst = float(np.abs(np.asarray(found, np.float64) - expected).max())
    largest = float(np.abs(expected).max())
    assert worst <= relative * largest, f"{what}: off by {worst:.3g} of {largest:.3g}"


def compare(
    updates: Updates,
    peers: Peers,
    optimizer: torch.optim.Optimizer,
    tolerance: float,
    scheduler: LRScheduler | None = None,
    clip: Callable[[], None] = lambda: None,
) -> None:
    start = updates.net.parameters()
    for number in range(1, STEPS + 1):
        gradients = draw_gradients(updates.net, number)
        updates.step(gradients)
        for name, peer in peers.items():
            peer.grad = torch.tensor(gradients[name], dtype=peer.dtype)
        clip()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if number in (1, 10, STEPS):
            for name, value in updates.net.parameters().items():
                want = peers[name].detach().numpy().astype(np.float64)
                assert_close(value, want, tolerance, f"{name} after {number} updates")
    for name, value in updates.net.parameters().items():
        assert not np.array_equal(value, start[name]), f"{name} does not move"


@pytest.mark.parametrize(
    ("precision", "device"), [("fp64", "reference"), ("fp32", "reference"), ("fp32", COMPILED)]
)
@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_is_that_of_pytorch(rule: str, precision: str, device: str) -> None:
    updates = Updates(RULES[rule].text, precision, device)
    peers = make_peers(updates.net, precision)
    optimizer = RULES[rule].make(without_decay(peers))
    compare(updates, peers, optimizer, TOLERANCE[precision])


# -- Lion -----------------------------------------------------------------------------------------


def lion(w: np.ndarray, gradients: Sequence[np.ndarray], decay: float) -> np.ndarray:
    """The loop of the paper in float64: betas 0.9 and 0.99."""
    moment = np.zeros_like(w)
    for g in gradients:
        direction = np.sign(0.9 * moment + 0.1 * g)
        w = w - LR * (direction + decay * w)
        moment = 0.99 * moment + 0.01 * g
    return w


@pytest.mark.parametrize(
    ("precision", "device"),
    [("fp64", "reference"), ("fp32", "reference"), ("fp64", COMPILED), ("fp32", COMPILED)],
)
def test_lion_is_the_loop_of_its_paper(precision: str, device: str) -> None:
    updates = Updates("{lion: {weight_decay: 0.2}}", precision, device)
    start = updates.net.parameters()
    drawn = [draw_gradients(updates.net, number) for number in range(1, STEPS + 1)]
    for gradients in drawn:
        updates.step(gradients)
    for name, value in updates.net.parameters().items():
        decay = 0.2 if name in MATRICES else 0.0
        want = lion(start[name].astype(np.float64), [item[name] for item in drawn], decay)
        assert_close(value, want, TOLERANCE[precision], name)


# -- groups ---------------------------------------------------------------------------------------

GROUPS = """\
  groups:
    "fc*.weight": {lr_factor: 0.25}
    "fc2.*": {lr: 0.05, weight_decay: 0.5}
    "ln.beta": {lr: 0}
"""
AS_A_LIST = """\
  groups:
    - {match: "fc?.w*", lr_factor: 0.25}
    - match: [fc2.weight, fc2.bias]
      lr: 0.05
      weight_decay: 0.5
    - {match: "*.beta", lr: 0}
"""


def grouped(peers: Peers, decay: float) -> list[dict[str, Any]]:
    """The same groups for PyTorch."""
    return [
        {"params": [peers[FIRST]], "lr": 0.25 * LR, "weight_decay": decay},
        {"params": [peers[SECOND], peers["fc2.bias"]], "lr": 0.05, "weight_decay": 0.5},
        {"params": [peers["ln.gamma"], peers["fc1.bias"]], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize(
    ("device", "rule", "groups"),
    [
        ("reference", "nesterov", GROUPS),
        ("reference", "adam", AS_A_LIST),
        ("reference", "adamw", GROUPS),
        ("reference", "rmsprop-momentum", AS_A_LIST),
        (COMPILED, "adamw", GROUPS),
        (COMPILED, "momentum", AS_A_LIST),
    ],
)
def test_groups_have_rates_and_decays_of_their_own(device: str, rule: str, groups: str) -> None:
    more = groups + "  warmup: {steps: 5}\n  schedule: {cosine: 0.1}\n"
    updates = Updates(RULES[rule].text, "fp64", device, more)
    peers = make_peers(updates.net, "fp64")
    still = peers.pop("ln.beta").detach().numpy()
    decay = RULES[rule].make([{"params": [torch.zeros(1)]}]).param_groups[0]["weight_decay"]
    optimizer = RULES[rule].make(grouped(peers, decay))
    warm = LambdaLR(optimizer, lambda made: min(1.0, (made + 1) / 5))
    later = CosineLambda(optimizer)
    peers_of = dict(peers)
    for number in range(1, STEPS + 1):
        gradients = draw_gradients(updates.net, number)
        updates.step(gradients)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * warm.lr_lambdas[0](number - 1) * later(number)
        for name, peer in peers_of.items():
            peer.grad = torch.tensor(gradients[name])
        optimizer.step()
    for name, value in updates.net.parameters().items():
        want = still if name == "ln.beta" else peers_of[name].detach().numpy()
        assert_close(value, want, 1e-12, name)


class CosineLambda:
    """The share of the cosine after five updates of warmup, for each update from 1."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        probe = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
        scheduler = CosineAnnealingLR(probe, STEPS - 5, 0.1)
        self.shares = [1.0] * 5
        for _ in range(STEPS):
            self.shares.append(scheduler.get_last_lr()[0])
            probe.step()
            scheduler.step()

    def __call__(self, number: int) -> float:
        return self.shares[number - 1]


# -- schedules ------------------------------------------------------------------------------------


def cosine_after_warmup(optimizer: torch.optim.Optimizer) -> LRScheduler:
    warm = LambdaLR(optimizer, lambda made: (made + 1) / 10)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, STEPS - 10, 0.0)], [10])


def linear_after_warmup(optimizer: torch.optim.Optimizer) -> LRScheduler:
    warm = LambdaLR(optimizer, lambda made: (made + 1) / 10)
    return SequentialLR(optimizer, [warm, LinearLR(optimizer, 1.0, 0.2, STEPS - 10)], [10])


def milestones_with_warmup(made: int) -> float:
    return min(1.0, (made + 1) / 20) * 0.3 ** sum(made >= m for m in (10, 40, 41))


SCHEDULES: dict[str, tuple[str, Callable[[torch.optim.Optimizer], LRScheduler]]] = {
    "constant": ("constant", lambda o: LambdaLR(o, lambda made: 1.0)),
    "warmup": (
        "constant\n  warmup: {steps: 7}",
        lambda o: LambdaLR(o, lambda m: min(1, (m + 1) / 7)),
    ),
    "warmup-share": (
        "constant\n  warmup: {share: 0.07}",
        lambda o: LambdaLR(o, lambda made: min(1.0, (made + 1) / 7)),
    ),
    "cosine": ("{cosine: 0.1}", lambda o: CosineAnnealingLR(o, STEPS, 0.1 * LR)),
    "cosine-warmup": ("cosine\n  warmup: {share: 0.1}", cosine_after_warmup),
    "linear": ("{linear: 0.25}", lambda o: LinearLR(o, 1.0, 0.25, STEPS)),
    "linear-to-0": ("linear", lambda o: LinearLR(o, 1.0, 0.0, STEPS)),
    "linear-warmup": ("{linear: 0.2}\n  warmup: {steps: 10}", linear_after_warmup),
    "step": ("{step: {every: 30, factor: 0.5}}", lambda o: StepLR(o, 30, 0.5)),
    "step-default": ("{step: 30}", lambda o: StepLR(o, 30, 0.1)),
    "milestones": (
        "{step: {milestones: [30, 80], factor: 0.2}}",
        lambda o: MultiStepLR(o, [30, 80], 0.2),
    ),
    "one-milestone": (
        "{step: {milestones: 30, factor: 0.2}}",
        lambda o: MultiStepLR(o, [30], 0.2),
    ),
    "milestones-warmup": (
        "{step: {milestones: [10, 40, 41], factor: 0.3}}\n  warmup: {steps: 20}",
        lambda o: LambdaLR(o, milestones_with_warmup),
    ),
    "inverse-sqrt": ("inverse_sqrt", lambda o: LambdaLR(o, lambda made: 1 / sqrt(made + 1))),
    "inverse-sqrt-warmup": (
        "inverse_sqrt\n  warmup: {steps: 16}",
        lambda o: LambdaLR(o, lambda m: min((m + 1) / 16, sqrt(16 / (m + 1)))),
    ),
}


ON_CPU = ("cosine-warmup", "linear-warmup", "step", "milestones-warmup", "inverse-sqrt-warmup")


@pytest.mark.parametrize(
    ("schedule", "device"),
    [(name, "reference") for name in SCHEDULES] + [(name, COMPILED) for name in ON_CPU],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_a_schedule_counts_as_pytorch_does(schedule: str, device: str) -> None:
    text, make = SCHEDULES[schedule]
    updates = Updates("sgd", "fp64", device, f"  schedule: {text}\n")
    probe = torch.optim.SGD([torch.zeros(1, requires_grad=True)], LR)
    scheduler = make(probe)
    gradients = draw_gradients(updates.net, 1)
    for number in range(1, STEPS + 1):
        updates.step(gradients)
        want = scheduler.get_last_lr()[0]
        assert abs(updates.lr() - want) <= 1e-12 * LR, f"update {number}"
        probe.step()
        scheduler.step()


def test_a_skipped_window_does_not_move_the_schedule() -> None:
    updates = Updates("sgd", "fp64", "reference", "  schedule: {step: 2}\n")
    rates = []
    for number in range(1, 6):
        gradients = draw_gradients(updates.net, number)
        if number == 2:
            gradients["fc1.bias"][0] = np.inf
        updates.step(gradients)
        rates.append(updates.lr())
    assert rates == pytest.approx([LR, LR, LR, LR / 10, LR / 10], rel=1e-14)


# -- clipping -------------------------------------------------------------------------------------

nn = torch.nn.utils


def clip_norm(gradients_of: Sequence[torch.Tensor], limit: float) -> None:
    """`clip_grad_norm_` without the 1e-6 that PyTorch adds to the norm."""
    norm = torch.sqrt(sum((p.grad**2).sum() for p in gradients_of))
    for p in gradients_of:
        p.grad *= min(1.0, limit / float(norm))


CLIPS: dict[str, tuple[str, Callable[[Peers], Any]]] = {
    "norm": ("{global_norm: 2}", lambda p: clip_norm(list(p.values()), 2.0)),
    "value": ("{value: 0.2}", lambda p: nn.clip_grad_value_(list(p.values()), 0.2)),
    "groups": (
        '{groups: {"fc1.*": 0.5, "fc2.*": 0.1}}',
        lambda p: [
            clip_norm([p["fc1.weight"], p["fc1.bias"]], 0.5),
            clip_norm([p["fc2.weight"], p["fc2.bias"]], 0.1),
        ],
    ),
    "groups-then-all": (
        '{global_norm: 0.7, groups: {"*.weight": 3, "fc1.*": 0.5}}',
        lambda p: [
            clip_norm([p["fc1.weight"], p["fc1.bias"]], 0.5),
            clip_norm([p["fc2.weight"]], 3.0),
            clip_norm(list(p.values()), 0.7),
        ],
    ),
}


@pytest.mark.parametrize(
    ("clip", "device"),
    [
        *((name, "reference") for name in CLIPS),
        *((name, COMPILED) for name in ("value", "groups-then-all")),
    ],
)
def test_clipping_is_that_of_pytorch(clip: str, device: str) -> None:
    text, run = CLIPS[clip]
    updates = Updates("{sgd: {momentum: 0.5}}", "fp64", device, f"  clip: {text}\n")
    peers = make_peers(updates.net, "fp64")
    optimizer = optim.SGD(list(peers.values()), LR, momentum=0.5)
    compare(updates, peers, optimizer, 1e-12, clip=lambda: run(peers))


def test_the_norm_of_the_run_is_that_of_all_gradients_before_clipping() -> None:
    updates = Updates("sgd", "fp64", "reference", '  clip: {groups: {"fc1.*": 0.5}}\n')
    gradients = draw_gradients(updates.net, 3)
    updates.step(gradients)
    want = sqrt(sum(float((value**2).sum()) for value in gradients.values()))
    assert updates.device.read_scalar("control.norm") == pytest.approx(want, rel=1e-12)
