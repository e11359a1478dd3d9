"""What tests of the GPU's host side share: a small program on the stand-in for CuPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bpc.codegen.cuda import CudaSource
from bpc.plan.program import Program
from bpc.runtime.cuda import connect
from bpc.runtime.cuda_build import compile_options
from bpc.runtime.cuda_device import CudaDevice, CudaOptions

SPEC = """
bpc: 1
name: small
data: {source: synthetic, shape: [5], classes: 3, rows: 40, test_rows: 12, batch: 8}
model:
  - linear: {name: fc1, out: 6}
  - relu
  - linear: {name: fc2, out: 3}
loss: cross_entropy
train: {epochs: 1, optimizer: {adam: {lr: 1e-2}}, clip: {global_norm: 1.0}}
"""

MADE: list[CudaDevice] = []
"""Devices that the end of a test closes: memory that goes back under a copy is a fault."""


def write_spec(folder: Path, **changes: str) -> Path:
    text = SPEC
    for old, new in changes.items():
        text = text.replace(old, new)
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def make(built: tuple[Program, CudaSource], options: CudaOptions | None = None) -> CudaDevice:
    MADE.append(CudaDevice(*built, connect(), compile_options(), options or CudaOptions()))
    return MADE[-1]


def batch(program: Program, seed: int, rows: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        "x": draw.standard_normal((rows, 5)).astype(np.float32),
        "target": draw.integers(0, 3, rows),
    }


def feed(device: CudaDevice, given: dict[str, np.ndarray]) -> int:
    for name, array in given.items():
        device.write_input(name, array)
    return len(given["target"])


def simulated() -> Callable[..., None]:
    """Runs the launched kernels of the unchanged text on the CPU."""
    from bpc.codegen.amalgamate import single_file
    from bpc.runtime.sim.launch import LaunchOptions
    from bpc.runtime.sim.module import load_cuda

    modules: dict[str, Any] = {}

    def execute(module: Any, name: str, grid: int, threads: int, args: Any) -> None:
        if module.code not in modules:
            folders = [Path(option[2:]) for option in module.options if option.startswith("-I")]
            modules[module.code] = load_cuda(single_file(module.code, "small.cu", folders))
        passed = [int(v) if type(v) is np.int64 else v for v in args]
        bound = modules[module.code].bind(name, grid, threads, 0, passed, LaunchOptions())
        assert not bound.run()

    return execute
