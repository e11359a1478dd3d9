"""Buffers, arguments, sizes, features of CUDA C++, an arena, and what reports carry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bpc.errors import ToolError, UsageError
from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import Mode, SimModule, load_cuda
from bpc.runtime.sim.reports import Kind
from bpc.runtime.sim.source import cell_shift, find_shared

MODES: tuple[Mode, ...] = ("source", "ptx")
ROOT = Path(__file__).resolve().parents[2]

TEXT = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
struct pair { int first; double second; };
extern "C" __global__ void types(float* out, float f, double d, int i, unsigned u, long long q,
                                 unsigned char b, bool flag, pair p) {
  out[0] = f; out[1] = (float)d; out[2] = i; out[3] = u; out[4] = q; out[5] = b; out[6] = flag;
  out[7] = p.first + (float)p.second;
}
extern "C" __global__ void race(float* out) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void where(unsigned* out) {
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t;
}
"""


@pytest.fixture(params=MODES)
def module(request: pytest.FixtureRequest) -> SimModule:
    return load_cuda(TEXT, request.param, True, name="text.cu")


def ones(n: int, name: str = "x") -> GuardedBuffer:
    return GuardedBuffer.of(np.ones(n, np.float32), name)


# ---- buffers ---------------------------------------------------------------------------------


def test_a_buffer_starts_as_nan_and_knows_what_was_written(module: SimModule) -> None:
    c = GuardedBuffer(100, np.float32, "c")
    assert np.isnan(c.array).all() and c.unwritten() == 400
    assert module.launch("add", 2, 64, 0, [ones(100), ones(100), c, 90]) == ()
    assert c.unwritten() == 40 and c.first_unwritten() == 90
    assert not c.written()[360:].any() and c.written()[:360].all()
    c.mark_written(360)
    assert c.unwritten() == 0 and c.first_unwritten() is None


def test_nan_fills_every_float_format() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert np.isnan(GuardedBuffer(3, dtype).array).all()


def test_the_end_lies_on_a_guard_page() -> None:
    for nbytes in (1, 12, 4096, 4100):
        buffer = GuardedBuffer(nbytes, np.uint8)
        slack = -(buffer.pointer + nbytes) % 4096
        assert slack < 16 and buffer.pointer % 16 == 0
    code = (
        "import ctypes; from bpc.runtime.sim.buffers import GuardedBuffer\n"
        "b = GuardedBuffer(4096, 'u1'); ctypes.c_uint8.from_address(b.pointer + 4096 + {}).value"
    )
    for offset, ends_well in ((-1, True), (0, False), (-4097, False)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(offset)], cwd=ROOT, capture_output=True
        )
        assert (done.returncode == 0) == ends_well, done.stderr


def test_memory_is_given_back() -> None:
    slots = []
    for _ in range(3):
        with GuardedBuffer(1 << 20, np.uint8) as buffer:
            slots.append(buffer.slot)
    assert len(set(slots)) == 3, "a freed slot is not used again at once, so that old pointers show"


def test_a_view_keeps_the_memory() -> None:
    views = [GuardedBuffer.of(np.full(5000, i, np.float32)).array[1:] for i in range(20)]
    assert [float(view[-1]) for view in views] == list(range(20))


def test_a_pointer_into_a_freed_buffer_is_reported(module: SimModule) -> None:
    gone, c = ones(64, "gone"), GuardedBuffer(64, np.float32, "c")
    address = gone.pointer
    gone.free()
    found = module.launch("add", 1, 64, 0, [address, ones(64), c, 64])
    assert [report.kind for report in found] == [Kind.OUT_OF_BOUNDS]


def test_an_oversized_buffer_is_refused() -> None:
    with pytest.raises(UsageError, match="no room"):
        GuardedBuffer(1 << 30, np.uint8)


# ---- launches --------------------------------------------------------------------------------


def test_tails_and_extents(module: SimModule) -> None:
    for n in (1, 31, 32, 33, 63, 65):
        c = GuardedBuffer(n, np.float32, "c")
        assert module.launch("add", (n + 31) // 32, 32, 0, [ones(n), ones(n), c, n]) == ()
        assert (c.array == 2).all()
    out = GuardedBuffer(2 * 3 * 2 * 24, np.uint32, "out")
    assert module.launch("where", (2, 3, 2), (4, 3, 2), 0, [out]) == ()
    assert out.array.reshape(12, 24).tolist() == [
        [b * 1000 + t for t in range(24)] for b in range(12)
    ]


def test_arguments_of_every_type(module: SimModule) -> None:
    pair = np.zeros(1, np.dtype({"names": ["i", "d"], "formats": ["i4", "f8"], "offsets": [0, 8]}))
    pair["i"], pair["d"] = 3, 0.5
    out = GuardedBuffer(8, np.float32, "out")
    args = [out, np.float32(1.5), 2.5, -3, np.uint32(4), 5, 6, True, pair.tobytes()]
    assert module.launch("types", 1, 1, 0, args) == ()
    assert out.array.tolist() == [1.5, 2.5, -3, 4, 5, 6, 1, 3.5]


GOOD: tuple[object, ...] = (0.5, 0.5, 1, 1, 1, 1, True, bytes(16))


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (1, np.float64(1)),
        (1, 3),
        (2, np.float32(1)),
        (3, 1 << 32),
        (3, np.int64(1)),
        (3, 1.0),
        (4, np.uint64(1)),
        (6, 256),
        (8, b"short"),
        (0, 1.5),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(index: int, value: object) -> None:
    module = load_cuda(TEXT, "source", True, name="text.cu")
    args: list[object] = [ones(8), *GOOD]
    args[index] = value
    with pytest.raises(UsageError, match=f"argument {index} must be"):
        module.launch("types", 1, 1, 0, args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "shared", "count", "message"),
    [
        ("add", 1, 1025, 0, 4, "1025 threads"),
        ("add", 0, 32, 0, 4, "must be positive"),
        ("add", (1, 70000), 32, 0, 4, "larger than a device"),
        ("add", 1, 32, 64, 4, "no `extern __shared__`"),
        ("add", 1, 32, 0, 3, "takes 4 arguments, 3 given"),
        ("sub", 1, 32, 0, 4, "no kernel 'sub'"),
    ],
)
def test_bad_launches_are_refused(
    kernel: str, grid: object, block: int, shared: int, count: int, message: str
) -> None:
    module = load_cuda(TEXT, "source", True, name="text.cu")
    args: Sequence[object] = [ones(1), ones(1), ones(1), 1][:count]
    with pytest.raises(UsageError, match=message):
        module.launch(kernel, grid, block, shared, args)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_unchecked_kernels_run_in_an_arena_of_the_host(mode: Mode) -> None:
    module = load_cuda(TEXT, mode, False, name="text.cu")
    arena = np.zeros(3 * 64, np.float32)
    arena[:128] = 1.5
    base = arena.ctypes.data
    launch = module.bind("add", 2, 32, 0, [base, base + 256, base + 512, 60])
    assert launch.run() == () and launch.run() == ()
    assert arena[128:188].tolist() == [3.0] * 60 and not arena[188:].any()


# ---- reports ---------------------------------------------------------------------------------


def test_a_report_carries_both_parties_and_both_lines(module: SimModule) -> None:
    out = GuardedBuffer(64, np.float32, "out")
    lines = TEXT.splitlines()
    found = module.launch("race", 1, 64, 0, [out])
    report = next(report for report in found if report.kind is Kind.RACE)
    assert report.kernel == "race" and report.target is not None and report.second is not None
    assert report.target.memory == "shared" and report.target.name == "s"
    for party in (report.first, report.second):
        assert party.place is not None and party.place.file == "text.cu"
        wanted = "s[threadIdx.x] =" if party.access == "write" else "out[threadIdx.x] ="
        assert wanted in lines[party.place.line - 1]
    assert {report.first.access, report.second.access} == {"read", "write"}
    assert report.first.thread != report.second.thread and report.count > 1
    data = json.loads(json.dumps(report.to_json()))
    assert data["kind"] == "RACE" and data["second"]["place"]["file"] == "text.cu"
    assert "thread" in str(report) and "text.cu:" in str(report)


def test_an_overrun_names_buffer_and_element(module: SimModule) -> None:
    c = GuardedBuffer(10, np.float32, "c")
    (report,) = module.launch("add", 1, 32, 0, [ones(64), ones(64), c, 32])
    assert report.kind is Kind.OUT_OF_BOUNDS and report.target is not None
    assert (report.target.name, report.target.index, report.target.byte) == ("c", 10, 40)
    assert report.first.thread == (10, 0, 0) and report.first.access == "write"


def test_line_directives_lead_to_the_spec() -> None:
    text = """extern "C" __global__ void k(float* out) {
#line 9 "specs/mlp.yaml"
  out[threadIdx.x + 1] = 1;
}"""
    for mode in MODES:
        module = load_cuda(text, mode, True)
        (report,) = module.launch("k", 1, 4, 0, [GuardedBuffer(4, np.float32, "out")])
        assert str(report.first.place) == "specs/mlp.yaml:9"


def test_an_inlined_function_is_reported_with_its_caller() -> None:
    text = """__device__ __forceinline__ void put(float* out, int i) {
  out[i] = 1;
}
extern "C" __global__ void k(float* out) {
  put(out, threadIdx.x + 1);
}"""
    for mode in MODES:
        module = load_cuda(text, mode, True, name="k.cu")
        (report,) = module.launch("k", 1, 4, 0, [GuardedBuffer(4, np.float32, "out")])
        assert [str(report.first.place), *map(str, report.first.through)] == ["k.cu:2", "k.cu:5"]


# ---- compiling -------------------------------------------------------------------------------

FEATURES = """
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
constexpr int rows = 4;
__constant__ float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};
template <int N> struct sum_of {
  static __device__ __forceinline__ float of(const float* x) { return x[N] + sum_of<N - 1>::of(x); }
};
template <> struct sum_of<0> {
  static __device__ __forceinline__ float of(const float* x) { return x[0]; }
};
template <class F> static __device__ __forceinline__ float twice(F f, float x) { return f(f(x)); }
extern "C" __global__ void __launch_bounds__(64, 2)
features(const uint4* __restrict__ words, int4* __restrict__ out, const float* __restrict__ x,
         float* __restrict__ y, double* __restrict__ z, uint64_t* __restrict__ hashes) {
  __shared__ __align__(16) float tile[rows][16];
  const int t = threadIdx.x;
  tile[t / 16][t % 16] = x[t];
  __syncthreads();
  const uint4 w = words[t];
  out[t] = make_int4((int)w.w, (int)w.z, __popc(w.y), __clz((int)w.x));
  const float4 four = *reinterpret_cast<const float4*>(&tile[t % rows][4 * (t / 16)]);
  const auto halved = [](float v) { return v * 0.5f; };
  float copied[4];
  memcpy(copied, &four, sizeof four);
  y[t] = twice(halved, sum_of<3>::of(copied)) + table[t % 4] + rsqrtf(4.0f) + sqrtf(16.0f);
  z[t] = __fma_rn((double)x[t], 0.1, sqrt(2.0));
  hashes[t] = (uint64_t)__umulhi(w.x, w.y) << 32 | (uint32_t)(w.x * w.y);
}
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("checked", [False, True])
def test_features_of_the_language(mode: Mode, checked: bool) -> None:
    module = load_cuda(FEATURES, mode, checked, name="features.cu")
    random = np.random.default_rng(0)
    words = random.integers(0, 1 << 32, (64, 4), dtype=np.uint32)
    x = random.standard_normal(64).astype(np.float32)
    out = GuardedBuffer((64, 4), np.int32, "out")
    y, z = GuardedBuffer(64, np.float32, "y"), GuardedBuffer(64, np.float64, "z")
    hashes = GuardedBuffer(64, np.uint64, "hashes")
    inputs = GuardedBuffer.of(words, "words", True), GuardedBuffer.of(x, "x", True)
    found = module.launch("features", 1, 64, 0, [inputs[0], out, inputs[1], y, z, hashes])
    assert found == (), [str(report) for report in found]
    t = np.arange(64)
    tile = x.reshape(4, 16)
    four = np.stack([tile[t % 4, 4 * (t // 16) + i] for i in range(4)])
    total = four[3] + (four[2] + (four[1] + four[0]))
    table = np.float32([1, 2, 4, 8])[t % 4]
    assert np.array_equal(y.array, total * np.float32(0.25) + table + np.float32(0.5) + 4)
    assert np.allclose(z.array, x.astype(np.float64) * 0.1 + np.sqrt(2), rtol=1e-15)
    assert np.array_equal(out.array[:, 0].view(np.uint32), words[:, 3])
    assert out.array[:, 2].tolist() == [int(w).bit_count() for w in words[:, 1]]
    assert out.array[:, 3].tolist() == [32 - int(w).bit_length() for w in words[:, 0]]
    assert np.array_equal(hashes.array, words[:, 0].astype(np.uint64) * words[:, 1])
    if checked:
        assert not any(buffer.unwritten() for buffer in (out, y, z, hashes))


def test_a_fault_in_the_text_is_an_error_with_its_line() -> None:
    with pytest.raises(ToolError) as error:
        load_cuda('extern "C" __global__ void k(float* x) {\n  x[0] = missing;\n}', name="k.cu")
    diagnostic = error.value.diagnostics[0]
    assert diagnostic.code == "BPC0621" and "k.cu:2" in diagnostic.notes[0].text


def test_a_text_without_a_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match=r"empty\.cu has no kernel"):
        load_cuda("__global__ void k(float* x) {}", name="empty.cu")


def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from bpc.runtime.sim.module import load_cuda\n"
        "from bpc.runtime.sim.buffers import GuardedBuffer\n"
        "text = 'extern \"C\" __global__ void k(float* x) { x[threadIdx.x] = 3; }'\n"
        "x = GuardedBuffer(8, 'f4'); assert load_cuda(text, 'ptx', True).launch("
        "'k', 1, 8, 0, [x]) == () and (x.array == 3).all()"
    )
    environment = os.environ | {"BPC_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment) for _ in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    kept = sorted(path.name.partition("-")[0] for path in (tmp_path / "sim").iterdir())
    assert kept == ["kernels", "nvrtc", "nvrtc", "runtime"]


def test_orders_differ_and_seeds_repeat() -> None:
    text = """extern "C" __global__ void k(unsigned* ticket, unsigned* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(ticket, 1u);
}"""
    module = load_cuda(text, "source", False)

    def order(options: LaunchOptions) -> list[int]:
        out = GuardedBuffer(128, np.uint32, "out")
        ticket = GuardedBuffer.of(np.zeros(1, np.uint32), "ticket")
        module.launch("k", 2, 64, 0, [ticket, out], options)
        return [int(value) for value in out.array]

    forward = order(LaunchOptions())
    assert forward == list(range(128)) and order(LaunchOptions(order="reverse")) == forward[::-1]
    mixed = [order(LaunchOptions(order="random", seed=seed)) for seed in (1, 1, 2)]
    assert mixed[0] == mixed[1] != mixed[2] and sorted(mixed[0]) == forward


@pytest.mark.parametrize(
    ("text", "shift"),
    [
        ("__shared__ float tile[4]; __shared__ bool last;", 2),
        ("extern __shared__ __align__(16) unsigned char memory[];", 2),
        ("__shared__ bool flags[4];", 0),
        ("const unsigned short* x", 1),
        ("uint8_t mask", 0),
    ],
)
def test_the_detector_is_as_fine_as_the_smallest_elements(text: str, shift: int) -> None:
    assert cell_shift(text) == shift


def test_declared_alignments_of_shared_arrays() -> None:
    static, dynamic = find_shared(
        "extern __shared__ __align__(16) float all[];"
        "__shared__ float a[3], b[2][4]; __shared__ alignas(8) unsigned char c[8];"
        "__shared__ double d; __shared__ some::type e; __shared__ T f[2];"
    )
    found = {array.name: array.alignment for array in (*static, *dynamic)}
    assert found == {"all": 16, "a": 4, "b": 4, "c": 8, "d": 8, "f": 16}
