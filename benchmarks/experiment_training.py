"""The experiments that train: each returns a table, curves and the spec of its first case.

Reported figures are those of two practitioners' articles on networks in plain NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, sqrt
from statistics import fmean, pvariance
from typing import Any

import numpy as np
from experiment_runs import IMAGES, MINI_BATCH, ROUNDS, Run, curve, mlp, row, train, write_spec

Sheet = dict[str, Any]
DEEP, FLAT = (256, 128), (128,)
FULL, MINI = "full batch", "batches of 100"


def both_batches(images: int) -> dict[str, int]:
    """The two ways to read "a round": one update, or ten."""
    return {FULL: images, MINI: min(MINI_BATCH, max(images // 10, 1))}


def over_seeds(text: str, seeds: int, rounds: int, **wishes: Any) -> list[Run]:
    return [train(text, seed, rounds, **wishes) for seed in range(seeds)]


# -- initialisations ------------------------------------------------------------------------------

INITS: Mapping[str, tuple[float, float, float]] = {
    "zeros": (0, 0, 0),
    "xavier_uniform": (0.021, 0.018, 0.025),
    "he_normal": (0.038, 0.032, 0.041),
}


def initialisations(seeds: int, rounds: int = ROUNDS, images: int = IMAGES) -> Sheet:
    """Gradient norms of the first step by layer, in four ways to take a norm."""
    rows, curves, specs = [], {}, {}
    for init, reported in INITS.items():
        specs[init] = write_spec(mlp(DEEP, init, "leaky_relu"), images, 0.01)
        runs = over_seeds(specs[init], seeds, rounds, images=images)
        norms = {"Frobenius": _frobenius} if init == "zeros" else NORMS
        for how, measure in norms.items():
            values = {f"layer{k}": [measure(r, k) for r in runs] for k in (1, 2, 3)}
            said = {f"layer{k}": reported[k - 1] for k in (1, 2, 3)}
            rows.append(row(f"{init}, {how}", said, **values))
        curves[init] = curve(runs, lambda r: [n["linear1.weight"] for n in r.norms])
    return {
        "spec": specs["he_normal"],
        "columns": {f"layer{k}": f"layer {k}" for k in (1, 2, 3)},
        "rows": [*rows, *_dead(seeds, rounds, images)],
        "curves": curves,
        "axes": ("round", "first layer's gradient, Frobenius norm"),
    }


def _frobenius(run: Run, layer: int) -> float:
    return run.norms[0][f"linear{layer}.weight"]


def _by_input(run: Run, layer: int) -> float:
    return _frobenius(run, layer) / sqrt(run.parameters[f"linear{layer}.weight"].shape[0])


def _by_element(run: Run, layer: int) -> float:
    return _frobenius(run, layer) / sqrt(run.parameters[f"linear{layer}.weight"].size)


NORMS = {
    "Frobenius": _frobenius,
    "Frobenius / sqrt(inputs)": _by_input,
    "root mean square": _by_element,
}


def _dead(seeds: int, rounds: int, images: int) -> list[dict]:
    """Zeros after all rounds: the largest entry of each layer's weight and of the last bias."""
    text = write_spec(mlp(DEEP, "zeros", "leaky_relu"), both_batches(images)[MINI], 0.01)
    alive = text.replace("init: zeros", "init: zeros, bias_init: 0.1")
    made = []
    for case, spec in (("zeros", text), ("zeros, biases 0.1", alive)):
        runs = over_seeds(spec, seeds, rounds, images=images)
        values = {f"layer{k}": [_largest(r, f"linear{k}.weight") for r in runs] for k in (1, 2, 3)}
        made.append(row(f"{case}: largest weight after {rounds} rounds of small batches", **values))
        bias = {f"layer{k}": [_moved(r, f"linear{k}.bias") for r in runs] for k in (1, 2, 3)}
        made.append(row(f"{case}: range of the biases then", **bias))
    return made


def _largest(run: Run, name: str) -> float:
    return float(np.abs(run.parameters[name]).max())


def _moved(run: Run, name: str) -> float:
    return float(np.ptp(run.parameters[name]))


# -- activations ----------------------------------------------------------------------------------

ACTIVATIONS: Mapping[str, tuple[float, float, float]] = {
    "sigmoid": (0.015, 0.002, 0.0003),
    "tanh": (0.018, 0.008, 0.001),
    "relu": (0.022, 0.020, 0.019),
}
SHOWN = (1, 10, 50)


def activations(seeds: int, rounds: int = 50, images: int = IMAGES) -> Sheet:
    """The first layer's gradient norm over rounds; what would make it fall as reported."""
    rows, curves, spec = [], {}, ""
    for name, reported in ACTIVATIONS.items():
        said = dict(zip(("r1", "r10", "r50", "ratio"), reported, strict=False))
        said["ratio"] = reported[0] / reported[2]
        for case, widths, batch, lr, pixel in _activation_cases(images):
            text = write_spec(mlp(widths, "xavier_uniform", name), batch, lr)
            spec = spec or text
            runs = over_seeds(text, seeds, rounds, images=images, pixel=pixel)
            rows.append(row(f"{name}, {case}", said, **_decay(runs)))
            if case in (FULL, MINI):
                curves[f"{name}, {case}"] = curve(runs, _first_layer)
    return {
        "spec": spec,
        "columns": {
            **{f"r{k}": f"round {k}" for k in SHOWN},
            "ratio": "round 1 / round 50",
            "loss": "last loss",
        },
        "rows": rows,
        "curves": curves,
        "marks": {k: list(zip(SHOWN, said, strict=True)) for k, said in ACTIVATIONS.items()},
        "axes": ("round", "first layer's gradient / sqrt(inputs)"),
    }


def _activation_cases(images: int) -> list[tuple[str, Sequence[int], int, float, float]]:
    """Names with hidden widths, batch, rate and the value of a white pixel."""
    small = both_batches(images)[MINI]
    return [
        (FULL, FLAT, images, 0.01, 1.0),
        (MINI, FLAT, small, 0.01, 1.0),
        (f"{FULL}, pixels 0..255", FLAT, images, 0.01, 255.0),
        (f"{MINI}, lr 1.0", FLAT, small, 1.0, 1.0),
        (f"{FULL}, 6 hidden layers", FLAT * 6, images, 0.01, 1.0),
    ]


def _first_layer(run: Run) -> list[float]:
    return [norms["linear1.weight"] / 28.0 for norms in run.norms]


def _decay(runs: Sequence[Run]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        norms = _first_layer(run)
        for k in SHOWN:
            if k <= len(norms):
                found.setdefault(f"r{k}", []).append(norms[k - 1])
        found.setdefault("ratio", []).append(norms[0] / max(norms[-1], 1e-30))
        found.setdefault("loss", []).append(run.final_loss)
    return found


# -- learning rates -------------------------------------------------------------------------------

RATES: Mapping[float, Mapping[str, float | str]] = {
    0.001: {"train": 82.0, "loss": 1.8},
    0.01: {"train": 96.5, "loss": 0.35},
    0.1: {"train": 92.0, "loss": "oscillates from round 15"},
    1.0: {"third": 15.0, "loss": "diverges"},
}


RATE_MARKS = {"0.001": [(100, 1.8)], "0.01": [(100, 0.35)], "1.0": [(3, 15)]}


def learning_rates(seeds: int, rounds: int = ROUNDS, images: int = IMAGES) -> Sheet:
    """Loss and accuracy after all rounds by rate."""
    rows, curves, spec = [], {}, ""
    for way, batch in both_batches(images).items():
        for lr, reported in RATES.items():
            text = write_spec(mlp(DEEP, "xavier_uniform", "relu"), batch, lr)
            spec = spec or text
            runs = over_seeds(text, seeds, rounds, images=images)
            rows.append(row(f"{lr}, {way}", reported, **_outcome(runs)))
            curves[f"{lr}, {way}"] = curve(runs, lambda r: r.losses)
    return {
        "spec": spec,
        "columns": OUTCOME,
        "rows": rows,
        "curves": curves,
        "marks": RATE_MARKS,
        "axes": ("round", "mean training loss, nats"),
    }


OUTCOME = {
    "loss": "last loss",
    "third": "in round 3",
    "failed": "seeds that end above log 10",
    "train": "accuracy on the 1,000, %",
    "test": "on 1,000 others, %",
    "rises": "rounds that rise, %",
}


def _outcome(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "loss": [r.final_loss for r in runs],
        "third": [r.losses[min(2, len(r.losses) - 1)] for r in runs],
        "failed": sum(not r.final_loss < log(10) for r in runs),
        "train": [r.train_accuracy for r in runs],
        "test": [r.test_accuracy for r in runs],
        "rises": [r.rises() for r in runs],
    }


# -- warmup ---------------------------------------------------------------------------------------

WINDOW = 100
SETTLED = 0.05
TARGET_LOSS = 0.1


def is_settled(norms: Sequence[float]) -> bool:
    """Whether their variance is under 5 % of their squared mean."""
    return pvariance(norms) < SETTLED * fmean(norms) ** 2


class Settling:
    """A tenth of the rate until the norm's relative variance over 100 steps is under 5 %."""

    def __init__(self, lr: float, steps: int):
        self.lr, self.ended = lr, 0

    def __call__(self, norms: Sequence[float]) -> float:
        last = norms[-WINDOW:]
        if not self.ended and len(last) == WINDOW and is_settled(last):
            self.ended = len(norms)
        return self.lr if self.ended else self.lr / 10


class Fixed:
    """A tenth of the rate for a tenth of all steps."""

    def __init__(self, lr: float, steps: int):
        self.lr, self.ended = lr, steps // 10

    def __call__(self, norms: Sequence[float]) -> float:
        return self.lr if len(norms) >= self.ended else self.lr / 10


class Without:
    """The whole rate at once."""

    def __init__(self, lr: float, steps: int):
        self.lr, self.ended = lr, 0

    def __call__(self, norms: Sequence[float]) -> float:
        return self.lr


WARMUPS = {"none": Without, "fixed 10 %": Fixed, "until settled": Settling}


def warmup(seeds: int, rounds: int = ROUNDS, images: int = IMAGES) -> Sheet:
    """Rounds until the loss is under 0.1, for runs of 1,000, 2,000 and 4,000 steps."""
    rows, spec = [], ""
    small = both_batches(images)[MINI]
    for batch in (small, small // 2, small // 4):
        steps, needed = rounds * images // batch, {}
        for name, make in WARMUPS.items():
            text = write_spec(mlp(DEEP, "he_normal", "relu"), batch, 0.1)
            spec = spec or text
            rates = [make(0.1, steps) for _ in range(seeds)]
            runs = [
                train(text, k, rounds, images=images, rate=rates[k], until=TARGET_LOSS)
                for k in range(seeds)
            ]
            case = f"{name}, {steps:,} steps"
            needed[name] = [float(r.rounds_to(TARGET_LOSS)) for r in runs]
            pairs = zip(needed[name], needed.get("fixed 10 %", needed[name]), strict=True)
            said = {"saved": 18.0} if make is Settling else {}
            rows.append(
                row(
                    case,
                    said,
                    ended=[float(rate.ended) for rate in rates],
                    rounds=needed[name],
                    saved=[100.0 * (1 - a / b) for a, b in pairs] if make is Settling else "",
                )
            )
    return {
        "spec": spec,
        "columns": {
            "ended": "warm-up ends at step",
            "rounds": "rounds to loss 0.1",
            "saved": "fewer rounds than fixed, %",
        },
        "rows": rows,
        "curves": {},
        "axes": ("round", "mean training loss, nats"),
    }


# -- clipping -------------------------------------------------------------------------------------

CLIPS = (0.1, 0.5, 1.0, 2.0, 5.0, None)


def clipping(seeds: int, rounds: int = 50, images: int = IMAGES) -> Sheet:
    """Clip by global norm, at a rate that is safe without it and at one that is not."""
    rows, spec = [], ""
    small = both_batches(images)[MINI]
    for lr in (0.1, 1.0):
        for clip in CLIPS:
            extra = [] if clip is None else [f"clip: {{global_norm: {clip}}}"]
            text = write_spec(mlp(DEEP, "he_normal", "relu"), small, lr, extra)
            spec = spec or text
            runs = over_seeds(text, seeds, rounds, images=images)
            case = f"{'no clip' if clip is None else f'clip {clip}'}, lr {lr}"
            made = _outcome(runs)
            made["clipped"] = [_clipped(r, clip) for r in runs]
            made["needed"] = [float(r.rounds_to(TARGET_LOSS)) for r in runs]
            rows.append(row(case, **made))
    return {
        "spec": spec,
        "columns": {
            "clipped": "steps clipped, %",
            "needed": "rounds to loss 0.1",
            **{k: OUTCOME[k] for k in ("loss", "failed", "test", "rises")},
        },
        "rows": rows,
        "curves": {},
        "axes": ("round", "mean training loss, nats"),
    }


def _clipped(run: Run, clip: float | None) -> float:
    over = [norm > clip for norm in run.global_norms] if clip else [False]
    return 100.0 * sum(over) / max(len(over), 1)


# -- order of norm and relu -----------------------------------------------------------------------

ORDERS = {
    "linear, norm, relu": ("layernorm", "relu"),
    "linear, relu, norm": ("relu", "layernorm"),
    "no norm": ("relu",),
}


def norm_order(seeds: int, rounds: int = 50, images: int = IMAGES) -> Sheet:
    """Layer norm before or behind the relu, in two depths and at three rates."""
    rows, curves, spec = [], {}, ""
    small = both_batches(images)[MINI]
    for depth, widths in (("2 hidden layers", DEEP), ("8 hidden layers", (64,) * 8)):
        for lr in (0.01, 0.02, 0.5):
            for name, layers in ORDERS.items():
                text = write_spec(mlp(widths, "he_normal", *layers), small, lr)
                spec = spec or text
                runs = over_seeds(text, seeds, rounds, images=images)
                rows.append(row(f"{name}, {depth}, lr {lr}", **_outcome(runs)))
                if lr == 0.01:
                    curves[f"{name}, {depth}"] = curve(runs, lambda r: r.losses)
    return {
        "spec": spec,
        "columns": OUTCOME,
        "rows": rows,
        "curves": curves,
        "axes": ("round", "mean training loss, nats"),
    }
