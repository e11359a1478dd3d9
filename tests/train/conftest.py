from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpc import api

SMALL = """\
bpc: 1
name: small
data: {source: synthetic, shape: [6], classes: 3, rows: 50, test_rows: 21, batch: 16}
model:
  - linear: {name: fc1, out: 8, init: he}
  - relu: {name: act}
  - linear: {name: fc2, out: 3, init: xavier}
loss: cross_entropy
train:
  epochs: 2
  precision: fp64
  optimizer: {sgd: {lr: 0.1}}
"""


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to `runs/` in the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., api.Net]:
    """Compiles a text, the small network by default, on the reference."""

    def build(text: str = SMALL, **settings: object) -> api.Net:
        (tmp_path / "net.yaml").write_text(text, encoding="utf-8")
        sets = {key.replace("__", "."): value for key, value in settings.items()}
        return api.compile("net.yaml", set=sets, device="reference")

    return build


@pytest.fixture
def read_metrics() -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of a run's metrics."""

    def read(result: dict[str, Any]) -> list[dict[str, Any]]:
        text = (Path(result["run_dir"]) / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    return read
