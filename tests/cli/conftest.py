from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

import bpc
from bpc.errors import Diagnostic

PLAN: dict[str, Any] = {
    "planned_peak_bytes": 1_500_000,
    "budget_bytes": 2 * 1024**2,
    "least_feasible_bytes": 700_000,
    "forward_flops": 1000,
    "recompute_flops": 31,
    "overhead_ratio": 0.031,
    "classes": {"parameters": 400_000, "saved": 300_000},
    "tensors": [
        {
            "name": "fc1.y",
            "type": "f32[64, 128]",
            "bytes": 32_768,
            "first": 3,
            "last": 14,
            "offset": 4096,
            "decision": "full",
            "why": "relu reads its sign",
        },
        {
            "name": "fc2.y",
            "bytes": 16_384,
            "first": None,
            "last": None,
            "offset": None,
            "decision": "repeated",
            "why": "cheap",
        },
    ],
}
TRAIN: dict[str, Any] = {
    "steps": 46,
    "device": "cpu",
    "planned_peak_bytes": 1_500_000,
    "arena_bytes": 1_500_000,
    "step_ms_median": 0.1234,
    "final": {"train_loss": 0.05, "test_loss": float("inf"), "test_accuracy": 0.975},
    "run_dir": "runs/digits-mlp-1",
}
COMPILE: dict[str, Any] = {
    "files": ["generated/n/n.cpp", "generated/n/plan.json"],
    "kernels": [{"name": "gemm_fc1"}, {"name": "loss"}],
    "launches_per_step": 9,
}
KERNELS: dict[str, Any] = {
    "launches_per_step": 3,
    "bytes_moved": 6144,
    "moved_ratio": 1.5,
    "flops": 51_400_000,
    "kernels": [
        {
            "name": "gemm_fc1",
            "from": "linear fc1 :9",
            "launches": 2,
            "bytes_read": 2048,
            "bytes_written": 1024,
            "flops": 51_400_000,
        },
        {
            "name": "predict_fc1",
            "from": "linear fc1 :9",
            "launches": 0,
            "bytes_read": 2048,
            "bytes_written": 1024,
            "flops": 51_400_000,
        },
    ],
}


@dataclass
class FakeNet:
    """Stands for a compiled network: answers with fixed results, or raises `fault`."""

    fault: BaseException | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    def compile(self, spec: str, **wishes: Any) -> FakeNet:
        self.asked |= {"spec": spec, **wishes}
        return self

    def _answer(self, results: dict[str, Any], **asked: Any) -> dict[str, Any]:
        self.asked |= asked
        if self.fault:
            raise self.fault
        return results

    def train(self, progress: Any, **asked: Any) -> dict[str, Any]:
        facts = {"name": "digits-mlp", "parameters": 17_226, "precision": "fp32", "device": "cpu"}
        progress.on_start({**facts, "threads": 2, "planned_peak_bytes": 1_500_000})
        for step in range(1, 47):
            progress.on_step(step, 46, 0.5)
        row = {"epoch": 2, "step": 46, "train_loss": 0.05, "test_loss": 0.09, "lr": 2e-3}
        progress.on_evaluation({**row, "test_accuracy": 0.975, "step_ms": 0.12})
        progress.on_evaluation(row)
        return self._answer({**TRAIN, "notes": self.notes}, **asked)

    def lint(self) -> list[Diagnostic]:
        return self.warnings

    def plan_memory(self, **asked: Any) -> dict[str, Any]:
        return self._answer(PLAN, **asked)

    def write(self, **asked: Any) -> dict[str, Any]:
        return self._answer(COMPILE, **asked)

    def inspect(self, kernel: str | None, **asked: Any) -> dict[str, Any]:
        shown = {"source": "void f() {}\n"} if kernel else KERNELS
        return self._answer(shown, kernel=kernel, **asked)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> FakeNet:
    """Commands are thin: what they ask of `bpc.api` and print of its answers is tested here."""
    fake = FakeNet()
    module = ModuleType("bpc.api")
    module.compile = fake.compile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bpc.api", module)
    monkeypatch.setattr(bpc, "api", module, raising=False)
    return fake


Outcome = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `bpc` in this process: exit code, stdout, stderr."""
    from bpc.cli.main import main

    def call(*words: str) -> Outcome:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call
