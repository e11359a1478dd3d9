"""The arena is what the plan says: dead bytes are poisoned, touched bytes counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from header_drivers import NEEDS_COMPILER
from programs import POISON, digest, open_net, plan_net, share_library

from bpc.api import Net
from bpc.plan.program import Entry, Program
from bpc.resources import spec_root
from bpc.runtime.cpu.device import CpuDevice
from bpc.runtime.cpu.toolchain import find_toolchain
from bpc.train.evaluate import feed
from bpc.train.initial import initial_values

pytestmark = NEEDS_COMPILER

HERE = Path(__file__).parent
SPECS = [
    spec_root() / "synthetic_mlp12.yaml",
    spec_root() / "small_conv.yaml",
    HERE.parent / "specs" / "conv_chain.yaml",
    HERE.parent / "specs" / "residual_tied.yaml",
]
CANARY = 0xA5
EACH = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)


def devices_for(path: Path) -> tuple[Net, list[CpuDevice]]:
    """The least feasible plan, one between, and the plan that keeps everything."""
    net = open_net(path)
    everything = plan_net(net, least=True)
    least, most = everything.least_feasible_bytes, everything.program.arena_bytes
    plans = [plan_net(net, least), plan_net(net, (least + most) // 2), everything]
    return net, share_library([planned.program for planned in plans])


def prepare(net: Net, device: CpuDevice, rows: int) -> None:
    """Initial weights, a control block that trains, and the first rows of the data."""
    states = net.entries.states_of("parameter")
    for name, value in initial_values(states, net.spec.seed).items():
        device.write_state(name, value)
    for name, value in {"divisor": rows, "scale": 1, "base_lr": 1e-2, "total": 100}.items():
        device.write_scalar(f"control.{name}", value)
    feed(device, {name: values[:rows] for name, values in net.data.train.items()})


def live_ranges(program: Program, entry: Entry) -> list[list[tuple[int, int]]]:
    """Per launch, the byte ranges of temporaries that a later launch (or the host) still reads.

    Found here from reads and writes alone: after launch t a storage matters if its next use is a
    read.
    """
    temporary = [name for name in entry.sizes if name not in program.persistent]
    kept = {entry.storage[entry.output_of(role)[0]] for role, _ in entry.graph.outputs}
    ranges = []
    for at in range(len(entry.steps)):
        alive = [name for name in temporary if _is_read_next(entry, name, at, name in kept)]
        ranges.append([(entry.offsets[n], entry.offsets[n] + entry.sizes[n]) for n in alive])
    return ranges


def _is_read_next(entry: Entry, name: str, at: int, kept: bool) -> bool:
    written = any(name in step.writes for step in entry.steps[: at + 1])
    for step in entry.steps[at + 1 :]:
        if name in step.reads:
            return True
        if name in step.writes:
            return False
    return kept and written


def run_poisoned(device: CpuDevice, name: str, rows: int) -> int:
    """Run an entry launch by launch with NaN in every byte that is dead; poisoned bytes in all."""
    entry, first = device.program.entries[name], device.program.persistent_bytes
    ranges, total = live_ranges(device.program, entry), 0
    device.arena[first:] = POISON
    for at in device.run_one_by_one(name, rows):
        dead = np.ones(len(device.arena) - first, bool)
        for start, end in ranges[at]:
            dead[start - first : end - first] = False
        device.arena[first:][dead] = POISON
        total += int(dead.sum())
    return total


def names(net: Net) -> Iterator[str]:
    yield from net.entries.graphs


@EACH
def test_poisoned_dead_bytes_change_nothing(path: Path) -> None:
    net, devices = devices_for(path)
    for device in devices:
        for rows in (device.rows, device.rows - 3, 1):
            prepare(net, device, rows)
            start = device.arena.copy()
            expected = []
            for name in names(net):
                device.run(name, rows)
                roles = [role for role, _ in device.program.entries[name].graph.outputs]
                outputs = [device.read_output(name, role, rows).tobytes() for role in roles]
                expected.append((digest(net, device), outputs))
            assert np.isfinite(device.read_scalar("control.loss"))
            device.arena[:] = start
            for name, (states, outputs) in zip(names(net), expected, strict=True):
                assert run_poisoned(device, name, rows) > 0
                roles = [role for role, _ in device.program.entries[name].graph.outputs]
                found = [device.read_output(name, role, rows).tobytes() for role in roles]
                assert found == outputs, f"{name}, {rows} rows, {device.arena_bytes} bytes"
                assert digest(net, device) == states, f"{name}, {rows} rows"


def test_poison_on_a_live_range_is_seen() -> None:
    """The test above can fail: one range that is still read is enough."""
    net, (_, _, device) = devices_for(SPECS[1])
    entry, rows = device.program.entries["micro_step"], device.rows
    prepare(net, device, rows)
    start = device.arena.copy()
    device.run("micro_step", rows)
    expected = digest(net, device)
    ranges = live_ranges(device.program, entry)
    at = next(at for at, alive in enumerate(ranges) if alive)
    device.arena[:] = start
    for done in device.run_one_by_one("micro_step", rows):
        if done == at:
            low, high = ranges[at][0]
            device.arena[low:high] = POISON
    assert digest(net, device) != expected


@EACH
def test_a_barrier_stands_between_launches_that_share_bytes(path: Path) -> None:
    """Every pair of launches without a barrier between them: neither writes what the other uses."""
    net = open_net(path)
    for entry in plan_net(net).program.entries.values():
        waits = np.cumsum([0, *entry.barriers])
        for later, step in enumerate(entry.steps):
            for earlier in range(later):
                if waits[earlier] == waits[later]:
                    other = entry.steps[earlier]
                    assert not _share(entry, step.writes, (*other.reads, *other.writes))
                    assert not _share(entry, step.reads, other.writes)


def _share(entry: Entry, some: Sequence[str], others: Sequence[str]) -> bool:
    spans = [[(entry.offsets[n], entry.sizes[n]) for n in group] for group in (some, others)]
    return any(a < b + m and b < a + n for a, n in spans[0] for b, m in spans[1] if n and m)


@EACH
def test_the_touched_high_water_mark_is_the_planned_peak(path: Path) -> None:
    """A byte counts as touched if it changes under one of two patterns that fill the arena."""
    net, devices = devices_for(path)
    for device in devices:
        program = device.program
        assert device.arena_bytes == program.arena_bytes == device.planned_peak_bytes
        highest = program.persistent_bytes
        for pattern in (CANARY, CANARY ^ 0xFF):
            for name in names(net):
                highest = max(highest, _touched(net, device, name, pattern))
        assert highest == program.arena_bytes


def _touched(net: Net, device: CpuDevice, name: str, pattern: int) -> int:
    """One past the highest byte that an entry changed; the guard behind the arena must stay."""
    first, guard = device.program.persistent_bytes, 1 << 16
    memory = np.full(device.arena_bytes + guard + 64, pattern, np.uint8)
    start = -memory.ctypes.data % 64
    prepare(net, device, device.rows)
    memory[start : start + first] = device.arena[:first]
    launches, count, offsets = device._calls[name]
    base = memory.ctypes.data + start
    status = device._library._run(base, launches, 0, count, offsets, device.rows, 2)
    assert status == 0
    changed = np.flatnonzero(memory[start + first :] != pattern) + first
    assert not len(changed) or changed[-1] < device.arena_bytes, f"{name} writes behind the arena"
    assert (memory[:start] == pattern).all(), f"{name} writes before the arena"
    return int(changed[-1]) + 1 if len(changed) else first


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that counts allocations."""
    made = tmp_path_factory.mktemp("counter") / "counted_alloc.so"
    command = [find_toolchain().command, "-x", "c", "-O1", "-fPIC", "-shared"]
    subprocess.run([*command, str(HERE / "counted_alloc.c"), "-o", str(made)], check=True)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="preloading is a matter of the system")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", SPECS[1:2], ids=lambda path: path.stem)
def test_a_step_allocates_nothing(counter: Path, path: Path, threads: int) -> None:
    folders = [str(HERE), str(HERE.parent / "ops"), str(HERE.parent.parent)]
    run = subprocess.run(
        [sys.executable, str(HERE / "count_allocations.py"), str(counter), str(path), str(threads)],
        env={**os.environ, "LD_PRELOAD": str(counter), "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout)
    if threads > 1:
        assert counts[0][1] > 0, "the hook counts: the first call makes the threads"
    assert [calls for _, calls in counts[1:]] == [0] * 5
