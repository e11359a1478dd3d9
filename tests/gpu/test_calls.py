"""Assumptions about CuPy's calls, one by one. The numbers are those of docs/cuda.md."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc.errors import ToolError
from bpc.runtime.cuda_build import FLAGS, compile_options
from bpc.runtime.cuda_host import Bounce

TEXT = """\
extern "C" __global__ void put(float* out, int count, float* scaled, const long long* rows) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && i < *rows) { out[i] += 1.0f; scaled[i] = out[i] * 2e-38f * 1e-3f; }
}
"""

SLOW = """\
extern "C" __global__ void slow(float* out, long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) { }
  out[0] += 1.0f;
}
"""


WIDE = [True, False, True, True]
"""Which arguments of `put` are addresses."""


def test_01_a_device_is_found(gpu: Any) -> None:
    assert gpu.name and gpu.architecture.startswith("sm_")
    free, total = gpu.free_bytes()
    assert 0 < free <= total


def test_02_allocations_are_exact_aligned_and_go_back(gpu: Any) -> None:
    size = 256 << 20
    before, _ = gpu.free_bytes()
    memory = gpu.allocate("a test", size)
    held, _ = gpu.free_bytes()
    assert memory.address % 256 == 0 and before - held >= size
    memory.free()
    after, _ = gpu.free_bytes()
    assert after - held >= size  # past any pool


def test_03_pinned_memory_is_a_writable_array(gpu: Any) -> None:
    stream = gpu.make_stream()
    pinned = gpu.allocate_pinned(4096)
    assert pinned.bytes.flags.writeable and pinned.bytes.ctypes.data == pinned.address
    memory = gpu.allocate("a test", 4096)
    pinned.bytes[:] = np.arange(4096) % 251
    gpu.copy_in(memory.address, pinned.address, 4096, stream)
    gpu.synchronize(stream, "testing")
    pinned.bytes[:] = 0
    gpu.copy_out(pinned.address, memory.address, 4096, stream)
    gpu.synchronize(stream, "testing")
    np.testing.assert_array_equal(pinned.bytes, np.arange(4096) % 251)


def test_04_options_are_taken_and_cubins_are_kept(gpu: Any, tmp_path: Path) -> None:
    text = TEXT + f"// {time.time_ns()}\n"
    started = time.perf_counter()
    gpu.compile(text, compile_options(), ["put"])
    first = time.perf_counter() - started
    started = time.perf_counter()
    gpu.compile(text, compile_options(), ["put"])
    assert time.perf_counter() - started < first
    with pytest.raises(ToolError, match="NVRTC failed") as caught:
        gpu.compile(text + "not C++", FLAGS, ["put"])
    assert "error" in caught.value.diagnostics[0].notes[0].text


def kernels(gpu: Any) -> Any:
    return gpu.compile(TEXT, compile_options(), ["put"])


def test_05_arguments_arrive_with_their_widths_and_subnormals_flush(gpu: Any) -> None:
    found, facts = kernels(gpu)
    assert facts["put"].registers > 0 and facts["put"].local_bytes == 0
    stream, memory = gpu.make_stream(), gpu.allocate("a test", 4096)
    gpu.clear(memory, stream)
    bounce = Bounce(gpu, stream, 4096)
    at = memory.address
    bounce.write(at + 2048, np.asarray([5], np.int64).view(np.uint8))
    arguments = [at, 7, at + 1024, at + 2048]
    gpu.launch(found["put"], 1, 32, arguments, WIDE, stream)
    out = bounce.read(at, 2048).view(np.float32)
    np.testing.assert_array_equal(out[:8], [1, 1, 1, 1, 1, 0, 0, 0])
    assert not out[256:264].any()


def test_06_a_capture_runs_nothing_and_a_replay_all_of_it(gpu: Any) -> None:
    found, _ = kernels(gpu)
    stream, memory = gpu.make_stream(), gpu.allocate("a test", 4096)
    gpu.clear(memory, stream)
    bounce = Bounce(gpu, stream, 4096)
    at = memory.address
    bounce.write(at + 2048, np.asarray([64], np.int64).view(np.uint8))

    def issue() -> None:
        for _ in range(3):
            gpu.launch(
                found["put"],
                1,
                32,
                [at, 8, at + 1024, at + 2048],
                [True, False, True, True],
                stream,
            )

    graph = gpu.capture(issue, stream)
    assert bounce.read(at, 4).view(np.float32)[0] == 0
    for _ in range(5):
        gpu.replay(graph, stream)
    assert bounce.read(at, 4).view(np.float32)[0] == 15


def test_07_a_replay_reads_the_rows_of_the_moment(gpu: Any) -> None:
    found, _ = kernels(gpu)
    stream, memory = gpu.make_stream(), gpu.allocate("a test", 4096)
    gpu.clear(memory, stream)
    bounce = Bounce(gpu, stream, 4096)
    at = memory.address

    def issue() -> None:
        gpu.launch(found["put"], 1, 32, [at, 32, at + 1024, at + 2048], WIDE, stream)

    graph = gpu.capture(issue, stream)
    for rows in (3, 1, 2):
        bounce.write(at + 2048, np.asarray([rows], np.int64).view(np.uint8))
        gpu.replay(graph, stream)
    np.testing.assert_array_equal(bounce.read(at, 16).view(np.float32), [3, 2, 1, 0])


def test_08_streams_wait_for_events_and_the_host_does_not(gpu: Any) -> None:
    found, _ = gpu.compile(SLOW, compile_options(), ["slow"])
    compute, copies = gpu.make_stream(), gpu.make_stream()
    memory, pinned = gpu.allocate("a test", 4096), gpu.allocate_pinned(64)
    gpu.clear(memory, compute)
    event = gpu.make_event()
    started = time.perf_counter()
    gpu.launch(found["slow"], 1, 1, [memory.address, 200_000_000], [True, True], compute)
    gpu.record(event, compute)
    gpu.wait(copies, event)
    gpu.copy_out(pinned.address, memory.address, 4, copies)
    issued = time.perf_counter() - started
    gpu.synchronize(copies, "testing")
    done = time.perf_counter() - started
    assert pinned.bytes[:4].view(np.float32)[0] == 1.0
    assert issued < done / 2


def test_09_no_room_is_a_message_with_both_sizes(gpu: Any) -> None:
    _, total = gpu.free_bytes()
    with pytest.raises(ToolError, match=r"a test needs .* of the GPU's .* are free"):
        gpu.allocate("a test", 2 * total)
    gpu.allocate("a test", 4096).free()  # the error does not stick


FAULT = """
from bpc.errors import ToolError
from bpc.runtime.cuda import connect
gpu = connect()
text = 'extern "C" __global__ void bad(float* p) { p[threadIdx.x] = 1; }'
kernels, _ = gpu.compile(text, ("-std=c++17",), ["bad"])
stream = gpu.make_stream()
try:
    gpu.launch(kernels["bad"], 1, 32, [16], [True], stream)
    gpu.synchronize(stream, "testing a fault")
except ToolError as error:
    print(error.diagnostics[0].message, error.diagnostics[0].notes[0].text)
"""


def test_10_a_fault_in_a_kernel_is_a_message() -> None:
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=60)
    assert "CUDA failed while testing a fault" in done.stdout, done.stderr
    assert "IllegalAddress" in done.stdout
