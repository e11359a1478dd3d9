"""Defects planted in the CUDA text are found by the check of a network, which says where."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bpc.api import compile as compile_net
from bpc.codegen import cuda
from bpc.diagnose import session
from bpc.diagnose.kernels import Run
from bpc.runtime.sim.launch import LaunchOptions

SPEC = Path(__file__).parent / "mutated" / "lines.yaml"
OPTIONS = LaunchOptions(order="reverse", seconds=20.0, max_accesses=50_000_000)

DEFECTS = {
    "a row too many": ("if (r >= rows) return;", "if (r > rows) return;"),
    "a column too few": ("c = lane + k * bpc_warp", "c = lane + 1 + k * bpc_warp"),
    "a swapped stride": ("r * 10 + c", "r + c * 10"),
    "a guard dropped": ("if (slot == 0 && c < 10)", "if (c < 10)"),
    "an element too many": ("_pack, all - c0);", "_pack, all - c0 + 1);"),
    "no barrier after loading tiles": (
        "    __syncthreads();\n    const int part",
        "    const int part",
    ),
    "no fence before the ticket": ("    __threadfence();\n    last =", "    last ="),
    "a shuffle that skips lanes": (
        "for (int step = bpc_lanes / 2; step > 0",
        "for (int step = bpc_lanes / 4; step > 0",
    ),
    "another order of additions": ("bpc_lanes = 16;", "bpc_lanes = 32;"),
}
"""What is found, and a change of the text; the last but bits of rounding only."""


def found_after(monkeypatch: pytest.MonkeyPatch, old: str, new: str, mode: str) -> Any:
    """What the check of a network finds once its text is changed."""
    given = session.self_contained

    def planted(source: cuda.CudaSource, name: str) -> str:
        text = given(source, name)
        assert old in text, f"the text no longer has {old!r}"
        return text.replace(old, new)

    monkeypatch.setattr("bpc.diagnose.kernels.self_contained", planted)
    monkeypatch.setattr(session, "measure_resources", lambda text: ())
    net = compile_net(str(SPEC), device="reference")
    done = session.check_network(net.spec, net.description, net.data, 11, [Run(mode, OPTIONS)])
    return session.to_json(done)["findings"]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    findings = found_after(monkeypatch, *DEFECTS[defect], "source")
    assert findings, "nothing was found"
    first = findings[0]
    assert first["function"] and first["nodes"]
    assert all(SPEC.name in place["file"] for place in first["places"])


def test_nothing_is_found_in_the_unchanged_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that gradients overflow fp16 and meet the padding's zeros in the reference."""
    assert found_after(monkeypatch, "bpc_lanes", "bpc_lanes", "source") == []


def test_a_planted_defect_is_found_in_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = found_after(monkeypatch, *DEFECTS["no barrier after loading tiles"], "ptx")
    races = [item for item in findings if "RACE" in item["text"]]
    assert races
    access = r"by thread \d+ of block \d+ at \S+:\d+"
    for item in races:  # who, and both lines; the kernel, its node and its line of the spec
        assert re.search(rf"{access}.*; unordered with \w+ {access}", item["text"])
        assert item["function"].startswith("linear1")
        assert [place["line"] for place in item["places"]] == [12]
    made = {item["nodes"][0] for item in races}
    assert made >= {"linear1", "d_flatten1", "d_linear1.weight"}


def test_a_run_says_what_it_was() -> None:
    run = Run("ptx", replace(LaunchOptions(), order="random", seed=3), tight=True)
    assert str(run) == "ptx random seed 3 tight"
