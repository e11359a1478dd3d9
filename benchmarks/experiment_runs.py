"""Runs of small networks on 1,000 MNIST digits, through bpc's own interface, and their figures."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import bpc

IMAGES = 1000
ROUNDS = 100
MINI_BATCH = 100
NO_NUMBER = 1e30  # stands for inf and nan, which JSON lacks

# A rate for the next step, from the number of steps done and all global norms so far.
Rate = Callable[[Sequence[float]], float]


def write_spec(layers: Sequence[str], batch: int, lr: float, extra: Sequence[str] = ()) -> str:
    """The whole text of a spec; `extra` are further lines of the train section."""
    lines = [
        "bpc: 1",
        f"data: {{source: mnist5k, batch: {batch}}}",
        "model:",
        *(f"  - {layer}" for layer in layers),
        "loss: cross_entropy",
        "train:",
        f"  optimizer: {{sgd: {{lr: {lr}}}}}",
        *(f"  {line}" for line in extra),
    ]
    return "\n".join(lines) + "\n"


def mlp(hidden: Sequence[int], init: str, *after: str) -> list[str]:
    """Linear layers of these widths, each followed by `after`, then the ten scores."""
    layers: list[str] = []
    for width in hidden:
        layers += [f"linear: {{out: {width}, init: {init}}}", *after]
    return [*layers, f"linear: {{out: 10, init: {init}}}"]


def compile_text(text: str, **wishes: Any) -> bpc.Net:
    """The network of a spec's text, on the compiled CPU device.

    The file always has the same relative name: statements of the generated text carry it, and so
    runs that differ in seed or rate find their library compiled.
    """
    with tempfile.TemporaryDirectory(prefix="bpc-experiments-") as folder, chdir(folder):
        Path("spec.yaml").write_text(text, encoding="utf-8")
        return bpc.compile("spec.yaml", **{"device": "cpu", "threads": 1, **wishes})


@dataclass
class Run:
    """What one training run left behind. `losses` are means over a round, before its updates.

    `norms` holds the Frobenius norm of each parameter's gradient at the first step of a round;
    `global_norms` that of all together at every step, before clipping.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[dict[str, float]] = field(default_factory=list)
    global_norms: list[float] = field(default_factory=list)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    train_accuracy: float = 0.0
    test_accuracy: float = 0.0
    stopped: int | None = None  # the round in which loss or gradient was no longer finite

    @property
    def final_loss(self) -> float:
        return self.losses[-1]

    def rises(self) -> float:
        """Percent of rounds whose mean loss is above that of the round before."""
        ups = [b > a for a, b in zip(self.losses, self.losses[1:], strict=False)]
        return 100.0 * sum(ups) / max(len(ups), 1)

    def rounds_to(self, loss: float) -> int:
        """The first round, from 1, with a mean loss below this; one more than all if none has."""
        found = (k for k, value in enumerate(self.losses, 1) if value < loss)
        return next(found, len(self.losses) + 1)


def train(
    text: str,
    seed: int,
    rounds: int = ROUNDS,
    *,
    images: int = IMAGES,
    pixel: float = 1.0,
    rate: Rate | None = None,
    until: float | None = None,
) -> Run:
    """Train on images drawn by the seed, in an order drawn anew each round.

    Args:
        text: a spec on `mnist5k`; its batch is the batch.
        seed: of images, order and weights.
        pixel: what inputs, 0 to 1, are multiplied by.
        rate: sets the learning rate before each step.
        until: end after the first round with a mean loss below this.
    """
    net = compile_text(text, seed=seed)
    draw = np.random.default_rng(seed)
    whole, batch = net.data.train, min(net.spec.data.batch, images)
    rows = draw.permutation(len(whole["target"]))[:images]
    part = {"x": whole["x"][rows] * np.float32(pixel), "target": whole["target"][rows]}
    run = Run()
    stepper = net.stepper(part, updates=rounds * -(-images // batch))
    order = draw.permutation(images)
    for number in range(1, rounds + 1):
        batches = [order[k : k + batch] for k in range(0, images, batch)]
        if not _run_round(net, stepper, batches, run, rate):
            run.stopped = number
            break
        if until is not None and run.losses[-1] < until:
            break
        order = draw.permutation(images)
    _finish(net, part, pixel, run)
    return run


def _run_round(
    net: bpc.Net, stepper: Any, batches: Iterable[np.ndarray], run: Run, rate: Rate | None
) -> bool:
    """One pass over the images; False if a step was not finite."""
    device, losses = net.device, []
    for index, rows in enumerate(batches):
        if rate is not None:
            device.write_scalar("control.base_lr", rate(run.global_norms))
        if not stepper.step(rows):
            run.losses.append(statistics.fmean(losses) if losses else float(stepper.loss()))
            return False
        losses.append(float(stepper.loss()))
        run.global_norms.append(float(device.read_scalar("control.norm")))
        if index == 0:
            names = (state.name for state in net.entries.states_of("parameter"))
            run.norms.append({n: float(device.read_scalar(f"norm.{n}")) for n in names})
    run.losses.append(statistics.fmean(losses))
    return True


def _finish(net: bpc.Net, part: Mapping[str, np.ndarray], pixel: float, run: Run) -> None:
    test = net.data.test
    for name, x, target in (
        ("train_accuracy", part["x"], part["target"]),
        ("test_accuracy", test["x"] * np.float32(pixel), test["target"]),
    ):
        right = net.predict(x).argmax(axis=1) == target
        setattr(run, name, 100.0 * float(right.mean()))
    run.parameters = net.parameters()
    net.close()


# -- figures --------------------------------------------------------------------------------------


def figure(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds, six digits each."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": _short(statistics.fmean(values)), "spread": _short(spread)}


def curve(runs: Sequence[Run], pick: Callable[[Run], Sequence[float]]) -> dict[str, list[float]]:
    """Mean, least and largest over seeds at each round that all of them reached."""
    columns = list(zip(*(pick(run) for run in runs), strict=False))
    x = thin(len(columns))
    shown = [columns[k - 1] for k in x]
    return {
        "x": x,
        "y": [_short(statistics.fmean(column)) for column in shown],
        "low": [_short(min(column)) for column in shown],
        "high": [_short(max(column)) for column in shown],
    }


def thin(count: int) -> list[int]:
    """At most some forty of the numbers 1 .. count: the first ten, equal steps, the last."""
    step = max(1, count // 30)
    return sorted({*range(1, min(count, 10) + 1), *range(step, count + 1, step), count} - {0})


def row(case: str, reported: Mapping[str, float | str] | None = None, **values: Any) -> dict:
    """A line of a table: each value is a list over seeds, a number or text."""
    made = {k: figure(v) if isinstance(v, list) else v for k, v in values.items()}
    return {"case": case, "values": made, "reported": dict(reported or {})}


def _short(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else NO_NUMBER
