"""The same text gives the same bits: built for the CPU, in source mode, and through PTX."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpc.resources import template_root
from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.build import find_gcc
from bpc.runtime.sim.module import Mode, load_cuda

TYPES = """
typedef int int32_t;
typedef unsigned int uint32_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
"""
FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "softplus", "erf", "sin", "cos", "sqrt")

BODY = "\n".join(f"  y[{i} * n + e] = bpc_{f}(x[e]);" for i, f in enumerate(FUNCTIONS))

KERNEL = f"""
extern "C" __global__ void f32s(const float* x, float* y, int n) {{
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= n) return;
{BODY}
}}
extern "C" __global__ void f64s(const double* x, double* y, int n) {{
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= n) return;
{BODY}
}}
extern "C" __global__ void uniform(float* y, long long seed, int n) {{
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e < n) y[e] = bpc_uniform(seed, 3, 5, e);
}}
"""

CPU = f"""
#include "bpc_math.h"
#include <xmmintrin.h>
template <class T> void all(const T* x, T* y, int n) {{
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
  for (int e = 0; e < n; ++e) {{
{BODY}
  }}
  _mm_setcsr(mode);
}}
extern "C" void f32s(const float* x, float* y, int n) {{ all(x, y, n); }}
extern "C" void f64s(const double* x, double* y, int n) {{ all(x, y, n); }}
extern "C" void uniform(float* y, long long seed, int n) {{
  for (int e = 0; e < n; ++e) y[e] = bpc_uniform(seed, 3, 5, e);
}}
"""


def headers() -> str:
    return (template_root() / "cpu" / "include" / "bpc_math.h").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("bits")
    source, library = folder / "bits.cpp", folder / "bits.so"
    source.write_text(CPU)
    include = f"-I{template_root() / 'cpu' / 'include'}"
    flags = ["-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", include]
    command = [find_gcc().command, str(source), "-o", str(library), *flags]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def arguments(dtype: type) -> np.ndarray:
    random = np.random.default_rng(5)
    bits = random.integers(0, 1 << 32, 600, dtype=np.uint32).view(np.float32)
    usual = random.standard_normal(1400) * np.exp(random.uniform(-6, 4, 1400))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1.0, -1.0, 88.8, -103.9])
    # f64 subnormals are kept by a device and flushed here, so that none are among these.
    return np.concatenate([bits.astype(dtype), usual.astype(dtype), special.astype(dtype)])


@pytest.mark.parametrize("mode", ["source", "ptx"])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mathematics_gives_the_bits_of_the_cpu(
    mode: Mode, checked: bool, dtype: type, cpu: ctypes.CDLL
) -> None:
    module = load_cuda(TYPES + headers() + KERNEL, mode, checked, name="bits.cu")
    with np.errstate(all="ignore"):
        x = arguments(dtype)
    n = x.size
    name = "f32s" if dtype is np.float32 else "f64s"
    wanted = np.empty((len(FUNCTIONS), n), dtype)
    getattr(cpu, name)(x.ctypes.data_as(ctypes.c_void_p), wanted.ctypes.data_as(ctypes.c_void_p), n)
    found = GuardedBuffer(wanted.shape, dtype, "y")
    given = GuardedBuffer.of(x, "x", read_only=True)
    assert module.launch(name, (n + 127) // 128, 128, 0, [given, found, n]) == ()
    unsigned = np.uint32 if dtype is np.float32 else np.uint64
    both_nan = np.isnan(wanted) & np.isnan(found.array)
    same = (wanted.view(unsigned) == found.array.view(unsigned)) | both_nan
    wrong = {f: int((~row).sum()) for f, row in zip(FUNCTIONS, same, strict=True) if not row.all()}
    assert wrong == {}


@pytest.mark.parametrize("mode", ["source", "ptx"])
def test_random_numbers_give_the_bits_of_the_cpu(mode: Mode, cpu: ctypes.CDLL) -> None:
    module = load_cuda(TYPES + headers() + KERNEL, mode, False, name="bits.cu")
    wanted = np.empty(1001, np.float32)
    seed = ctypes.c_longlong(0x1234_5678_9ABC)
    cpu.uniform(wanted.ctypes.data_as(ctypes.c_void_p), seed, 1001)
    found = GuardedBuffer(1001, np.float32, "y")
    assert module.launch("uniform", 8, 128, 0, [found, 0x1234_5678_9ABC, 1001]) == ()
    assert np.array_equal(found.array, wanted) and np.unique(wanted).size > 900
