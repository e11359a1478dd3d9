"""Grouping looks at every value once, however often and through however many layers it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import bpc
from bpc.plan.segments import MOST_SEGMENTS, find_chain
from bpc.runtime.cpu.build import plan

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


def test_parts_of_a_long_chain_are_kept_together(tmp_path: Path) -> None:
    """150 layers are searched in at most 128 parts, and a budget may still repeat most of them."""
    path = tmp_path / "net.yaml"
    text = SPEC.format(layers=150, layer="linear: 4, relu")
    path.write_text(text.replace("rows: 8", "rows: 512").replace("batch: 4", "batch: 512"))
    net = bpc.compile(path, device="reference")
    chain = find_chain(plan(net.entries).program.entries["micro_step"].graph, 512)
    assert MOST_SEGMENTS / 2 < len(chain.segments) <= MOST_SEGMENTS
    facts = net.plan_memory()
    assert facts["least_feasible_bytes"] < facts["planned_peak_bytes"] / 2


@pytest.mark.parametrize("first", ["linear: 1", "linear: 2"])
@pytest.mark.parametrize("more", ["", "prelu, "])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_layers_of_one_element(first: str, more: str, accumulate: int, tmp_path: Path) -> None:
    """Gradients that are single numbers share no kernel with single numbers of the forward pass."""
    path = tmp_path / "net.yaml"
    path.write_text(
        "bpc: 1\n"
        "data: {source: synthetic, shape: [4], classes: 3, rows: 8, test_rows: 4, batch: 4}\n"
        f"model: [{first}, {more}linear: 3]\nloss: cross_entropy\n"
        f"train: {{steps: 2, lr: 0.01, optimizer: sgd, accumulate: {accumulate}}}\n"
    )
    net = bpc.compile(path, device="cpu", threads=1)
    least = net.plan_memory()["least_feasible_bytes"]
    kept = [
        bpc.compile(path, device="cpu", threads=1, memory=memory) for memory in (None, least)
    ]
    for run, made in enumerate(kept):
        made.train(run_dir=tmp_path / f"run{run}")
    weights = [(tmp_path / f"run{run}" / "model.safetensors").read_bytes() for run in (0, 1)]
    assert weights[0] == weights[1]


def test_a_budget_saves_what_residual_blocks_keep(tmp_path: Path) -> None:
    """Gradients along a residual stream are added up block by block, and each sum is dropped."""
    path = tmp_path / "net.yaml"
    text = SPEC.format(layers=24, layer="residual: [linear: 4, relu]")
    path.write_text(text.replace("rows: 8", "rows: 512").replace("batch: 4", "batch: 512"))
    net = bpc.compile(path, device="reference")
    facts = net.plan_memory()
    fixed = facts["classes"]["parameters"] + facts["classes"]["gradients"]
    least, most = (facts[key] - fixed for key in ("least_feasible_bytes", "planned_peak_bytes"))
    assert least < most / 2
