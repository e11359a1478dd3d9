"""Training through the CUDA text in the simulator gives the bits of the compiled C++."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc.api import Net
from bpc.api import compile as compile_net

ROOT = Path(__file__).parents[2]


def trained(path: Path, device: str, folder: Path, steps: int, **sets: object) -> Net:
    net = compile_net(str(path), set=sets, device=device)
    net.train(steps=steps, run_dir=folder / device)
    return net


def digest(net: Net) -> str:
    found = hashlib.sha256()
    for state in net.entries.states:
        found.update(net.device.read_state(state.name).tobytes())
    return found.hexdigest()


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "mnist": ("specs/mnist_mlp.yaml", 10, {"data.batch": 24}),
    "digits": ("specs/digits_mlp.yaml", 25, {}),
    "digits-bf16": ("specs/digits_mlp.yaml", 10, {"train.precision": "bf16"}),
    "digits-accumulate": ("specs/digits_mlp.yaml", 5, {"train.accumulate": 2}),
    "digits-fp64": ("specs/digits_mlp.yaml", 5, {"train.precision": "fp64"}),
    "conv": ("specs/small_conv.yaml", 5, {}),
    "conv-fp16": ("specs/small_conv.yaml", 5, {"train.precision": "fp16"}),
    "chain": ("tests/specs/conv_chain.yaml", 2, {"data.batch": 13}),
    "tied": ("tests/specs/residual_tied.yaml", 4, {}),
    "three-layer": ("specs/worked/three_layer.yaml", 5, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_sim_and_cpu_end_with_the_same_bytes(case: str, tmp_path: Path) -> None:
    path, steps, sets = CASES[case]
    sim = trained(ROOT / path, "sim", tmp_path, steps, **sets)
    cpu = trained(ROOT / path, "cpu", tmp_path, steps, **sets)
    assert digest(sim) == digest(cpu)
    weights = cpu.parameters()
    assert all(np.all(np.isfinite(array)) for array in weights.values())


def test_a_budget_changes_nothing(tmp_path: Path) -> None:
    path = ROOT / "specs" / "synthetic_mlp12.yaml"
    free = trained(path, "sim", tmp_path / "free", 3)
    tight = trained(path, "sim", tmp_path / "tight", 3, **{"train.memory": "900KiB"})
    assert tight.device.arena_bytes < free.device.arena_bytes
    assert digest(free) == digest(tight)


def test_an_overflow_skips_the_step_on_the_device(tmp_path: Path) -> None:
    sets = {"train.precision": "fp16", "train.loss_scale.start": 2.0**40}
    net = compile_net(str(ROOT / "specs" / "digits_mlp.yaml"), set=sets, device="sim")
    before = net.parameters()
    net.train(steps=1, run_dir=tmp_path / "run")
    after = net.parameters()
    assert net.device.read_scalar("control.scale") == 2.0**39
    assert net.device.read_scalar("control.updates") == 0
    assert net.device.read_scalar("control.window") == 1
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_launches_of_a_step() -> None:
    from bpc.codegen.cuda import generate
    from bpc.runtime.cpu.build import plan

    net = compile_net(str(ROOT / "specs" / "mnist_mlp.yaml"), device="reference")
    launches = generate("mnist", plan(net.entries).program).launches
    step = [launch.function for launch in launches["micro_step"]]
    forward, loss, backward = step[:3], step[3:4], step[4:]
    assert [name.split("_")[0] for name in forward] == ["linear1", "linear2", "linear3"]
    assert loss[0].startswith("loss_cross_entropy")
    for layer, most in (("linear1", 2), ("linear2", 3), ("linear3", 3)):
        assert sum(layer in name for name in backward) <= most
    assert len(backward) == 8
    assert len(launches["update"]) == 2
