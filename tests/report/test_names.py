"""Kernels are called by the user's layers, in blocks, residuals and repetitions too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bpc
from bpc.errors import Span
from bpc.ir import Node, Value
from bpc.plan.naming import LONGEST, describe_node, identifier, name_kernel, shorten
from bpc.resources import spec_root
from bpc.runtime.cpu.build import plan
from bpc.types import F32, Rows

BLOCKS = """
bpc: 1
name: three.blocks
data: {source: synthetic, batch: 32, inputs: {x: [16]}, classes: 4}
blocks:
  mlp:
    layers:
      - linear: {name: up, out: 64}
      - gelu
      - linear: {name: a_rather_long_name_for_a_layer, out: 16}
model:
  - repeat: 3
    layers:
      - residual: [layernorm, mlp, tanh: {name: squashed}]
  - linear: {name: head, out: 4}
loss: cross_entropy
train: {steps: 3, optimizer: {sgd: {lr: 0.1, momentum: 0.9}}}
"""


def node(name: str, op: str, scope: str, phase: str = "forward", role: str = "") -> Node:
    value = Value(name, F32, (Rows(), 4))
    span = Span("net.yaml", 1, 1)
    return Node(name, op, (), (value,), (), span, scope, None, phase, role)


def test_long_and_nested_names_stay_short_and_distinct(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(BLOCKS, encoding="utf-8")
    program = plan(bpc.compile(tmp_path / "net.yaml").entries).program
    for entry in program.entries.values():
        names = [kernel.name for kernel in entry.kernels]
        assert len(set(names)) == len(names)
        for name in names:
            assert re.fullmatch(r"[A-Za-z_]\w*", name) and len(name) <= LONGEST
    names = [kernel.name for kernel in program.entries["micro_step"].kernels]
    assert names[1] == "repeat1_0_residual1_mlp1_up_linear_gelu1"
    assert "head_linear_weight_gradient" in names


def test_what_runs_again_says_so() -> None:
    spec = spec_root() / "synthetic_mlp12.yaml"
    least = bpc.compile(spec).plan_memory()["least_feasible_bytes"]
    tight = plan(bpc.compile(spec).entries, least).program.entries["micro_step"]
    again = [kernel.name for kernel in tight.kernels if "_again" in kernel.name]
    assert again and all("linear1_relu1" in name for name in again)
    names = [kernel.name for kernel in tight.kernels]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("fc", "gemm", "fc", role="linear")], "fc_linear"),
        ([node("a", "gemm", "linear1", role="linear"), node("b", "relu", "act")], None),
        ([node("d_x.bias.cols", "col_reduce", "x", "backward")], "x_bias_gradient"),
        ([node("d_x.bias.rows", "row_reduce", "x", "backward")], "x_bias_gradient_rows"),
        ([node("n", "map", "fc.weight", "update", "adam")], "adam_fc_weight"),
        ([node("d_z", "map", "relu1", "backward", "relu_gradient")], "relu1_gradient"),
    ],
)
def test_the_rule(nodes: list[Node], expected: str | None) -> None:
    assert name_kernel(nodes, "flat") == (expected or "linear1_act_relu")


def test_nodes_are_described_in_the_users_words() -> None:
    assert describe_node(node("relu1", "relu", "relu1")) == "relu1"
    assert describe_node(node("z", "gemm", "z", role="linear")) == "z (linear)"
    gradient = node("d_z", "map", "loss", "backward", "cross_entropy_gradient")
    assert describe_node(gradient) == "loss (cross entropy) gradient"
    assert describe_node(node("relu1~2", "relu", "relu1", "backward")) == "relu1 again"


def test_names_become_identifiers() -> None:
    assert identifier("blocks.3.q#1") == "blocks_3_q_part1"
    assert identifier("1st") == "v1st"
    assert identifier("relu1~2") == identifier("relu1")
    long = shorten("a" * 100)
    assert len(long) == LONGEST and long != shorten("a" * 101)
