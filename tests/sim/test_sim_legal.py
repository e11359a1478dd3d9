"""Legal patterns that a coarse checker would report, and illegal neighbours that must be seen."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import Mode, load_cuda
from bpc.runtime.sim.reports import Kind, Report

TEXT = """
#define WARP 0xffffffffu
extern "C" __global__ void half_warps(float* out) {
  __shared__ float s[32];
  const int l = threadIdx.x;
  const unsigned mask = l < 16 ? 0x0000ffffu : 0xffff0000u;
  s[l] = l;
  __syncwarp(mask);
  const float near = s[l ^ 1];
  __syncwarp(mask);
  s[l] = near + 1;
  __syncwarp(mask);
  out[l] = s[l ^ 3] + __shfl_xor_sync(mask, near, 2);
}
extern "C" __global__ void across_half_warps(float* out) {
  __shared__ float s[32];
  const int l = threadIdx.x;
  s[l] = l;
  __syncwarp(l < 16 ? 0x0000ffffu : 0xffff0000u);
  out[l] = s[l ^ 16];
}
extern "C" __global__ void chain_of_masks(float* out) {
  __shared__ float s;
  const int l = threadIdx.x;
  if (l == 0) s = 5;
  if (l < 2) __syncwarp(3u);
  if (l == 1 || l == 2) __syncwarp(6u);
  if (l == 2) out[0] = s;
}
extern "C" __global__ void double_buffer(const float* x, float* out, int steps) {
  __shared__ float b[2][64];
  const int t = threadIdx.x;
  float sum = 0;
  b[0][t] = x[t];
  for (int k = 0; k < steps; ++k) {
    __syncthreads();
    if (k + 1 < steps) b[(k + 1) % 2][t] = x[(k + 1) * 64 + t];
    sum += b[k % 2][(t + 1) % 64];
  }
  out[t] = sum;
}
extern "C" __global__ void neighbouring_bytes(unsigned char* out) {
  __shared__ unsigned char s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void halves_of_a_word(unsigned short* out) {
  out[2 * threadIdx.x + blockIdx.x] = threadIdx.x;
}
extern "C" __global__ void votes(int* out, int n) {
  const int count = __syncthreads_count(threadIdx.x < n);
  const int any = __syncthreads_or(threadIdx.x == n), all = __syncthreads_and(threadIdx.x < 64);
  out[threadIdx.x] = count * 4 + any * 2 + all;
}
extern "C" __global__ void same_barrier_in_a_uniform_branch(float* out, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  if (n > 3) { __syncthreads(); } else { s[threadIdx.x] += 1; __syncthreads(); }
  out[threadIdx.x] = s[63 - threadIdx.x];
}
__device__ __forceinline__ void meet() { __syncthreads(); }
extern "C" __global__ void two_callers_of_one_barrier(float* out) {
  if (threadIdx.x < 32) {
    meet();
    out[threadIdx.x] = 1;
  } else {
    meet();
    out[threadIdx.x] = 2;
  }
}
extern "C" __global__ void volatile_flag(volatile float* part, unsigned* ticket, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = 1.0f;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x < gridDim.x) out[threadIdx.x] = part[threadIdx.x];
}
extern "C" __global__ void fence_of_every_thread(float* part, unsigned* ticket, float* out) {
  __shared__ bool last;
  part[blockIdx.x * 32 + threadIdx.x] = 1.0f;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  float sum = 0;
  for (int b = 0; b < gridDim.x; ++b) sum += part[b * 32 + threadIdx.x];
  out[threadIdx.x] = sum;
}
extern "C" __global__ void write_after_the_fence(float* part, unsigned* ticket, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __threadfence();
    part[blockIdx.x] = 1.0f;
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x < gridDim.x) out[threadIdx.x] = part[threadIdx.x];
}
extern "C" __global__ void tickets_of_two_kinds(float* part, unsigned* ticket, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = 1.0f;
    __threadfence();
    last = atomicAdd(&ticket[blockIdx.x], 1u) == 0 && blockIdx.x == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x < gridDim.x) out[threadIdx.x] = part[threadIdx.x];
}
extern "C" __global__ void wait_for_another_block(unsigned* flag) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    while (atomicAdd(flag, 0u) == 0) {
    }
  }
  if (blockIdx.x == 1) atomicExch(flag, 1u);
}
extern "C" __global__ void spin(volatile unsigned* flag) {
  while (*flag == 0) {
  }
}
extern "C" __global__ void half_at_a_barrier(float* out) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncwarp(WARP);
  }
  out[threadIdx.x] = 1;
}
extern "C" __global__ void shuffle_from_outside(float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
extern "C" __global__ void null(float* out, const float* from) { out[threadIdx.x] = *from; }
extern "C" __global__ void before(float* out) { out[(int)threadIdx.x - 1] = 1; }
extern "C" __global__ void traps(float* out) {
  if (threadIdx.x == 3) __trap();
  out[threadIdx.x] = 1;
}
extern "C" __global__ void local_arrays(float* out, int n) {
  float big[64];
  for (int i = 0; i < 64; ++i) big[i] = i * n;
  out[threadIdx.x] = big[(threadIdx.x * 7 + n) % 64];
}
"""

MODES: tuple[Mode, ...] = ("source", "ptx")


def new(n: int, dtype: type = np.float32) -> GuardedBuffer:
    return GuardedBuffer(n, dtype, "out")


def zeros(n: int = 1) -> GuardedBuffer:
    return GuardedBuffer.of(np.zeros(n, np.uint32), "ticket")


def launch(
    mode: Mode,
    kernel: str,
    grid: int,
    block: int,
    args: Sequence[object],
    checked: bool = True,
    **options: object,
) -> tuple[Report, ...]:
    module = load_cuda(TEXT, mode, checked, name="legal.cu")
    return module.launch(kernel, grid, block, 0, args, LaunchOptions(**options))  # type: ignore[arg-type]


LEGAL = {
    "half_warps": (1, 32, lambda: [new(32)]),
    "chain_of_masks": (1, 32, lambda: [new(1)]),
    "double_buffer": (
        1,
        64,
        lambda: [GuardedBuffer.of(np.ones(640, np.float32), "x"), new(64), 10],
    ),
    "neighbouring_bytes": (1, 64, lambda: [new(64, np.uint8)]),
    "halves_of_a_word": (2, 32, lambda: [new(64, np.uint16)]),
    "votes": (1, 64, lambda: [new(64, np.int32), 9]),
    "same_barrier_in_a_uniform_branch": (1, 64, lambda: [new(64), 2]),
    "volatile_flag": (4, 32, lambda: [new(4), zeros(), new(4)]),
    "fence_of_every_thread": (4, 32, lambda: [new(128), zeros(), new(32)]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", LEGAL)
def test_legal_patterns_give_no_report(kernel: str, mode: Mode) -> None:
    grid, block, arguments = LEGAL[kernel]
    for order in ("in-order", "reverse", "random"):
        for seed in range(4):
            found = launch(mode, kernel, grid, block, arguments(), order=order, seed=seed)
            assert found == (), [str(report) for report in found]


@pytest.mark.parametrize("mode", MODES)
def test_local_arrays_are_no_business_of_the_checks(mode: Mode) -> None:
    out = new(40)
    assert launch(mode, "local_arrays", 1, 40, [out, 3]) == ()
    expected = [(t * 7 + 3) % 64 * 3 for t in range(40)]
    assert out.array.tolist() == expected


@pytest.mark.parametrize("mode", MODES)
def test_votes_count(mode: Mode) -> None:
    out = new(64, np.int32)
    launch(mode, "votes", 1, 64, [out, 9])
    assert set(out.array.tolist()) == {9 * 4 + 2 + 1}


ILLEGAL = {
    "across_half_warps": (Kind.RACE, 1, 32, lambda: [new(32)]),
    "two_callers_of_one_barrier": (Kind.DIVERGENT_BARRIER, 1, 64, lambda: [new(64)]),
    "write_after_the_fence": (Kind.RACE, 4, 32, lambda: [new(4), zeros(), new(4)]),
    "tickets_of_two_kinds": (Kind.RACE, 4, 32, lambda: [new(4), zeros(4), new(4)]),
    "half_at_a_barrier": (Kind.DEADLOCK, 1, 32, lambda: [new(32)]),
    "shuffle_from_outside": (Kind.UNDEFINED, 1, 32, lambda: [new(32)]),
    "null": (Kind.OUT_OF_BOUNDS, 1, 32, lambda: [new(32), None]),
    "before": (Kind.OUT_OF_BOUNDS, 1, 32, lambda: [new(32)]),
    "traps": (Kind.TRAP, 1, 32, lambda: [new(32)]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", ILLEGAL)
def test_illegal_neighbours_are_reported(kernel: str, mode: Mode) -> None:
    kind, grid, block, arguments = ILLEGAL[kernel]
    for order in ("in-order", "reverse", "random"):
        found = launch(mode, kernel, grid, block, arguments(), order=order)
        assert kind in {report.kind for report in found}, [str(report) for report in found]
        line = next(report.first.place for report in found if report.kind is kind)
        assert line is not None and line.file == "legal.cu"


@pytest.mark.parametrize("mode", MODES)
def test_waiting_for_another_block_ends(mode: Mode) -> None:
    found = launch(mode, "wait_for_another_block", 2, 32, [zeros()], max_accesses=100_000)
    assert [report.kind for report in found] == [Kind.BUDGET]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("checked", [False, True])
def test_an_endless_loop_ends_after_its_time(mode: Mode, checked: bool) -> None:
    started = time.monotonic()
    found = launch(mode, "spin", 1, 32, [zeros()], checked, seconds=0.2, max_accesses=0)
    assert time.monotonic() - started < 5
    assert [report.kind for report in found] == [Kind.BUDGET]
    assert "0.2 s" in found[0].message


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", ["null", "before"])
def test_unchecked_faults_are_reported_with_their_line(kernel: str, mode: Mode) -> None:
    out = GuardedBuffer(1024, np.float32, "out")  # its page begins where it does
    arguments = [out, None] if kernel == "null" else [out]
    found = launch(mode, kernel, 1, 32, arguments, checked=False)
    assert [report.kind for report in found] == [Kind.OUT_OF_BOUNDS]
    place = found[0].first.place
    assert place is not None and f"void {kernel}(" in TEXT.splitlines()[place.line - 1]
    assert launch(mode, "local_arrays", 1, 32, [new(32), 1], checked=False) == ()
