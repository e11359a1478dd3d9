from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpc import api
from bpc.data.dataset import Dataset

BODY = """\
bpc: 1
name: files
data: {data}
model:{before}
  - linear: {{name: fc1, out: 8}}
  - relu
  - linear: {{name: fc2, out: {out}}}
loss: {loss}
train: {{epochs: 2, precision: {precision}, optimizer: {{adam: {{lr: 0.01}}}}}}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make(work: Path) -> Callable[..., api.Net]:
    """Compiles a small network over a `data` section; spec keys by dots as `a__b=...`."""

    def build(
        data: str,
        out: int = 3,
        device: str = "reference",
        loss: str = "cross_entropy",
        precision: str = "fp32",
        before: str = "",
        **sets: object,
    ) -> api.Net:
        text = BODY.format(data=data, out=out, loss=loss, precision=precision, before=before)
        (work / "net.yaml").write_text(text, encoding="utf-8")
        wishes: dict[str, Any] = {key.replace("__", "."): value for key, value in sets.items()}
        return api.compile("net.yaml", set=wishes, device=device)

    return build


@pytest.fixture
def load(make: Callable[..., api.Net]) -> Callable[..., Dataset]:
    """The data of a `data` section."""

    def read(data: str, **more: Any) -> Dataset:
        return make(data, **{"out": 64, **more}).data

    return read
