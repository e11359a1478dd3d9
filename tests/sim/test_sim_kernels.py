"""Right kernels give right values and no report, in both modes and under every order."""

from __future__ import annotations

import numpy as np
import pytest
from sim_cases import CASES, run_case

from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import Mode, load_cuda

MODES: tuple[Mode, ...] = ("source", "ptx")
ORDERS = (
    LaunchOptions(),
    LaunchOptions(order="reverse"),
    LaunchOptions(order="random", seed=3),
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_unchecked_values(name: str, mode: Mode) -> None:
    for options in ORDERS:
        assert run_case(name, mode, False, options).finish() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_checked_without_report(name: str, mode: Mode) -> None:
    for options in ORDERS:
        session = run_case(name, mode, True, options)
        assert session.finish() == [], [str(report) for report in session.reports]


@pytest.mark.parametrize("arch", ["compute_75", "compute_100"])
@pytest.mark.parametrize("name", CASES)
def test_ptx_of_other_architectures(name: str, arch: str) -> None:
    assert run_case(name, "ptx", True, arch=arch).finish() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_soak(name: str, mode: Mode) -> None:
    for seed in range(6):
        options = LaunchOptions("random", seed, preempt=0.1, adversarial=float(seed % 2))
        session = run_case(name, mode, True, options)
        assert session.finish() == [], [str(report) for report in session.reports]


def test_modes_agree_in_every_bit() -> None:
    """The same operations in the same order: what PTX says is what the text says."""
    found = []
    for mode in MODES:
        session = run_case("gemm", mode, False)
        found.append(session.outputs[0].array.copy())
    assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("checked", [False, True])
def test_subnormals_flush_and_products_are_fused_only_where_written(
    mode: Mode, checked: bool
) -> None:
    text = """
extern "C" __global__ void bits(const float* x, float* y) {
  y[0] = x[0] * 0.5f;
  y[1] = x[1] * x[1] + x[2];
  y[2] = fmaf(x[1], x[1], x[2]);
}"""
    x = np.array([1.2e-38, 1 + 2**-12, -1 - 2**-11], np.float32)
    module = load_cuda(text, mode, checked)
    y = GuardedBuffer(3, np.float32, "y")
    assert module.launch("bits", 1, 1, 0, [GuardedBuffer.of(x, "x"), y]) == ()
    assert y.array.tolist() == [0.0, 0.0, 2.0**-24]
    assert np.float32(1.2e-38) * np.float32(0.5) != 0, "the host keeps its own mode"


def test_adversarial_moves_approximations_only() -> None:
    text = """
extern "C" __global__ void roots(const float* x, float* y) {
  const int i = threadIdx.x;
  y[2 * i] = rsqrtf(x[i]);
  y[2 * i + 1] = sqrtf(x[i]);
}"""
    x = GuardedBuffer.of(np.arange(1, 65, dtype=np.float32), "x")
    for mode in MODES:
        module = load_cuda(text, mode, True)
        plain, moved = (GuardedBuffer((64, 2), np.float32, "y") for _ in range(2))
        module.launch("roots", 1, 64, 0, [x, plain])
        module.launch("roots", 1, 64, 0, [x, moved], LaunchOptions(adversarial=1.0))
        assert np.array_equal(plain.array[:, 1], moved.array[:, 1])
        ulps = np.abs(plain.array[:, 0].view(np.int32) - moved.array[:, 0].view(np.int32))
        assert 0 < ulps.max() <= 2
