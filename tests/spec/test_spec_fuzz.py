"""Broken specs: whatever the bytes, the answer is a spec or errors with a place."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from mutations import change_byte, change_line, change_structure, change_token
from spec_tables import LAYERS, LOSSES, OPTIMIZERS

from bpc.errors import SpecError
from bpc.report.diagnostics import read_line_of_text, render_diagnostics
from bpc.spec import load_spec
from bpc.spec.source import decode

SEEDS = (
    """bpc: 1
name: mlp
seed: 3
data: {source: digits, batch: 32, shuffle: true}
model:
  - linear: {out: 256, init: he, name: fc1}
  - relu
  - {repeat: 2, layers: [residual: [{linear: 256}, relu]]}
  - {linear: {out: 10, init: {normal: {std: 0.02}}}, name: head}
loss: {cross_entropy: {label_smoothing: 0.1}}
train:
  epochs: 5
  optimizer: {adam: {lr: 1e-3, beta1: 0.9}}
  clip: {global_norm: 1.0}
  schedule: {cosine: {final: 0.1}}
  memory: 64MiB
""",
    """bpc: 1
data: {source: synthetic, inputs: {a: [3], b: [3]}, classes: 4, rows: 64}
parameters: {w2: {shape: [3, 4], init: [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]}}
functions:
  quick: "x * sigmoid(1.702 * x)"
  mix: {args: [p, q], formula: p * q + 1}
blocks:
  mlp: &mlp
    args: {dim: 8, ratio: 4}
    layers:
      - linear: ${dim * ratio}
      - quick
      - linear: ${dim}
  pair: {inputs: [l, r], layers: [{add: , from: [l, r]}]}
model:
  - {mix: , from: [a, b], name: both}
  - {repeat: 3, name: stack, layers: [{mlp: {dim: 4}}, {layers: [relu], name: act}]}
  - {pair: , from: [both, stack.1.act]}
  - linear: {out: 4, weight: w2}
loss: mse
train: {steps: 10, lr: 0.1, optimizer: sgd, precision: bf16, accumulate: 2}
""",
    """bpc: 1
data: {source: inline, x: [[2.0, 1.0]], y: [[1.0]]}
model: [&l {linear: {out: 2, init: [[0.5], [0.1]], bias: false}}, *l, dropout: 0.5, gelu]
loss: {mse: , from: gelu1}
""",
)
CHANGES: tuple[Callable[[random.Random, str], bytes], ...] = (
    change_byte,
    change_line,
    change_token,
    change_structure,
)


def load_changed(number: int) -> tuple[str, SpecError | None]:
    source = random.Random(number)
    text = SEEDS[number % len(SEEDS)]
    raw = CHANGES[number // len(SEEDS) % len(CHANGES)](source, text)
    try:
        text = decode(raw, "fuzz.yaml")
        load_spec("fuzz.yaml", LAYERS, LOSSES, OPTIMIZERS, text=text)
    except SpecError as fault:
        return text, fault
    return text, None


@pytest.mark.parametrize("block", range(5))
def test_changed_specs_give_only_errors_with_a_place(block: int) -> None:
    refused = 0
    for number in range(block * 100, block * 100 + 100):
        started = time.perf_counter()
        text, fault = load_changed(number)
        assert time.perf_counter() - started < 1.0, number
        if fault is None:
            continue
        refused += 1
        for item in fault.diagnostics:
            assert item.span is not None, (number, item)
            assert item.span.line >= 1 and item.span.column >= 1, (number, item)
        lines = text
        rendered = render_diagnostics(
            fault.diagnostics, lambda file, line, lines=lines: read_line_of_text(lines, line)
        )
        assert "Traceback" not in rendered
    assert refused > 50


@pytest.mark.parametrize("text", SEEDS)
def test_unchanged_specs_load(text: str) -> None:
    assert load_spec("fuzz.yaml", LAYERS, LOSSES, OPTIMIZERS, text=text).layers
