"""Assumptions about whole programs on a device. The numbers are those of docs/cuda.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc.entries import MICRO_STEP, UPDATE
from bpc.errors import ToolError
from bpc.runtime.cpu.toolchain import find_toolchain

Open = Callable[..., Any]
SPECS = ("digits_mlp", "small_conv", "synthetic_mlp12")


def steps(net: Any, count: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """Weights and losses after some steps over the spec's own data, the last batch short."""
    stepper = net.stepper()
    rows = len(net.data.train["target"])
    losses = []
    for at in range(count):
        size = net.device.rows if at % 3 else max(1, net.device.rows // 3)
        stepper.step((np.arange(size) + at * net.device.rows) % rows)
        losses.append(stepper.loss())
    return net.parameters(), losses


def other_device() -> str:
    try:
        find_toolchain()
    except ToolError:
        return "reference"
    return "cpu"


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, weights in wanted.items():
        np.testing.assert_array_equal(found[name], weights, err_msg=name)


CASES = [("digits_mlp", kind) for kind in ("fp32", "fp64", "bf16", "fp16")]
CASES += [(name, kind) for name in SPECS[1:] for kind in ("fp32", "bf16")]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_11_losses_are_those_of_the_cpu(open_net: Open, name: str, precision: str) -> None:
    _, losses = steps(open_net(name, train__precision=precision), 10)
    _, wanted = steps(open_net(name, other_device(), train__precision=precision), 10)
    loose = {"fp32": 1e-4, "fp64": 1e-9, "bf16": 5e-2, "fp16": 1e-2}[precision]
    np.testing.assert_allclose(losses, wanted, rtol=loose)


def test_12_bits_are_those_of_the_cpu(open_net: Open) -> None:
    """Division, square root and fused multiply-add round as IEEE says, on both."""
    if other_device() == "reference":
        pytest.skip("the C++ kernels need a compiler")
    found, losses = steps(open_net(), 10)
    wanted, told = steps(open_net("digits_mlp", "cpu"), 10)
    assert losses == told
    assert_equal(found, wanted)


def test_13_graphs_and_single_launches_give_the_same_bits(
    open_net: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, losses = steps(open_net("small_conv"), 12)
    monkeypatch.setenv("BPC_CUDA_GRAPH", "0")
    wanted, told = steps(open_net("small_conv"), 12)
    assert losses == told
    assert_equal(found, wanted)


def test_14_two_slots_give_the_bits_of_one(open_net: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many windows without a wait in between: no batch is overwritten before it was read."""
    results = []
    for slots in ("2", "1"):
        monkeypatch.setenv("BPC_CUDA_SLOTS", slots)
        net = open_net("synthetic_mlp12")
        net.stepper()
        device, part = net.device, net.data.train
        for at in range(300):
            rows = (np.arange(device.rows) + at * 7) % len(part["target"])
            for name, array in part.items():
                device.write_rows(name, array, rows)
            device.write_scalar("control.divisor", float(device.rows))
            device.run(MICRO_STEP, device.rows)
            device.run(UPDATE, device.rows)
        results.append(net.parameters())
    assert_equal(*results)


def test_15_a_run_repeats_its_bits(open_net: Open) -> None:
    """The last block's ticket and every reduction order hold under real concurrency."""
    runs = [steps(open_net("synthetic_mlp12", data__batch=512), 40) for _ in range(3)]
    for found, losses in runs[1:]:
        assert losses == runs[0][1]
        assert_equal(found, runs[0][0])


def test_16_a_step_allocates_nothing(open_net: Open) -> None:
    net = open_net()
    steps(net, 6)  # all graphs are captured
    before = net.device.gpu.free_bytes()
    steps(net, 30)
    assert net.device.gpu.free_bytes() == before


def test_17_an_overflow_skips_the_step_on_the_device(open_net: Open) -> None:
    net = open_net("digits_mlp", train__precision="fp16")
    stepper = net.stepper()
    rows = np.arange(net.device.rows)
    stepper.step(rows)
    before, scale = net.parameters(), net.device.read_scalar("control.scale")
    net.device.write_scalar("control.scale", 2.0**40)
    assert not stepper.step(rows)
    assert net.device.read_scalar("control.scale") == 2.0**39
    assert_equal(net.parameters(), before)
    net.device.write_scalar("control.scale", scale)
    assert stepper.step(rows)


def test_18_no_kernel_spills(open_net: Open) -> None:
    for name in SPECS:
        spills = {k: f["spill"] for k, f in open_net(name).device.facts["kernels"].items()}
        assert not any(spills.values()), (name, spills)


def test_19_launch_by_launch_gives_the_same_bits(open_net: Open) -> None:
    found = {}
    for one_by_one in (False, True):
        net = open_net()
        net.stepper()
        device, part = net.device, net.data.train
        for name, array in part.items():
            device.write_rows(name, array, np.arange(device.rows))
        for entry in (MICRO_STEP, UPDATE):
            if one_by_one:
                assert list(device.run_one_by_one(entry, device.rows))
            else:
                device.run(entry, device.rows)
        found[one_by_one] = net.parameters()
    assert_equal(found[True], found[False])


def test_20_closing_gives_the_memory_back(open_net: Open, gpu: Any) -> None:
    steps(open_net(), 3)
    free, _ = gpu.free_bytes()
    net = open_net("synthetic_mlp12", data__batch=4096)
    steps(net, 3)
    held, _ = gpu.free_bytes()
    net.close()
    after, _ = gpu.free_bytes()
    assert held < free
    assert after - held >= net.plan_memory()["planned_peak_bytes"] // 2


def test_21_cublaslt_multiplies_in_a_graph(
    open_net: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured, chosen, captured; close to the generated products, and the same bits twice."""
    pytest.importorskip("nvmath.bindings.cublasLt")
    from bpc.codegen.cuda import generate
    from bpc.runtime.cublaslt_choices import find_products, measure, write_choices

    name, settings = "synthetic_mlp12", {"data__batch": 512}
    generated, losses = steps(open_net(name, **settings), 9)
    net = open_net(name, **settings)
    source = generate("network", net.device.program)
    chosen = measure(net.device, source)
    if find_products(net.device.program, source) and not chosen.by_product:
        pytest.skip("the generated products are faster here")
    write_choices(tmp_path / "choices.json", chosen)
    monkeypatch.setenv("BPC_CUBLASLT", str(tmp_path / "choices.json"))
    runs = [steps(open_net(name, **settings), 9) for _ in range(2)]
    assert runs[0][1] == runs[1][1]
    assert_equal(runs[0][0], runs[1][0])
    np.testing.assert_allclose(runs[0][1], losses, rtol=1e-3)
    assert generated.keys() == runs[0][0].keys()


def test_22_a_run_of_the_command_line(tmp_path: Path) -> None:
    from bpc.cli.main import main
    from bpc.resources import spec_root

    spec = str(spec_root() / "digits_mlp.yaml")
    arguments = ["train", spec, "--device", "cuda", "--steps", "20"]
    assert main([*arguments, "--run-dir", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "result.json").exists()


def test_23_steps_ahead_change_no_bit(
    open_net: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overflows that the host sees a step late, and a run that never meets one."""
    for precision in ("fp16", "fp32"):
        settings: dict[str, Any] = {"train__precision": precision, "train__log_every": 3}
        if precision == "fp16":
            settings["train__loss_scale"] = f"{{start: {2.0**30}, growth_interval: 5}}"
        found = []
        for ahead in ("1", "0"):
            monkeypatch.setenv("BPC_CUDA_AHEAD", ahead)
            net = open_net(**settings)
            folder = tmp_path / f"{precision}-{ahead}"
            result = net.train(steps=60, run_dir=folder)
            rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
            for row in rows:
                row.pop("step_ms", None)
            found.append((result["final"], result["skipped_steps"], rows, net.parameters()))
        (*told, weights), (*wanted, others) = found
        assert told == wanted
        assert_equal(weights, others)
        assert (told[1] > 0) == (precision == "fp16")
