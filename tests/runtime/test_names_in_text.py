"""Layers may be called like functions, types and the text's own variables: the text compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from header_drivers import NEEDS_COMPILER

from bpc.api import compile as compile_net

pytestmark = NEEDS_COMPILER

NAMES = (
    "exp", "log", "main", "free", "printf", "memcpy", "f16", "bf16", "uint8_t", "int64_t",
    "bpc_load", "bpc_store", "bpc_gemm", "bpc_kernels", "slice", "rows", "arena", "offsets",
    "r", "c", "q", "c0", "o", "j", "acc", "count", "first", "last", "all", "total", "part",
    "block", "blocks", "unit", "start", "end", "tile", "shape", "units", "image", "channel",
    "line", "finished", "sum", "value", "row", "out", "in_", "tap_row", "a", "a_in", "a_out",
    "a_flags", "a_t0", "a_2", "x_in", "target_in",
)
UNITS = ("linear: 6", "relu", "tanh", 'formula: "x * sigmoid(x) + tanh(x)"', "softmax", "layernorm")


def text() -> str:
    """A chain of layers of many kinds, each under a name of its own."""
    lines = [f"  - {{{UNITS[k % len(UNITS)]}, name: {name}}}" for k, name in enumerate(NAMES)]
    return "\n".join(
        [
            "bpc: 1",
            "name: main",
            "data: {source: synthetic, shape: [6], classes: 3, rows: 8, test_rows: 4, batch: 4}",
            "model:",
            *lines,
            "  - {linear: 3, name: scores}",
            "loss: cross_entropy",
            "train: {steps: 2, precision: fp64, optimizer: {sgd: {lr: 0.1}}}",
        ]
    )


def test_any_name_of_a_layer_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.yaml").write_text(text())
    trained = {}
    for device in ("cpu", "reference"):
        net = compile_net("net.yaml", device=device)
        net.train(steps=2)
        trained[device] = net.parameters()
    assert len(trained["cpu"]) > 20
    for name, value in trained["reference"].items():
        np.testing.assert_allclose(trained["cpu"][name], value, rtol=1e-8, atol=1e-10)
