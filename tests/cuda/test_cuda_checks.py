"""Every CUDA kernel of the zoo: three architectures, both simulator modes, float64 values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpc.api import compile as compile_net
from bpc.cli.main import main

ROOT = Path(__file__).parents[2]
SPECS = sorted(path for path in (ROOT / "specs").rglob("*.yaml"))
ARCHITECTURES = {"sm_75", "sm_90", "sm_100"}


def check(path: Path, **sets: object) -> dict[str, object]:
    net = compile_net(str(path), set=sets, device="reference")
    return net.check_kernels(20)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_nothing_is_found_in_the_zoo(path: Path) -> None:
    result = check(path)
    assert result["findings"] == []
    assert result["spilling"] == []
    assert result["ok"]
    for kernel in result["kernels"]:
        assert kernel["error" if "error" in kernel else "max_error"] <= kernel["bound"]
        assert set(kernel["resources"]) == ARCHITECTURES


@pytest.mark.parametrize("precision", ["fp64", "bf16", "fp16"])
def test_nothing_is_found_in_any_precision(precision: str) -> None:
    result = check(ROOT / "specs" / "small_conv.yaml", **{"train.precision": precision})
    assert result["findings"] == [] and result["spilling"] == []


def test_conditions_in_lines_that_are_no_whole_bytes(tmp_path: Path) -> None:
    spec = tmp_path / "lines.yaml"
    spec.write_text(
        "bpc: 1\n"
        "data: {source: digits, batch: 20, shape: [4, 4, 4]}\n"
        "model:\n"
        "  - conv2d: {out: 5, kernel: 2, stride: 2, padding: 1}\n"
        "  - layernorm: 3\n"
        "  - relu\n"
        "  - dropout: 0.1\n"
        "  - flatten\n"
        "  - linear: 10\n"
        "loss: cross_entropy\n"
        "train: {lr: 1e-3, steps: 3, precision: fp16}\n"
    )
    result = check(spec)
    assert result["findings"] == [] and result["spilling"] == []


HELD = """\
bpc: 1
data: {{source: synthetic, shape: [6], classes: 33, rows: 20, test_rows: 4, batch: 20}}
model:
  - linear: 16
  - softmax
  - linear: 17
  - layernorm
  - linear: 256
  - log_softmax
  - linear: 257
  - softmax
  - linear: 33
loss: cross_entropy
train: {{lr: 1e-3, steps: 3, precision: {precision}}}
"""


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_rows_in_registers_of_every_width(precision: str, tmp_path: Path) -> None:
    """One element, a half of the warp, a whole one, the longest that is held, and one more."""
    spec = tmp_path / "held.yaml"
    spec.write_text(HELD.format(precision=precision))
    result = check(spec)
    assert result["findings"] == [] and result["spilling"] == []


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(ROOT / "specs" / "worked" / "neuron.yaml")
    assert main(["check", spec, "--kernels", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] and result["command"] == "check"
    assert {"rows", "kernels", "findings", "spilling"} <= set(result)
    assert "errors" not in result
