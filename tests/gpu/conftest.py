"""What only a device can confirm, one test per line of docs/cuda.md: `pytest -m gpu -n 0`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bpc
from bpc.resources import spec_root

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def open_net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Networks of specs/ on a device, closed at the end."""
    made: list[Any] = []
    for name in ("BPC_CUDA_GRAPH", "BPC_CUDA_SLOTS", "BPC_CUDA_AHEAD", "BPC_CUBLASLT"):
        monkeypatch.delenv(name, raising=False)

    def make(name: str = "digits_mlp", device: str = "cuda", **settings: Any) -> Any:
        sets = {key.replace("__", "."): value for key, value in settings.items()}
        made.append(bpc.compile(spec_root() / f"{name}.yaml", device=device, set=sets))
        return made[-1]

    yield make
    for net in made:
        net.close()


@pytest.fixture
def gpu() -> Any:
    from bpc.runtime.cuda import connect

    return connect()
