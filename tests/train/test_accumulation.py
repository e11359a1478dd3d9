"""A window is one step whatever it is cut into: sums of losses over sums of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bpc import api
from bpc.train.stepper import Stepper

ROWS, STEPS = 64, 6
LOSSES = {
    "plain": "cross_entropy",
    "ignored": "{cross_entropy: {ignore_index: 1}}",
    "weights": "{cross_entropy: {class_weights: [0.3, 1, 2.5, 0.1]}}",
    "all": "{cross_entropy: {ignore_index: 2, class_weights: [0.3, 1, 2.5, 4],"
    " label_smoothing: 0.1}}",
}
NET = """\
bpc: 1
name: windows
data: {{source: synthetic, shape: [6], classes: 4, rows: {rows}, test_rows: 8, batch: {batch}}}
model:
  - linear: {{name: fc1, out: 8}}
  - layernorm
  - relu
  - linear: {{name: fc2, out: 4}}
loss: {loss}
train:
  steps: {steps}
  precision: fp64
  accumulate: {accumulate}
  lr: 0.02
  optimizer: {{adamw: {{weight_decay: 0.1}}}}
  warmup: {{share: 0.3}}
  schedule: cosine
  clip: {{global_norm: 0.5, groups: {{"fc2.*": 0.2}}}}
"""


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(loss: str, cuts: Sequence[int], device: str) -> tuple[api.Net, list[float]]:
    """Six windows over all rows, each in batches of these sizes; their losses."""
    text = NET.format(
        rows=ROWS, batch=max(cuts), loss=LOSSES[loss], steps=STEPS, accumulate=len(cuts)
    )
    Path("net.yaml").write_text(text, encoding="utf-8")
    net = api.compile("net.yaml", device=device)
    stepper = net.stepper(updates=STEPS)
    losses = []
    for _ in range(STEPS):
        stepper.step(*np.split(np.arange(ROWS), np.cumsum(cuts)[:-1]))
        losses.append(loss_of(stepper))
    return net, losses


def loss_of(stepper: Stepper) -> float:
    found = stepper.loss()
    assert found is not None
    return found


CUTS = {1: [64], 2: [32] * 2, 4: [16] * 4, 8: [8] * 8, "unequal": [7, 1, 20, 36]}
CASES = [(loss, cut, "reference") for loss in LOSSES for cut in CUTS if cut != 1]
CASES += [("all", cut, "cpu") for cut in (4, "unequal")]


@pytest.mark.parametrize(("loss", "cut", "device"), CASES, ids=str)
def test_a_window_in_parts_is_one_large_batch(loss: str, cut: int | str, device: str) -> None:
    large, expected = run(loss, CUTS[1], device)
    parts, losses = run(loss, CUTS[cut], device)
    assert losses == pytest.approx(expected, rel=1e-12)
    for name, value in large.parameters().items():
        off = np.abs(parts.parameters()[name] - value).max()
        assert off <= 1e-12 * np.abs(value).max(), name
    for net in (large, parts):
        read = net.device.read_scalar
        assert read("control.updates") == read("control.window") == STEPS
    for name in ("lr", "norm"):
        wanted = large.device.read_scalar(f"control.{name}")
        assert parts.device.read_scalar(f"control.{name}") == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_the_sum_of_terms_over_the_sum_of_weights(loss: str) -> None:
    """Against the loss written out, of the first window, before any update."""
    text = NET.format(rows=ROWS, batch=16, loss=LOSSES[loss], steps=STEPS, accumulate=4)
    Path("net.yaml").write_text(text, encoding="utf-8")
    net = api.compile("net.yaml", device="reference")
    part, options = net.data.train, net.spec.loss.options
    scores, target = net.predict(part["x"]), part["target"]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    given = options["class_weights"]
    weights = np.array(given if isinstance(given, tuple) else [1.0] * 4)
    share = float(str(options["label_smoothing"]))
    rows = np.arange(ROWS)
    terms = -(1 - share) * weights[target] * logs[rows, target]
    terms -= share * (weights * logs).mean(axis=1)
    counted = target != options["ignore_index"]
    wanted = terms[counted].sum() / weights[target][counted].sum()
    stepper = net.stepper(updates=STEPS)
    stepper.step(*np.split(rows, 4))
    assert loss_of(stepper) == pytest.approx(float(wanted), rel=1e-12)
