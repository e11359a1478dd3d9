"""`spec.resolved.yaml` says the same as the files, the command line and defaults together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bpc import api
from bpc.errors import Collector, Span
from bpc.spec.merge import from_python
from bpc.spec.model import Spec
from bpc.spec.resolved import _block, write_resolved
from bpc.spec.schema import to_plain
from bpc.spec.yamlnodes import read_yaml

ZOO = sorted((Path(__file__).parents[2] / "specs").rglob("*.yaml"))

BASE = """\
bpc: 1
data: {source: digits, batch: 64}
model: [linear: 10]
loss: cross_entropy
train: {optimizer: {adam: {lr: 1e-3, beta1: 0.8}}, steps: 9}
"""
CHILD = """\
bpc: 1
extends: base/base.yaml
data: {source: synthetic, shape: [6], classes: 3, rows: 40, test_rows: 8, batch: 16}
functions: {soft: {args: [x, k], formula: "x * sigmoid(k * x)"}, "two": "2.50"}
parameters: {w: {init: [[1, -2.5, .5]]}}
blocks:
  mlp: {args: {dim: 8, factor: null}, layers: [linear: "${dim * factor}", dropout: 0.25]}
model:
  - mlp: {factor: 2}
  - {repeat: 2, layers: [{residual: [{linear: 16, name: inner}, relu]}, {soft: , from: [inner1]}]}
  - {name: last, linear: {out: 3, init: {normal: {std: 0.1}}}}
  - {add: , from: [last, w]}
"""


def without_places(value: Any) -> Any:
    """Plain data of a spec; where things stand, and in which file, does not count."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        kept = [name for name in names if name not in ("path", "files", "spans", "origins")]
        return [without_places(getattr(value, name)) for name in kept if name != "span"]
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [without_places(item) for item in value]
    assert not isinstance(value, Span)
    return value


def load_text(text: str, folder: Path) -> Spec:
    path = folder / "resolved.yaml"
    path.write_text(text, encoding="utf-8")
    return api.compile(path).spec


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_every_spec_reads_back(path: Path, tmp_path: Path) -> None:
    sets = {"train.clip": "{global_norm: 0.5}", "train.schedule": "{cosine: 0.25}"}
    sets["train.checkpoint"] = "{keep: 3, best: false}"
    spec = api.compile(path, set=sets, memory="4MiB", seed=9).spec
    text = write_resolved(spec)
    again = load_text(text, tmp_path)
    assert without_places(again) == without_places(spec)
    assert again.seed == 9 and again.train.memory_bytes == 4 * 1024**2
    assert write_resolved(again).splitlines()[1:] == text.splitlines()[1:]


FURTHER: list[dict[str, Any]] = [
    {
        "train.groups": '{"*.weight": {lr: 0.5}, "*": {weight_decay: 0}}',
        "train.warmup": "{share: 0.2}",
    },
    {"train.groups": "[{match: ['*.w*', '*.bias'], lr_factor: 2}]", "train.gradients": "fp32"},
    {"train.clip": '{groups: {"*.weight": 2}}', "train.schedule": "inverse_sqrt"},
    {"train.clip": "{value: 0.5}", "train.schedule": "{step: {milestones: [3, 5], factor: 0.5}}"},
    {
        "train.optimizer": "{sgd: {lr: 1, momentum: 0.9, nesterov: true}}",
        "train.schedule": "{step: 7}",
    },
    {"train.optimizer": "{rmsprop: {lr: 1, centered: true}}", "train.schedule": "{linear: 0.5}"},
    {"train.precision": "fp16", "train.loss_scale": "{start: 64, floor: 16}"},
    {"model": "[{linear: 10, precision: bf16}, {layers: [relu], precision: fp64}]"},
    {"loss": "{cross_entropy: {class_weights: [1, 2, 3, 4, 5, 6, 7, 8, 9, 0.5]}}"},
]


@pytest.mark.parametrize("sets", FURTHER, ids=lambda sets: ",".join(sets))
def test_every_form_of_a_setting_reads_back(sets: dict[str, Any], tmp_path: Path) -> None:
    path = next(path for path in ZOO if path.stem == "digits_mlp")
    spec = api.compile(path, set=sets).spec
    text = write_resolved(spec)
    again = load_text(text, tmp_path)
    assert without_places(again) == without_places(spec)
    assert write_resolved(again).splitlines()[1:] == text.splitlines()[1:]


def write_files(folder: Path) -> None:
    (folder / "base").mkdir()
    (folder / "base" / "base.yaml").write_text(BASE)
    child = CHILD.replace("{soft: , from: [inner1]}", "{soft: , from: [residual1, residual1]}")
    (folder / "child.yaml").write_text(child)


def test_a_run_can_be_repeated_from_its_folder(tmp_path: Path) -> None:
    write_files(tmp_path)
    sets = {"train.lr": "0.05", "model.last.linear.bias": "false", "name": "of-child"}
    first = api.compile("child.yaml", set=sets, seed=4, device="reference")
    first.train(steps=3, run_dir="first")
    folder = Path("first")
    assert (folder / "spec.yaml").read_bytes() == Path("child.yaml").read_bytes()
    assert (folder / "spec.base1.yaml").read_text() == BASE
    again = api.compile(folder / "spec.resolved.yaml", device="reference")
    expected = dataclasses.replace(first.spec.train, steps=3, epochs=None)
    limited = dataclasses.replace(first.spec, train=expected)
    assert without_places(again.spec) == without_places(limited)
    again.train(run_dir="again")
    left, right = (Path(name) / "model.safetensors" for name in ("first", "again"))
    assert left.read_bytes() == right.read_bytes()


@pytest.mark.parametrize(
    "text",
    ["yes", "1e-4", "null", "~", "", "a: b", "- x", "#", 'say "no"', "tab\t\\", "ü☃\u2028\x7f"],
)
def test_text_stays_text(text: str) -> None:
    value = {"key": [text, {text or "k": 1}], "numbers": [1, 1.0, -2.5e-9, True, None, 1e22]}
    lines = _block(from_python(value, Span("x", 1, 1)))
    assert to_plain(read_yaml("\n".join(lines), "x", Collector())) == value
