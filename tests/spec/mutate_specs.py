"""Compiles mutated specs in a process of its own and prints, as JSON, what came of them.

    python mutate_specs.py FIRST COUNT [STRIDE]

Every mutation follows from its number alone. Memory is the peak of the process beyond what the
unchanged specs took, so that it also counts what stays behind; time is that of the processor.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mutations import CHANGES

import bpc
from bpc.errors import BpcError
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.report.diagnostics import read_line_of_text, render_diagnostics
from bpc.spec import load_spec

MOST_SECONDS = 1.0
MOST_BYTES = 64 << 20
MOST_LAYERS = 40
_GIVE_UP_SECONDS = 20

SEEDS = (
    """bpc: 1
name: mlp
seed: 3
data: {source: digits, batch: 32, shuffle: true}
model:
  - linear: {out: 24, init: he, name: fc1}
  - relu
  - {repeat: 2, layers: [residual: [{linear: 24}, relu]]}
  - {linear: {out: 10, init: {normal: {std: 0.02}}}, name: head}
loss: {cross_entropy: {label_smoothing: 0.1}}
train:
  epochs: 5
  optimizer: {adam: {lr: 1e-3, beta1: 0.9}}
  groups: [{match: "*.bias", lr_factor: 2}]
  clip: {global_norm: 1.0}
  schedule: {cosine: {final: 0.1}}
  memory: 64MiB
""",
    """bpc: 1
data: {source: synthetic, inputs: {a: [3], b: [3]}, classes: 4, rows: 64}
parameters: {w2: {shape: [4, 4], init: orthogonal}}
functions:
  quick: "x * sigmoid(1.702 * x)"
  mix: {args: [p, q], formula: p * q + 1}
blocks:
  mlp: &mlp
    args: {dim: 4, ratio: 4}
    layers:
      - linear: "${dim * ratio}"
      - quick
      - linear: "${dim}"
  pair: {inputs: [l, r], layers: [{add: , from: [l, r]}]}
model:
  - {mix: , from: [a, b], name: both}
  - {repeat: 2, name: stack, layers: [{mlp: {dim: 3}}, {layers: [relu], name: act}]}
  - {pair: , from: [both, stack.1.act]}
  - linear: {out: 4, name: fc}
  - linear: {weight: w2}
loss: cross_entropy
train: {steps: 10, lr: 0.1, optimizer: sgd, precision: bf16, accumulate: 2}
""",
    """bpc: 1
data: {source: inline, x: [[2.0, 1.0], [0.5, 1.0]], y: [[1.0, 0.0], [0.5, 2.0]]}
model:
  - &l {linear: {out: 2, init: [[0.5, 1.0], [0.1, 2.0]], bias: false}}
  - *l
  - dropout: 0.5
  - gelu
loss: {mse: {scale: 0.5}}
train: {lr: 1e-2, steps: 3, warmup: {steps: 2}, checkpoint: {every: 2}}
""",
    """bpc: 1
data: {source: digits, shape: [1, 8, 8], batch: 16}
model:
  - conv2d: {out: 4, kernel: 3, stride: 2, padding: 1, name: fc}
  - layernorm: {axes: 3}
  - relu: {name: act}
  - flatten
  - normalize: {p: 2, eps: 1e-6}
  - linear: 10
loss: {cross_entropy: {ignore_index: 3, class_weights: [1, 1, 1, 1, 1, 1, 1, 1, 1, 2]}}
train: {steps: 4, optimizer: {rmsprop: {lr: 1e-3}}, precision: fp16, loss_scale: {start: 1024}}
""",
)


@dataclass
class Report:
    """What happened to a run of mutations; faults are those that no mutation may have."""

    count: int = 0
    refused: int = 0
    planned: int = 0
    seconds: float = 0.0
    worst_seconds: float = 0.0
    worst_number: int = -1
    extra_bytes: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)


class _TooLong(Exception):
    pass


def mutate(number: int) -> bytes:
    """The mutated text with this number: its seed and its way of changing follow from it."""
    seed, way = number % len(SEEDS), number // len(SEEDS) % len(CHANGES)
    return CHANGES[way](random.Random(number), SEEDS[seed])


def compile_whole(path: Path) -> bool:
    """Load, lower, differentiate and plan; False if the spec was refused, with places.

    A mutation may make a valid network many times as large as any seed, such as a thousand
    layers; that one is loaded only, because its graph is work that was asked for.

    Raises:
        AssertionError: an error that has no place, or cannot be shown.
    """
    try:
        spec = load_spec(str(path), layer_schemas(), loss_schemas(), OPTIMIZERS)
        if len(spec.layers) <= MOST_LAYERS:
            bpc.compile(path, device="reference").plan_memory()
    except BpcError as fault:
        for item in fault.diagnostics:
            assert item.span is None or item.span.line >= 1, item
        assert any(item.span is not None for item in fault.diagnostics), fault.diagnostics
        text = path.read_bytes().decode("utf-8", "replace")
        shown = render_diagnostics(fault.diagnostics, lambda _, line: read_line_of_text(text, line))
        assert "Traceback" not in shown
        return False
    return True


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def try_mutations(numbers: Iterator[int], folder: Path) -> Report:
    """Compile them one after the other."""
    report, path = Report(), folder / "mutated.yaml"
    for text in SEEDS:
        path.write_text(text, encoding="utf-8")
        assert compile_whole(path), text
    before = peak_bytes()
    signal.signal(signal.SIGPROF, _give_up)
    for number in numbers:
        path.write_bytes(mutate(number))
        _try(number, path, report, before)
    report.extra_bytes = peak_bytes() - before
    return report


def _try(number: int, path: Path, report: Report, before: int) -> None:
    started, peak = time.process_time(), peak_bytes()
    what = ""
    signal.setitimer(signal.ITIMER_PROF, _GIVE_UP_SECONDS)
    try:
        accepted = compile_whole(path)
        report.planned += accepted
        report.refused += not accepted
    except _TooLong:
        what = "given up"
    except Exception:  # whatever it is, it is what is looked for
        what = traceback.format_exc(limit=-3)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - started
    report.count += 1
    report.seconds += seconds
    if seconds > report.worst_seconds:
        report.worst_seconds, report.worst_number = seconds, number
    if seconds > MOST_SECONDS:
        what = what or f"{seconds:.2f} s"
    now = peak_bytes()
    if now > peak and now - before > MOST_BYTES:
        what = what or f"{(now - before) >> 20} MiB"
    if what:
        report.faults.append({"number": number, "what": what})


def _give_up(*_: object) -> None:
    raise _TooLong


def main(first: int, count: int, stride: int = 1) -> None:
    """Print the report of `count` mutations from `first` on."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(first, first + count * stride, stride))
        print(json.dumps(asdict(try_mutations(numbers, Path(folder)))))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
