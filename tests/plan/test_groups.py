"""Grouping looks at every value once, however often and through however many layers it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import bpc

SPEC = """\
bpc: 1
data: {{source: synthetic, shape: [4], classes: 3, rows: 8, test_rows: 4, batch: 4}}
model:
  - {{repeat: {layers}, name: deep, layers: [{layer}]}}
  - linear: 3
loss: cross_entropy
train: {{steps: 1, lr: 0.01, optimizer: sgd}}
"""


@pytest.mark.parametrize("layer", ["residual: [mul: 1.0]", "residual: [mul: 0.5, tanh]"])
def test_a_value_that_every_layer_reads_twice(layer: str, tmp_path: Path) -> None:
    """Of 200 such layers there are 2^200 paths to the input."""
    path = tmp_path / "net.yaml"
    path.write_text(SPEC.format(layers=200, layer=layer))
    net = bpc.compile(path, device="reference")
    facts = net.plan_memory()
    assert facts["planned_peak_bytes"] >= facts["least_feasible_bytes"] > 0
