"""Defects planted in the CUDA text are found, and the report says where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bpc.api import compile as compile_net
from bpc.codegen import cuda
from bpc.diagnose import session
from bpc.diagnose.kernels import Run
from bpc.runtime.sim.launch import LaunchOptions

ROOT = Path(__file__).parents[2]
RUNS = (
    Run("source", LaunchOptions(order="reverse", seconds=20.0, max_accesses=50_000_000)),
    Run("ptx", LaunchOptions(order="random", seed=3, seconds=20.0, max_accesses=50_000_000)),
)

DEFECTS = {
    "a row too many": ("if (r >= rows) return;", "if (r > rows) return;"),
    "a swapped stride": ("r * 10 + c", "r * 11 + c"),
    "a wrong constant": ("* bpc_warp + column", "* (bpc_warp - 1) + column"),
    "a guard dropped": ("if (slot == 0 && c <", "if (c <"),
}
HEADER_DEFECTS = {
    "no barrier after loading tiles": (
        "    __syncthreads();\n    const int part",
        "    const int part",
    ),
    "no barrier after using tiles": ("    }\n    __syncthreads();\n  }\n", "    }\n  }\n"),
    "no fence before the ticket": ("    __threadfence();\n    last =", "    last ="),
    "a tile that ends too late": (
        "k - k0 < bpc_block_k ? int(k - k0) : bpc_block_k",
        "bpc_block_k + 1",
    ),
    "a shuffle that skips lanes": (
        "for (int step = bpc_lanes / 2; step > 0",
        "for (int step = bpc_lanes / 4; step > 0",
    ),
    "rows beyond the matrix": ("if (row < m && count > 0)", "if (row <= m && count > 0)"),
}


def found_after(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> list[dict[str, Any]]:
    """What the check of the digits network finds once the text is changed."""
    given = session.self_contained

    def planted(source: cuda.CudaSource, name: str) -> str:
        text = given(source, name)
        assert old in text, f"the text no longer has {old!r}"
        return text.replace(old, new)

    monkeypatch.setattr(session, "self_contained", planted)
    monkeypatch.setattr("bpc.diagnose.kernels.self_contained", planted)
    net = compile_net(str(ROOT / "specs" / "digits_mlp.yaml"), device="reference")
    done = session.check_network(net.spec, net.description, net.data, 20, RUNS)
    return list(session.to_json(done)["findings"])


@pytest.mark.parametrize("defect", [*DEFECTS, *HEADER_DEFECTS])
def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    old, new = (DEFECTS | HEADER_DEFECTS)[defect]
    findings = found_after(monkeypatch, old, new)
    assert findings, "nothing was found"
    first = findings[0]
    assert first["function"] and first["nodes"]
    assert all("digits_mlp.yaml" in place["file"] for place in first["places"])


def test_a_run_says_what_it_was() -> None:
    run = Run("ptx", replace(LaunchOptions(), order="random", seed=3))
    assert "ptx" in str(run) and "3" in str(run)
