"""Puts the stand-in in CuPy's place for a whole process, kernels run by the simulator.

As a plugin: `python -m pytest -p gpu_stand_in -m gpu tests/gpu`, with this folder in PYTHONPATH.
"""

from __future__ import annotations

import sys

from cuda_stand_in import simulated
from fake_cupy import WORLD, make_cupy

from bpc.runtime import cuda_build

sys.modules["cupy"] = make_cupy()
cuda_build.has_driver = lambda: True  # type: ignore[assignment]
WORLD.execute = simulated()
WORLD.total = 1 << 34
