from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_stand_in import MADE, write_spec
from fake_cupy import WORLD, make_cupy

import bpc
from bpc.codegen.cuda import CudaSource, generate
from bpc.plan.program import Program
from bpc.runtime import cuda_build
from bpc.runtime.cpu.build import plan

# Graphs around single ops are made by the helpers of the op tests.
sys.path.append(str(Path(__file__).parent.parent / "ops"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fresh stand-in; afterwards nothing may be left or have gone wrong."""
    monkeypatch.setitem(sys.modules, "cupy", make_cupy())
    monkeypatch.setattr(cuda_build, "has_driver", lambda: True)
    for name in ("BPC_CUDA_GRAPH", "BPC_CUDA_SLOTS", "BPC_CUDA_AHEAD", "BPC_CUBLASLT"):
        monkeypatch.delenv(name, raising=False)
    yield WORLD
    WORLD.kernel_error = WORLD.capture_error = WORLD.execute = None
    while MADE:
        MADE.pop().close()
    gc.collect()
    assert WORLD.faults == []


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return bpc.compile(write_spec(tmp_path_factory.mktemp("spec")), device="reference")


@pytest.fixture(scope="module")
def built(net: Any) -> tuple[Program, CudaSource]:
    program = plan(net.entries).program
    return program, generate("small", program)
