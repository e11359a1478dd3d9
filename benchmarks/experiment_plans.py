"""The experiments on plans and the worked example: bytes, repeated work, one exact number."""

from __future__ import annotations

import math
import statistics
import time
from fractions import Fraction
from typing import Any

import numpy as np
from experiment_runs import compile_text, row, thin

import bpc
from bpc.passes import run_passes
from bpc.plan.chain import ChainPlan, pareto
from bpc.plan.segments import find_chain
from bpc.resources import spec_root

Sheet = dict[str, Any]
WIDTH, BATCH = 64, 128


def write_chain(blocks: int, batch: int = BATCH) -> str:
    """A residual network of so many blocks, each a linear layer and a relu."""
    return f"""bpc: 1
data: {{source: synthetic, shape: [{WIDTH}], classes: 10, rows: 1024, batch: {batch}}}
model:
  - repeat: {blocks}
    layers:
      - residual:
          - linear: {{out: {WIDTH}, init: he}}
          - relu
  - linear: {{out: 10, init: xavier}}
loss: cross_entropy
train: {{optimizer: {{sgd: {{lr: 1e-3}}}}}}
"""


# -- checkpoint segments --------------------------------------------------------------------------

LENGTHS = (9, 25, 49)


def checkpoints(seeds: int, lengths: tuple[int, ...] = LENGTHS, steps: int = 30) -> Sheet:
    """Memory of activations against repeated work for chains of several lengths."""
    rows, curves = [], {}
    for blocks in lengths:
        plans, forward, step = _fronts(blocks)
        rows.append(_length_row(blocks, plans, forward, step))
        curves[f"{blocks} blocks"] = _front_curve(plans, step)
    reported = _reported_rows(plans, step)
    return {
        "spec": write_chain(lengths[-1]),
        "columns": {
            "kept": "all kept, KiB",
            "segments": "one more forward, KiB",
            "least": "least possible, KiB",
            "roots": "one more forward / (block x sqrt n)",
            "work": "more work, %",
            "time": "more time, %",
        },
        "rows": [*rows, *reported, *_measured_rows(lengths[-1], max(seeds, 1), steps)],
        "curves": curves,
        "axes": ("activations, % of all kept", "more work, % of a step"),
    }


def _fronts(blocks: int) -> tuple[tuple[ChainPlan, ...], int, int]:
    """All Pareto-optimal plans of a chain, and FLOPs of a forward pass and of a whole step."""
    net = compile_text(write_chain(blocks))
    chain = find_chain(run_passes(net.entries.graphs["micro_step"]), BATCH)
    forward = sum(chain.flops)
    return pareto(chain.segments), forward, 3 * forward


def _under_work(plans: tuple[ChainPlan, ...], most: float) -> ChainPlan:
    return min((p for p in plans if p.extra_cost <= most), key=lambda plan: plan.peak_bytes)


def _length_row(blocks: int, plans: tuple[ChainPlan, ...], forward: int, step: int) -> dict:
    once = _under_work(plans, forward)
    block_kib = WIDTH * BATCH * 4 / 1024
    return row(
        f"{blocks} blocks",
        {"roots": "sqrt(n)", "time": "20 to 30"} if blocks == LENGTHS[-1] else None,
        kept=_kib(plans[-1].peak_bytes),
        segments=_kib(once.peak_bytes),
        least=_kib(plans[0].peak_bytes),
        roots=round(_kib(once.peak_bytes) / block_kib / math.sqrt(blocks), 3),
        work=round(100 * once.extra_cost / step, 1),
    )


def _kib(size: int) -> float:
    return round(size / 1024, 1)


def _front_curve(plans: tuple[ChainPlan, ...], step: int) -> dict[str, list[float]]:
    whole = plans[-1].peak_bytes
    shown = [plans[k - 1] for k in thin(len(plans))]
    x = [round(100 * plan.peak_bytes / whole, 2) for plan in shown]
    y = [round(100 * plan.extra_cost / step, 2) for plan in shown]
    return {"x": x, "y": y, "low": y, "high": y}


def _reported_rows(plans: tuple[ChainPlan, ...], step: int) -> list[dict]:
    """What the longest chain pays for the two shares of memory that were reported."""
    made = []
    for case, share, said in (
        ("40 % less activations", 0.6, {}),
        ("batch 14 where 8 fitted", 8 / 14, {"time": 12.0}),
    ):
        plan = min(
            (p for p in plans if p.peak_bytes <= share * plans[-1].peak_bytes),
            key=lambda p: p.extra_cost,
        )
        work = round(100 * plan.extra_cost / step, 1)
        made.append(row(f"{case}: plan", said, kept=_kib(plan.peak_bytes), work=work))
    return made


def _measured_rows(blocks: int, repeats: int, steps: int) -> list[dict]:
    """Whole programs under a budget: what they take, and the time of a step beside all kept."""
    text = write_chain(blocks)
    free = compile_text(text)
    report = free.plan_memory()
    fixed = report["classes"]["parameters"] + report["classes"]["gradients"]
    made = []
    for share in (0.6, 0.2):
        budget = int(fixed + share * (report["planned_peak_bytes"] - fixed))
        tight = compile_text(text, memory=budget)
        plan = tight.plan_memory()
        ratios = _time_ratios(free, tight, repeats, steps)
        made.append(
            row(
                f"arena with {100 * share:.0f} % for activations",
                kept=_kib(plan["planned_peak_bytes"] - fixed),
                work=round(100 * plan["overhead_ratio"], 1),
                time=[100 * (ratio - 1) for ratio in ratios],
            )
        )
        tight.close()
    free.close()
    return made


def _time_ratios(free: bpc.Net, tight: bpc.Net, repeats: int, steps: int) -> list[float]:
    """Time of a step of one over the other; they take turns, so that drift hits both."""
    steppers = [net.stepper() for net in (free, tight)]
    rows = np.arange(BATCH)
    ratios = []
    for _ in range(repeats):
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(steps):
            for found, stepper in zip(seconds, steppers, strict=True):
                start = time.perf_counter()
                stepper.step(rows)
                found.append(time.perf_counter() - start)
        ratios.append(statistics.median(seconds[1]) / statistics.median(seconds[0]))
    return ratios


# -- what the backward pass keeps of an activation ------------------------------------------------


def write_mask_spec(activation: str, after: str | None) -> str:
    """An activation of [32, 256], followed at once by a product or by another layer."""
    lines = [f"  - {layer}" for layer in (activation, after) if layer]
    return "\n".join(
        [
            "bpc: 1",
            "data: {source: synthetic, shape: [64], classes: 10, batch: 32}",
            "model:",
            "  - linear: {out: 256, init: he}",
            *lines,
            "  - linear: {out: 10, init: xavier}",
            "loss: cross_entropy",
            "train: {optimizer: {sgd: {lr: 0.1}}}",
            "",
        ]
    )


def mask_bytes(seeds: int) -> Sheet:
    """Bytes that the backward pass of relu and sigmoid reads, and whether they are extra."""
    rows, spec = [], ""
    for activation, reported in (("relu", 1024), ("sigmoid", 32768)):
        for after in ("dropout: 0.5", "layernorm", None):
            text = write_mask_spec(activation, after)
            spec = spec or text
            report = compile_text(text).plan_memory()
            kept = [t for t in report["tensors"] if t["decision"] == "kept"]
            own = [t for t in kept if f"{activation}1 gradient" in t["why"]]
            behind = (after or "linear").partition(":")[0]
            rows.append(
                row(
                    f"{activation}, then {behind}",
                    {"bytes": reported},
                    bytes=sum(t["bytes"] for t in own),
                    what=", ".join(f"{t['name']} {t['type']}" for t in own),
                    shared="yes" if any(" and " in t["why"] for t in own) else "no",
                    saved=sum(t["bytes"] for t in kept),
                )
            )
    return {
        "spec": spec,
        "columns": {
            "what": "its backward reads",
            "bytes": "bytes",
            "shared": "read by others too",
            "saved": "kept in all, bytes",
        },
        "rows": rows,
        "curves": {},
        "axes": ("bytes kept for [32, 256]", ""),
    }


# -- the worked example ---------------------------------------------------------------------------


def worked(seeds: int) -> Sheet:
    """dL/dw1 of two sigmoid units in a row: by bpc, by hand, and by exact fractions."""
    path = spec_root() / "worked" / "two_layer.yaml"
    hand = _by_hand()
    said = {"value": -0.0187}
    rows = [
        row(f"bpc, {device}", said, value=repr(_by_bpc(str(path), device)))
        for device in ("cpu", "reference")
    ]
    rows.append(row("by hand, float64", said, value=repr(hand[-1][1])))
    rows.append(row("by hand, 40 digits", said, value=f"{float(_by_fractions()):.17g}"))
    rows += [row(f"step: {name}", value=repr(number)) for name, number in hand[:-1]]
    return {
        "spec": path.read_text(encoding="utf-8"),
        "columns": {"value": "dL/dw1, or the step's value"},
        "rows": rows,
        "curves": {},
        "axes": ("", ""),
    }


def _by_bpc(path: str, device: str) -> float:
    net = bpc.compile(path, device=device)
    batch = {"x": np.array([[2.0]]), "target": np.array([[1.0]])}
    value = float(net.gradients(batch, ["z1.weight"])["z1.weight"].item())
    net.close()
    return value


def _by_hand() -> list[tuple[str, float]]:
    """Each factor of the chain rule, and last their product."""
    x, w1, b1, w2, b2, target = 2.0, 0.5, 0.1, 0.8, 0.05, 1.0
    a1 = 1 / (1 + math.exp(-(x * w1 + b1)))
    a2 = 1 / (1 + math.exp(-(a1 * w2 + b2)))
    d2 = (a2 - target) * a2 * (1 - a2)
    d1 = d2 * w2 * a1 * (1 - a1)
    return [
        ("a1 = sigmoid(1.1)", a1),
        ("a2 = sigmoid(0.8 a1 + 0.05)", a2),
        ("dL/dz2 = (a2 - 1) a2 (1 - a2)", d2),
        ("dL/dz1 = dL/dz2 0.8 a1 (1 - a1)", d1),
        ("dL/dw1 = dL/dz1 2", d1 * x),
    ]


def _by_fractions() -> Fraction:
    """The same in fractions; the exponential by its series, to 40 digits."""
    tenth = Fraction(1, 10)
    a1 = _sigmoid(11 * tenth)
    a2 = _sigmoid(a1 * 8 * tenth + tenth / 2)
    return (a2 - 1) * a2 * (1 - a2) * (8 * tenth) * a1 * (1 - a1) * 2


def _sigmoid(z: Fraction) -> Fraction:
    total, term, k = Fraction(1), Fraction(1), 0
    while abs(term) > Fraction(1, 10**45):
        k += 1
        term = (term * -z / k).limit_denominator(10**50)
        total += term
    return (1 / (1 + total)).limit_denominator(10**45)
