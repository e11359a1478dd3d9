"""The plan that is shown is the plan that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import bpc
from bpc.api import Net
from bpc.report.artifacts import describe_plan
from bpc.report.memory import report_memory
from bpc.report.timeline import find_moment, make_axis, place_all
from bpc.runtime.cpu.build import plan
from bpc.types import nbytes

ROOT = Path(__file__).resolve().parents[2]
SPECS = ("digits_mlp", "synthetic_mlp12", "small_conv", "worked/three_layer")


def compiled(name: str, memory: int | None = None) -> Net:
    return bpc.compile(ROOT / "specs" / f"{name}.yaml", memory=memory)


@pytest.fixture(scope="module", params=[(name, tight) for name in SPECS for tight in (0, 1)])
def net(request: pytest.FixtureRequest) -> Net:
    name, tight = request.param
    free = compiled(name)
    return compiled(name, plan(free.entries, None, True).least_feasible_bytes) if tight else free


def test_the_highest_tensor_reaches_the_planned_peak(net: Net) -> None:
    found = net.plan_memory()
    placed = [tensor for tensor in found["tensors"] if tensor["offset"] is not None]
    assert max(t["offset"] + t["bytes"] for t in placed) == found["planned_peak_bytes"]
    peak = found["peak_launch"]
    alive = [t for t in placed if t["first"] <= peak <= t["last"]]
    assert max(t["offset"] + t["bytes"] for t in alive) == found["planned_peak_bytes"]
    for kind, size in found["classes"].items():
        assert size == sum(t["bytes"] for t in alive if t["kind"] == kind), kind
    assert found["unused_bytes"] == found["planned_peak_bytes"] - sum(t["bytes"] for t in alive)


def test_tensors_that_live_together_lie_apart(net: Net) -> None:
    placed = [t for t in net.plan_memory()["tensors"] if t["offset"] is not None]
    for one in placed:
        for other in placed:
            together = one["first"] <= other["last"] and other["first"] <= one["last"]
            if one is not other and together and one["bytes"] and other["bytes"]:
                below = one["offset"] + one["bytes"] <= other["offset"]
                above = other["offset"] + other["bytes"] <= one["offset"]
                assert below or above, (one["name"], other["name"])


def test_one_axis_runs_through_the_whole_step(net: Net) -> None:
    axis = net.plan_memory()["axis"]
    assert [part["entry"] for part in axis][:2] == ["micro_step", "update"]
    assert axis[0]["first"] == 0 and axis[1]["first"] == axis[0]["launches"]
    names = [tensor["name"] for tensor in net.plan_memory()["tensors"]]
    assert len(names) == len(set(names))


def test_batches_that_add_lie_on_the_axis_between_the_first_and_the_update() -> None:
    net = bpc.compile(ROOT / "specs/digits_mlp.yaml", set={"train.accumulate": 3})
    found = net.plan_memory()
    assert [part["entry"] for part in found["axis"]] == ["micro_step", "micro_step_add", "update"]
    second = [t for t in found["tensors"] if t["entry"] == "micro_step_add"]
    start, count = found["axis"][1]["first"], found["axis"][1]["launches"]
    assert second and all(start <= t["first"] <= t["last"] < start + count for t in second)
    steps = net.inspect()
    for kernel in steps["kernels"]:
        if kernel["name"] == "linear1_relu1":
            assert kernel["launches"] == 3


def test_every_decision_of_the_plan_is_shown(net: Net) -> None:
    planned = plan(net.entries, net.spec.train.memory_bytes)
    shown = {tensor["name"]: tensor for tensor in report_memory(planned)["tensors"]}
    held = {name: t["decision"] for t in shown.values() for name in (t["name"], *t["holds"])}
    for name, decision in planned.decisions.items():
        if decision.decision == "repeated":
            assert held[name] == "repeated", name
    repeats = [t for t in shown.values() if t["decision"] == "repeated" and t["first"] is not None]
    assert bool(repeats) == bool(planned.recompute_flops)


def test_the_device_allocates_what_plan_json_says(net: Net) -> None:
    planned = plan(net.entries, net.spec.train.memory_bytes)
    facts = describe_plan(net.spec, planned)
    device = compiled_device(net)
    assert device.arena_bytes == device.planned_peak_bytes == facts["arena_bytes"]
    assert facts["arena_bytes"] == net.plan_memory()["planned_peak_bytes"]
    for tensor in facts["persistent"]:
        assert device.program.offsets[tensor["name"]] == tensor["offset"]
        value = device.program.persistent[tensor["name"]]
        assert tensor["bytes"] == nbytes(value.dtype, value.shape, device.rows)
        array = device.view(value)
        assert array.ctypes.data - device.arena.ctypes.data == tensor["offset"]
        assert array.nbytes == tensor["bytes"]
    net.close()


def compiled_device(net: Net):  # type: ignore[no-untyped-def]
    if net.device.name != "cpu":
        pytest.skip("no compiler on this machine")
    return net.device


def test_the_picture_and_the_table_have_the_same_rectangles(net: Net) -> None:
    planned = plan(net.entries, net.spec.train.memory_bytes)
    drawn = {
        (item.name, item.offset, item.first, item.last)
        for item in place_all(planned.program, make_axis(planned.program))
    }
    listed = {
        (t["name"], t["offset"], t["first"], t["last"])
        for t in report_memory(planned)["tensors"]
        if t["offset"] is not None
    }
    assert drawn == listed
    assert str(find_moment(planned.program)) in report_memory(planned)["peak_moment"]


def test_the_plan_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    net = compiled("digits_mlp")
    assert net.plan_memory()["planned_peak_bytes"] > 0
    assert net.inspect()["kernels"]
