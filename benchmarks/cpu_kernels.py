"""Speed of the CPU kernel headers on one core: products, convolutions, functions, the barrier.

    python benchmarks/cpu_kernels.py [--march haswell] [--flags=-mprefer-vector-width=256]

Best of several repetitions; GFLOP/s count two operations per multiply-add, G/s count elements.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

INCLUDE = Path(__file__).parents[1] / "templates" / "cpu" / "include"
FLAGS = [
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fopenmp-simd", "-fPIC", "-shared", "-pthread"),
    *("-fno-thread-jumps", "-mprefer-vector-width=512"),
]
FUNCTIONS = ("exp", "log", "tanh", "erf", "sigmoid", "softplus", "sin", "rsqrt")
SOURCE = """
#include <stdlib.h>
#include "bpc_conv.h"
#include "bpc_gemm.h"
#include "bpc_random.h"
#include "bpc_team.h"
static void nothing(char*, const int64_t*, int64_t, int64_t) {}
const bpc_kernel bpc_kernels[] = {nothing};

template <class T> static T* filled(long n) {
  T* p = static_cast<T*>(aligned_alloc(4096, (n * sizeof(T) + 8191) / 4096 * 4096));
  for (long i = 0; i < n; ++i) bpc_store(p, i, float(rand() % 2001 - 1000) / 1000.0f);
  return p;
}
template <class F> static double best_seconds(long repeats, F&& f) {
  const bpc_float_mode mode;
  int64_t best = INT64_MAX;
  for (long i = 0; i < repeats; ++i) {
    const int64_t start = bpc_nanoseconds();
    f();
    const int64_t took = bpc_nanoseconds() - start;
    best = took < best ? took : best;
  }
  return double(best) * 1e-9;
}

template <class T, class Acc>
static double gemm(long m, long k, long n, bool a_turned, bool b_turned) {
  T *a = filled<T>(m * k), *b = filled<T>(k * n), *y = filled<T>(m * n);
  const double seconds = best_seconds(50, [&] {
    bpc_gemm<Acc>(a, a_turned ? 1 : k, a_turned ? m : 1, b, b_turned ? 1 : n, b_turned ? k : 1,
                  0, m, 0, n, k, [&](long i, long j, long count, const Acc* acc) {
      _Pragma("omp simd")
      for (long q = 0; q < count; ++q) bpc_store(y, i * n + j + q, bpc_max(acc[q], Acc(0)));
    });
  });
  free(a), free(b), free(y);
  return 2e-9 * double(m) * double(n) * double(k) / seconds;
}
#define GEMM(T, Acc) extern "C" double gemm_##T(long m, long k, long n, long ta, long tb) \\
  { return gemm<T, Acc>(m, k, n, ta != 0, tb != 0); }
GEMM(float, float) GEMM(double, double) GEMM(bf16, float) GEMM(f16, float)

extern "C" double conv(long way, long images, long in, long out, long size, long kernel,
                       long stride, long pad) {
  const long result = (size + 2 * pad - kernel) / stride + 1;
  const bpc_conv s = {in, size, size, out, result, result,
                      kernel, kernel, stride, stride, pad, pad};
  float* x = filled<float>(images * in * size * size);
  float* w = filled<float>(in * out * kernel * kernel);
  float* y = filled<float>(images * out * result * result);
  const double seconds = best_seconds(8, [&] {
    if (way == 0) {
      bpc_conv_forward<float>(s, x, w, images, 0, bpc_conv_forward_units(s, images),
          [&](long i, long c, long row, long col, long count, const float* acc) {
        float* line = y + ((i * out + c) * result + row) * result + col;
        for (long q = 0; q < count; ++q) line[q] = acc[q];
      });
    } else if (way == 1) {
      bpc_conv_input_gradient<float>(s, y, w, images, 0, bpc_conv_input_units(s, images),
          [&](long i, long c, long row, long col, long count, const float* acc) {
        float* line = x + ((i * in + c) * size + row) * size + col;
        for (long q = 0; q < count; ++q) line[q] = acc[q];
      });
    } else {
      bpc_conv_weight_gradient<float>(s, x, y, images, 0, bpc_conv_weight_units(s),
          [&](long o, long c, long kh, long kw, float v) {
        w[((o * in + c) * kernel + kh) * kernel + kw] = v;
      });
    }
  });
  free(x), free(w), free(y);
  return 2e-9 * double(images * out * result * result) * double(in * kernel * kernel) / seconds;
}

template <class T, class F> static double map(F&& f) {
  const long n = 4096;
  T *x = filled<T>(n), *y = filled<T>(n);
  const double seconds = best_seconds(300, [&] {
    _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = f(x[i], i);
  });
  free(x), free(y);
  return 1e-9 * double(n) / seconds;
}
#define MAP(name) \\
  extern "C" double name##_f32() \\
  { return map<float>([](float x, long) { return bpc_##name(x); }); } \\
  extern "C" double name##_f64() \\
  { return map<double>([](double x, long) { return bpc_##name(x); }); }
@MAPS@
extern "C" double uniform_f32() {
  return map<float>([](float, long i) { return bpc_uniform(1, 2, 3, i); });
}
extern "C" double uniform_fill_f32() {
  const long n = 4096;
  float* y = filled<float>(n);
  const double seconds = best_seconds(300, [&] { bpc_uniform_fill(y, 1, 2, 3, 0, n); });
  free(y);
  return 1e-9 * double(n) / seconds;
}
extern "C" double row_sum_f32() {
  const long n = 4096;
  float *x = filled<float>(n), *y = filled<float>(1);
  const double seconds = best_seconds(300, [&] {
    y[0] = bpc_row_sum<float>(n, [&](long j) { return x[j] * x[j]; });
  });
  free(x), free(y);
  return 1e-9 * double(n) / seconds;
}
extern "C" double barrier(long threads) {
  static bpc_launch table[2000];
  const int64_t offset = 0;
  for (bpc_launch& launch : table) launch = {0, int32_t(threads), 1, 0};
  const auto run = [&] { bpc_run(nullptr, table, 2000, &offset, 1, int32_t(threads)); };
  return best_seconds(10, run) / 2000;
}
""".replace("@MAPS@", "\n".join(f"MAP({name})" for name in FUNCTIONS))
PRODUCTS = [  # type, m, k, n, A transposed, B transposed
    *(
        ("float", 128, 784, 256, 0, 0),
        ("float", 784, 128, 256, 1, 0),
        ("float", 128, 128, 256, 0, 1),
    ),
    *(("float", 64, 784, 256, 0, 0), ("float", 128, 256, 128, 0, 0), ("float", 128, 128, 10, 0, 0)),
    *(
        ("float", 512, 512, 512, 0, 0),
        ("float", 512, 512, 512, 1, 0),
        ("float", 512, 512, 512, 0, 1),
    ),
    *(
        ("double", 128, 784, 256, 0, 0),
        ("bf16", 128, 784, 256, 0, 0),
        ("bf16", 784, 128, 256, 1, 0),
    ),
    *(("bf16", 128, 128, 256, 0, 1), ("f16", 128, 784, 256, 0, 0)),
]
CONVOLUTIONS = [  # images, in, out, size, kernel, stride, pad
    *((8, 1, 6, 28, 5, 1, 2), (8, 6, 16, 14, 5, 1, 0), (8, 16, 32, 32, 3, 1, 1)),
    *((8, 16, 32, 16, 3, 2, 1), (8, 32, 32, 8, 3, 1, 1)),
]


def compile_driver(folder: str, march: str, extra: list[str]) -> ctypes.CDLL:
    source, target = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
    source.write_text(SOURCE)
    command = ["g++", *FLAGS, f"-march={march}", *extra, f"-I{INCLUDE}", str(source)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def measure(library: ctypes.CDLL, name: str, *numbers: int) -> float:
    function = library[name]
    function.restype = ctypes.c_double
    return float(function(*map(ctypes.c_long, numbers)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--march", default="native")
    parser.add_argument("--flags", nargs="*", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = compile_driver(folder, options.march, options.flags)
        for kind, m, k, n, a_turned, b_turned in PRODUCTS:
            speed = measure(library, f"gemm_{kind}", m, k, n, a_turned, b_turned)
            form = f"{'A^T' if a_turned else 'A'} {'B^T' if b_turned else 'B'}"
            print(f"gemm {kind:6} m={m} k={k} n={n} {form:6} {speed:7.1f} GFLOP/s")
        for shape in CONVOLUTIONS:
            speeds = [measure(library, "conv", way, *shape) for way in range(3)]
            text = "images={} in={} out={} size={} kernel={} stride={} pad={}".format(*shape)
            print(f"conv {text}: forward, input, weight", *(f"{s:6.1f}" for s in speeds), "GFLOP/s")
        for name in FUNCTIONS:
            speeds = [measure(library, f"{name}_{kind}") for kind in ("f32", "f64")]
            print(f"{name:12} f32 {speeds[0]:6.2f}  f64 {speeds[1]:6.2f} G/s")
        for name in ("uniform", "uniform_fill", "row_sum"):
            print(f"{name:12} f32 {measure(library, f'{name}_f32'):6.2f} G/s")
        print(f"launch and barrier, 2 threads: {measure(library, 'barrier', 2) * 1e9:.0f} ns")


if __name__ == "__main__":
    main()
