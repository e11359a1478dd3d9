"""C++ drivers around the headers of generated CPU programs, and how tests call them."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

INCLUDE = Path(__file__).parents[2] / "templates" / "cpu" / "include"
COMPILER = shutil.which("g++") or shutil.which("clang++")
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
FLAGS = [
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fopenmp-simd", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"),
]


def _levels() -> tuple[str, ...]:
    """Instruction sets that this processor runs, the best first."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    haswell = ("haswell",) if {"avx2", "fma", "bmi2", "f16c"} <= flags else ()
    return ("native", *haswell, "x86-64") if "sse2" in flags else ("native",)


LEVELS = _levels()
UNARY = [
    *("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"),
    *("sigmoid", "softplus", "sqrt", "rsqrt", "recip", "sign"),
]
MATH = """
#include "bpc_random.h"
#define UNARY(T, name) extern "C" void name##_##T(const T* __restrict x, T* __restrict y, long n) \\
  { _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = bpc_##name(x[i]); }
#define BINARY(T, name) extern "C" void name##_##T( \\
  const T* __restrict x, const T* __restrict z, T* __restrict y, long n) \\
  { _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = bpc_##name(x[i], z[i]); }
#define CONVERT(name, A, B) extern "C" void name(const A* __restrict x, B* __restrict y, long n) \\
  { _Pragma("omp simd") for (long i = 0; i < n; ++i) bpc_store(y, i, bpc_load(x, i)); }
@UNARY@
BINARY(float, pow) BINARY(double, pow) BINARY(float, max) BINARY(float, min)
BINARY(float, masked_mul)
CONVERT(float_to_f16, float, f16) CONVERT(f16_to_float, f16, float)
CONVERT(float_to_bf16, float, bf16) CONVERT(bf16_to_float, bf16, float)
CONVERT(double_to_f16, double, f16) CONVERT(double_to_bf16, double, bf16)
extern "C" void uniform(long seed, long window, long stream, long first, float* y, long n) {
  _Pragma("omp simd")
  for (long i = 0; i < n; ++i) y[i] = bpc_uniform(seed, window, stream, first + i);
}
extern "C" void fill(long seed, long window, long stream, long first, float* y, long n) {
  bpc_uniform_fill(y, seed, window, stream, first, n);
}
extern "C" uint32_t philox(const uint32_t* counter, const uint32_t* key, uint32_t word) {
  return bpc_philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1]).word[word];
}
extern "C" void mask(const uint8_t* flags, uint8_t* bits, uint8_t* again, long first, long n) {
  bpc_bits_store(bits, first, flags, n);
  for (long i = 0; i < n; ++i) again[i] = bpc_bit_load(bits, first + i);
}
""".replace("@UNARY@", "\n".join(f"UNARY(float, {n}) UNARY(double, {n})" for n in UNARY))
REDUCE = """
#include "bpc_reduce.h"
#define ROWS(T) extern "C" void rows_##T(const T* x, T* y, long n) { \\
  y[0] = bpc_row_sum<T>(n, [&](long j) { return x[j]; }); \\
  y[1] = bpc_row_max<T>(n, [&](long j) { return x[j]; }); }
ROWS(float) ROWS(double)
"""
GEMM = """
#include "bpc_gemm.h"
struct Strides { long a_row, a_col, b_row, b_col, m0, m1, n0, n1, n, k; };
template <class Acc, class TA, class TB>
static void product(const void* left, const void* right, const Strides& s, Acc* c, bool plain) {
  const TA* a = static_cast<const TA*>(left);
  const TB* b = static_cast<const TB*>(right);
  if (!plain) {
    bpc_gemm<Acc>(a, s.a_row, s.a_col, b, s.b_row, s.b_col, s.m0, s.m1, s.n0, s.n1, s.k,
                  [&](long i, long j, long count, const Acc* acc) {
      _Pragma("omp simd") for (long q = 0; q < count; ++q) c[i * s.n + j + q] += acc[q];
    });
    return;
  }
  for (long i = s.m0; i < s.m1; ++i) {
    for (long j = s.n0; j < s.n1; ++j) {
      Acc sum = 0;
      for (long p = 0; p < s.k; ++p) {
        sum = bpc_fma(Acc(bpc_load(a, i * s.a_row + p * s.a_col)),
                      Acc(bpc_load(b, p * s.b_row + j * s.b_col)), sum);
      }
      c[i * s.n + j] += sum;
    }
  }
}
extern "C" void tile(long m, long n, long slices_m, long slices_n, long slice, bpc_tile* t) {
  *t = bpc_gemm_tile(m, n, slices_m, slices_n, slice);
}
#define PAIR(TA, TB, Acc) extern "C" void gemm_##TA##_##TB( \\
  const void* a, const void* b, const Strides* s, Acc* c, bool plain) \\
  { product<Acc, TA, TB>(a, b, *s, c, plain); }
PAIR(float, float, float) PAIR(float, f16, float) PAIR(float, bf16, float)
PAIR(f16, float, float) PAIR(f16, f16, float) PAIR(f16, bf16, float)
PAIR(bf16, float, float) PAIR(bf16, f16, float) PAIR(bf16, bf16, float)
PAIR(double, double, double) PAIR(double, float, double) PAIR(float, double, double)
PAIR(bf16, double, double)
"""
CONV = """
#include "bpc_conv.h"
template <class Acc, class T>
static void fast(int way, const bpc_conv& s, const T* left, const T* right, long images, long part,
                 long parts, Acc* out) {
  const long units = way == 0 ? bpc_conv_forward_units(s, images)
                   : way == 1 ? bpc_conv_input_units(s, images) : bpc_conv_weight_units(s);
  const long u0 = units * part / parts, u1 = units * (part + 1) / parts;
  if (way == 0) {
    bpc_conv_forward<Acc>(s, left, right, images, u0, u1,
        [&](long n, long c, long row, long col, long count, const Acc* acc) {
      Acc* line = out + ((n * s.out_channels + c) * s.out_height + row) * s.out_width + col;
      for (long q = 0; q < count; ++q) line[q] += acc[q];
    });
  } else if (way == 1) {
    bpc_conv_input_gradient<Acc>(s, left, right, images, u0, u1,
        [&](long n, long c, long row, long col, long count, const Acc* acc) {
      Acc* line = out + ((n * s.in_channels + c) * s.height + row) * s.width + col;
      for (long q = 0; q < count; ++q) line[q] += acc[q];
    });
  } else {
    bpc_conv_weight_gradient<Acc>(s, left, right, images, u0, u1,
        [&](long o, long c, long kh, long kw, Acc value) {
      out[((o * s.in_channels + c) * s.kernel_h + kh) * s.kernel_w + kw] += value;
    });
  }
}
// The definition: every tap that does not fall on padding, in the order of the loops.
template <class Acc, class T>
static void plain(int way, const bpc_conv& s, const T* left, const T* right, long images,
                  Acc* out) {
  const long taps = s.kernel_h * s.kernel_w, weights = s.out_channels * s.in_channels * taps;
  Acc* lanes = new Acc[weights * 16]();
  for (long n = 0; n < images; ++n)
  for (long o = 0; o < s.out_channels; ++o)
  for (long c = 0; c < s.in_channels; ++c)
  for (long kh = 0; kh < s.kernel_h; ++kh)
  for (long kw = 0; kw < s.kernel_w; ++kw)
  for (long oh = 0; oh < s.out_height; ++oh)
  for (long ow = 0; ow < s.out_width; ++ow) {
    const long ih = oh * s.stride_h + kh - s.pad_h, iw = ow * s.stride_w + kw - s.pad_w;
    if (ih < 0 || ih >= s.height || iw < 0 || iw >= s.width) continue;
    const long x = ((n * s.in_channels + c) * s.height + ih) * s.width + iw;
    const long w = (o * s.in_channels + c) * taps + kh * s.kernel_w + kw;
    const long y = ((n * s.out_channels + o) * s.out_height + oh) * s.out_width + ow;
    const long first = way == 1 ? y : x, second = way == 2 ? y : w;
    Acc& sum = way == 0 ? out[y] : way == 1 ? out[x] : lanes[w * 16 + ow % 16];
    sum = bpc_fma(Acc(bpc_load(left, first)), Acc(bpc_load(right, second)), sum);
  }
  for (long w = 0; way == 2 && w < weights; ++w) {
    Acc* lane = lanes + w * 16;
    for (long step = 8; step > 0; step /= 2) {
      for (long l = 0; l < step; ++l) lane[l] += lane[l + step];
    }
    out[w] = lane[0];
  }
  delete[] lanes;
}
#define CONV(T, Acc) extern "C" void conv_##T(int way, const bpc_conv* s, const T* left, \\
  const T* right, long images, long parts, Acc* out) { \\
  if (parts == 0) plain<Acc>(way, *s, left, right, images, out); \\
  for (long part = 0; part < parts; ++part) { \\
    fast<Acc>(way, *s, left, right, images, part, parts, out); } }
CONV(float, float) CONV(double, double) CONV(bf16, float)
"""
TEAM = """
#include "bpc_math.h"
#include "bpc_team.h"
// Slice s of 8 writes its eighth; `mix` then reads the whole of what `fill` wrote.
static void fill(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  float* x = reinterpret_cast<float*>(arena + offsets[0]);
  for (int64_t i = rows * slice / 8; i < rows * (slice + 1) / 8; ++i) x[i] = x[i] * 0.5f + float(i);
}
static void mix(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* x = reinterpret_cast<const float*>(arena + offsets[0]);
  float* y = reinterpret_cast<float*>(arena + offsets[1]);
  for (int64_t i = rows * slice / 8; i < rows * (slice + 1) / 8; ++i) {
    y[i] = bpc_fma(y[i], 0.25f, x[rows - 1 - i]);
  }
}
static void nothing(char*, const int64_t*, int64_t, int64_t) {}
static void tiny(char* arena, const int64_t* offsets, int64_t, int64_t slice) {
  volatile float least = 0x1p-126f;
  reinterpret_cast<float*>(arena + offsets[0])[slice] = least * 0.5f;
}
const bpc_kernel bpc_kernels[] = {fill, mix, nothing, tiny};
extern "C" float half_of_least() { volatile float least = 0x1p-126f; return least * 0.5f; }
"""
SOURCES = {"math": MATH, "reduce": REDUCE, "gemm": GEMM, "conv": CONV, "team": TEAM}
NUMBERS = {"float": np.float32, "double": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


_folder = tempfile.TemporaryDirectory(prefix="bpc-headers-")


@functools.cache
def driver(name: str, level: str = "native") -> ctypes.CDLL:
    """The driver of that name compiled for an instruction set, once per process."""
    source = Path(_folder.name, f"{name}.cpp")
    target = source.with_name(f"{name}-{level}.so")
    source.write_text(SOURCES[name])
    command = [str(COMPILER), *FLAGS, f"-march={level}", f"-I{INCLUDE}", str(source)]
    done = subprocess.run(
        [*command, "-o", str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(target))


def call(function: object, *arguments: object) -> None:
    """Call a C function: arrays as pointers, whole numbers as long."""
    convert = {np.ndarray: lambda a: ctypes.c_void_p(a.ctypes.data), int: ctypes.c_long}
    function(*[convert.get(type(a), lambda a: a)(a) for a in arguments])


def mapped(library: ctypes.CDLL, name: str, out: type, *inputs: np.ndarray) -> np.ndarray:
    """y[i] = name(x[i], ...), as the driver's loop computes it."""
    y = np.empty(inputs[0].shape, out)
    call(getattr(library, name), *inputs, y, y.size)
    return y


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal bits; NaNs of any payload are equal."""
    return bool(((bits(x) == bits(y)) | ((x != x) & (y != y))).all())


def random_matrix(rng: np.random.Generator, size: int, kind: str) -> np.ndarray:
    return rng.normal(size=size).astype(NUMBERS[kind])
