"""What kernels are checked on: values that let a wrong index, factor or skip show."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import numpy as np
import pytest

import bpc
from bpc.codegen.cuda import generate
from bpc.diagnose.kernels import HELD, Call, list_calls
from bpc.diagnose.session import Preparer, row_counts
from bpc.runtime.cpu.build import plan
from bpc.runtime.host_arena import HostArena

SPEC = """\
bpc: 1
data: {source: synthetic, shape: [6], classes: 3, rows: 8, test_rows: 4, batch: 8}
model: [linear: 5, layernorm, linear: 3]
loss: cross_entropy
train: {steps: 1, lr: 0.01, optimizer: adam, precision: fp16}
"""


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Preparer, HostArena]:
    path = tmp_path / "net.yaml"
    path.write_text(SPEC)
    net = bpc.compile(path, device="reference")
    return Preparer(net.spec, net.entries, net.data), HostArena(plan(net.entries).program)


def test_a_single_row_sees_the_spec_and_others_see_elements_apart(
    prepared: tuple[Preparer, HostArena],
) -> None:
    prepare, device = prepared
    prepare(device, Call("micro_step", 1, ()))
    assert not device.read_state("linear1.bias").any()
    assert (device.read_state("layernorm1.gamma") == 1).all()
    prepare(device, Call("micro_step", 8, ()))
    for name in ("linear1.bias", "layernorm1.gamma", "layernorm1.beta"):
        values = device.read_state(name)
        assert len(np.unique(values)) == values.size
    assert (device.read_state("m.linear1.weight") > 0).any()
    assert device.read_scalar("control.updates") > 0 < device.read_scalar("control.window")


def test_the_update_of_the_short_batch_alone_meets_an_overflow(
    prepared: tuple[Preparer, HostArena],
) -> None:
    prepare, device = prepared
    assert row_counts(8) == (1, 5, 8)
    gradients = [state.name for state in prepare.entries.states_of("gradient")]
    for rows, overflows in ((1, False), (8, False), (5, True)):
        prepare(device, Call("update", rows, ()))
        found = [np.isinf(device.read_state(name)).sum() for name in gradients]
        assert found == [int(overflows)] * len(gradients)


def test_three_batches_from_three_rows_on() -> None:
    assert [row_counts(rows) for rows in (1, 2, 3, 4)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4)]


def test_what_decides_over_a_step_is_run_once_more(prepared: tuple[Preparer, HostArena]) -> None:
    """Only the launch that writes the counters, behind a step that was not finite."""
    prepare, device = prepared
    source = generate("network", device.program)
    calls = list(list_calls(device.program, source, (1, 5, 8)))
    once_more = [call for call in calls if call.event]
    assert [(c.entry, c.rows, len(c.launches)) for c in once_more] == [("update", 1, 1)] * 2
    found, finite = [], []
    for call in calls:
        prepare(device, call)
        if call.entry == "update":
            values = [device.read_scalar(f"control.{name}") for name in ("late", "found_inf")]
            found.append((call.rows, *values))
            loss, weight = (device.read_scalar(f"control.{name}") for name in ("loss", "weight"))
            finite.append(isfinite(loss) and isfinite(loss / (weight or 1.0)))
    assert finite == [True, True, False, True, True]
    # The step before counts for nothing while the host waits; five rows are the skipped step.
    assert found == [(1, 0, 1), (1, 1, 1), (1, 0, 1), (5, 0, 0), (8, 0, 1)]


def test_all_that_holds_a_step_is_run_held(prepared: tuple[Preparer, HostArena]) -> None:
    """Whatever writes what a held step leaves alone is among the launches run once more."""
    _, device = prepared
    source = generate("network", device.program)
    held = next(c for c in list_calls(device.program, source, (1, 8)) if c.event == HELD)
    entry = device.program.entries["update"]
    for launch in source.launches["update"]:
        kernels = [entry.kernels[at] for at in (*launch.kernels, *launch.tails)]
        homes = {entry.storage[operand.value] for k in kernels for operand in k.writes}
        if homes & {"control.window", "control.scale", "control.found_inf"}:
            assert launch in held.launches, launch.function
