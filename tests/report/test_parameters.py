"""The list of parameters with their rates and decays."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpc import api

NET = """\
bpc: 1
data: {source: synthetic, shape: [6], classes: 3, batch: 16}
model:
  - linear: {name: fc1, out: 8}
  - layernorm: {name: ln, precision: fp32}
  - linear: {name: fc2, out: 3, precision: bf16}
loss: cross_entropy
train:
  lr: 0.1
  precision: fp16
  optimizer: {adamw: {weight_decay: 0.2}}
  groups: {"fc*": {lr_factor: 0.5}, "fc2.*": {weight_decay: 0.3}, "ln.gamma": {lr: 2}}
  clip: {groups: {"fc2.*": 1}}
"""


def test_every_parameter_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET, encoding="utf-8")
    listed = api.compile("net.yaml").write(out="out")["parameters"]
    rows = [tuple(item.values()) for item in listed]
    assert list(listed[0]) == ["name", "type", "lr", "weight_decay", "decay_exempt", "clip_group"]
    assert rows == [
        ("fc1.weight", "f16", 0.05, 0.2, False, None),
        ("fc1.bias", "f16", 0.05, 0.0, True, None),
        ("ln.gamma", "f32", 2.0, 0.0, True, None),
        ("ln.beta", "f32", 0.1, 0.0, True, None),
        ("fc2.weight", "bf16", 0.05, 0.3, False, "fc2.*"),
        ("fc2.bias", "bf16", 0.05, 0.3, False, "fc2.*"),
    ]
