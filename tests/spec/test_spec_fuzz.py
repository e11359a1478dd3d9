"""Broken specs: whatever the bytes, the answer is a spec or errors with a place."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from spec_tables import LAYERS, LOSSES, OPTIMIZERS

from bpc.errors import Collector, SpecError
from bpc.report.diagnostics import read_line_of_text, render_diagnostics
from bpc.spec import load_spec
from bpc.spec.schema import to_plain
from bpc.spec.source import decode
from bpc.spec.yamlnodes import read_yaml

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
TOKENS = (
    *("{", "}", "[", "]", ":", "-", ",", "#", "&a", "*a", "<<", "!!python/name:os", "|", ">", "'"),
    *(
        '"',
        "\t",
        "\x00",
        "\ufeff",
        "é",
        "層",
        "1e400",
        ".nan",
        "-1",
        "null",
        "~",
        "true",
        "no",
        "${",
    ),
    *("${9**9**9}", "__import__", "from", "name", "repeat", "residual", "layers", "${dim", "---"),
    *("9" * 50, "0x" + "f" * 30, "x.y.z", "..", "%YAML 9", "? [a]", "\u2028", "\r", "[" * 70),
)


def change_byte(source: random.Random, text: str) -> bytes:
    raw = bytearray(text.encode())
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(raw))
        action = source.randrange(3)
        if action == 0:
            raw[at] = source.randrange(256)
        elif action == 1:
            del raw[at]
        else:
            raw.insert(at, source.randrange(256))
    return bytes(raw)


def change_line(source: random.Random, text: str) -> bytes:
    lines = text.split("\n")
    at, other = source.randrange(len(lines)), source.randrange(len(lines))
    action = source.randrange(5)
    if action == 0:
        del lines[at]
    elif action == 1:
        lines.insert(at, lines[other])
    elif action == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif action == 3:
        lines[at] = " " * source.randint(1, 5) + lines[at]
    else:
        lines[at] = lines[at][: source.randrange(len(lines[at]) + 1)]
    return "\n".join(lines).encode()


def change_token(source: random.Random, text: str) -> bytes:
    words = text.split(" ")
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(words))
        token = source.choice(TOKENS)
        words[at] = token if source.random() < 0.5 else words[at] + token
    return " ".join(words).encode()


ODD: tuple[object, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, float("inf"), "", "x", "no", "1e-3", "a.b", "__x", "${dim}"),
    *([], {}, [[]], [None], {"": 1}, {"linear": None}, ["relu", 3], {"a": {"b": {"c": []}}}),
)


def change_structure(source: random.Random, text: str) -> bytes:
    """Put one part of the tree, or something odd, in the place of another; JSON is YAML."""
    tree = to_plain(read_yaml(text, "fuzz.yaml", Collector()))
    parts = list(walk(tree))
    for _ in range(source.randint(1, 3)):
        holder, key = source.choice(parts)
        other, place = source.choice(parts)
        value = copy.deepcopy(other[place]) if source.random() < 0.5 else source.choice(ODD)
        action = source.randrange(3)
        if action == 0:
            holder[key] = value
        elif isinstance(holder, list):
            holder.insert(source.randrange(len(holder) + 1), value)
        elif action == 1:
            holder[str(place)] = value
        else:
            holder[source.choice(["name", "from", "layers", "args", "w2", "x"])] = value
    return json.dumps(tree, indent=1).encode()


def walk(part: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested lists and mappings, as what holds it and its key."""
    keys = (
        list(part) if isinstance(part, dict) else range(len(part) if isinstance(part, list) else 0)
    )
    for key in keys:
        yield part, key
        yield from walk(part[key])


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
