"""What kernels are checked on: values that let a wrong index, factor or skip show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bpc
from bpc.diagnose.session import Preparer, row_counts
from bpc.runtime.cpu.build import plan
from bpc.runtime.host_arena import HostArena

SPEC = """\
bpc: 1
data: {source: synthetic, shape: [6], classes: 3, rows: 8, test_rows: 4, batch: 8}
model: [linear: 5, layernorm, linear: 3]
loss: cross_entropy
train: {steps: 1, lr: 0.01, optimizer: adam}
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
    prepare(device, "micro_step", 1)
    assert not device.read_state("linear1.bias").any()
    assert (device.read_state("layernorm1.gamma") == 1).all()
    prepare(device, "micro_step", 8)
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
        prepare(device, "update", rows)
        found = [np.isinf(device.read_state(name)).sum() for name in gradients]
        assert found == [int(overflows)] * len(gradients)


def test_three_batches_from_three_rows_on() -> None:
    assert [row_counts(rows) for rows in (1, 2, 3, 4)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4)]
