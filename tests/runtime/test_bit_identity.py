"""The same bytes in every state after 20 steps: any budget, any number of threads, any run."""

from __future__ import annotations

from pathlib import Path

import pytest
from header_drivers import NEEDS_COMPILER
from programs import digest, open_net, plan_net, share_library, train_on

from bpc.api import Net
from bpc.api import compile as compile_net
from bpc.errors import BudgetError
from bpc.plan.choose import Planned
from bpc.resources import spec_root

pytestmark = NEEDS_COMPILER

STEPS = 20
OWN = Path(__file__).parent.parent / "specs"
OVERFLOW = {"train.precision": "fp16", "train.loss_scale": "{start: 268435456}"}  # 2^28
PRECISIONS = {"fp32": {}, "fp16": OVERFLOW, "bf16": {"train.precision": "bf16"}}
BUDGETS = {"fp32": 8, "fp16": 8, "bf16": 3}
NETS = [
    *((spec_root() / "synthetic_mlp12.yaml", kind, count) for kind, count in BUDGETS.items()),
    *((OWN / "conv_chain.yaml", kind, count) for kind, count in BUDGETS.items()),
    *((OWN / "residual_tied.yaml", kind, 2) for kind in PRECISIONS),
]


def plans_between(net: Net, count: int) -> dict[int, Planned]:
    """Plans for budgets from the least feasible one to the one that keeps everything."""
    everything = plan_net(net, least=True)
    least, most = everything.least_feasible_bytes, everything.program.arena_bytes
    budgets = [least + (most - least) * k // (count - 1) for k in range(count)]
    return {budget: plan_net(net, budget) for budget in budgets}


@pytest.mark.parametrize(
    ("path", "precision", "count"), NETS, ids=lambda given: str(getattr(given, "stem", given))
)
def test_budgets_threads_and_runs_give_the_same_bytes(
    path: Path, precision: str, count: int, tmp_path: Path
) -> None:
    net = open_net(path, PRECISIONS[precision])
    plans = plans_between(net, count)
    devices = share_library([planned.program for planned in plans.values()])
    keep_all = devices[-1]
    result = train_on(net, keep_all, STEPS, tmp_path / "first")
    expected = digest(net, keep_all)
    if precision == "fp16":
        assert 2 <= result["skipped_steps"] < STEPS
    for threads in (1, 2, 3) if precision == "fp32" and "conv" not in path.stem else (1, 2):
        keep_all.threads = threads
        train_on(net, keep_all, STEPS, tmp_path / f"threads{threads}")
        assert digest(net, keep_all) == expected, f"{threads} threads"
    for budget, device in zip(plans, devices, strict=True):
        device.threads = 2
        assert device.arena_bytes <= budget
        found = train_on(net, device, STEPS, tmp_path / f"budget{budget}")
        assert found["final"] == result["final"]
        assert digest(net, device) == expected, f"{budget} bytes"
    if count == 8:  # else this would show nothing
        assert len({planned.program.arena_bytes for planned in plans.values()}) >= 5
        assert len({planned.recompute_flops for planned in plans.values()}) >= 5


def test_the_api_gives_the_same_bytes_as_well(tmp_path: Path) -> None:
    """Compiled apart, each plan with a library of its own, as a user's runs are."""
    path = spec_root() / "synthetic_mlp12.yaml"
    with pytest.raises(BudgetError) as caught:
        assert compile_net(path, memory=1, device="cpu").device
    least, found = caught.value.least_feasible_bytes, []
    for budget, threads in ((None, 1), (least, 2)):
        net = compile_net(path, memory=budget, threads=threads, device="cpu")
        result = net.train(steps=STEPS, run_dir=tmp_path / f"own{threads}")
        assert result["arena_bytes"] == result["planned_peak_bytes"] == net.device.arena_bytes
        found.append((digest(net, net.device), result["arena_bytes"]))
    assert found[0][0] == found[1][0]
    assert found[1][1] == least < found[0][1]
