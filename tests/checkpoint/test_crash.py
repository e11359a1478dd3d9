"""Processes that are killed, and machines that lose what was not synced."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from nets import Unsynced, compile_small, stop_at, train_straight, write_spec

from bpc.train.checkpoint import (
    Contents,
    find_checkpoint,
    list_checkpoints,
    prune,
    write_checkpoint,
)
from bpc.train.files import Bytes, Files, remove_leftovers, write_new
from bpc.train.saved import SavedState
from bpc.train.tensorfile import encode_tensors

ROOT = Path(__file__).resolve().parents[2]
KILLS = 100


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """100 kills of a run of 300 steps that keeps checkpoints of each."""
    text = write_spec(tmp_path).read_text().replace("steps: 40", "steps: 300")
    spec = write_spec(tmp_path, text)
    train_straight(compile_small(spec), tmp_path / "straight")
    spec = write_spec(tmp_path, text.replace("keep: 1000", "keep: 2"))
    program = str(Path(__file__).with_name("killed_run.py"))
    words = [sys.executable, program, str(spec), str(tmp_path / "run"), str(KILLS), "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] >= KILLS * 0.9
    assert found["steps"] == sorted(found["steps"])  # a kill never takes a step back
    assert len(set(found["steps"])) > 10 and found["last"] == 300
    assert found["left"] == []


# -- a disk that loses what was not synced --------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call of one save, with what a disk has to know of it."""

    name: str
    path: Path
    other: Path | None = None
    data: bytes = b""


class Recorder(Unsynced):
    """Does everything and writes down what it did."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._open: dict[int, Path] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._open[descriptor] = path
        self.calls.append(Call("create", path))
        return descriptor

    def write(self, descriptor: int, data: Bytes) -> int:
        count = super().write(descriptor, memoryview(data)[:4096])
        written = bytes(memoryview(data)[:count])
        self.calls.append(Call("write", self._open[descriptor], data=written))
        return count

    def sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.calls.append(Call("sync_folder" if path.is_dir() else "sync", path))

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.calls.append(Call("make_folder", path))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.calls.append(Call("rename", old, new))

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        self.calls.append(Call("link", old, new))

    def remove(self, path: Path) -> None:
        if path.exists():
            self.calls.append(Call("remove", path))
        super().remove(path)

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self.calls.append(Call("remove_folder", path))


@dataclass
class Inode:
    """A file's bytes in memory, and those of them that are surely on the disk."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None


Names = dict[Path, "Inode | None"]  # None for a folder


def replay(start: Path, calls: list[Call]) -> tuple[Names, list[Call]]:
    """The names that are surely on the disk, and the changes of names that may be."""
    durable: Names = {}
    for path in sorted(start.rglob("*")):
        durable[path] = None if path.is_dir() else Inode(bytearray(path.read_bytes()))
        inode = durable[path]
        if inode is not None:
            inode.synced = bytes(inode.data)
    pending: list[Call] = []
    inodes: dict[Call, Inode] = {}
    live = dict(durable)
    for call in calls:
        if call.name == "write":
            file = live[call.path]
            assert file is not None
            file.data += call.data
        elif call.name == "sync":
            file = live[call.path]
            assert file is not None
            file.synced = bytes(file.data)
        elif call.name == "sync_folder":
            kept = [c for c in pending if _parent(c) != call.path]
            for item in pending:
                if _parent(item) == call.path:
                    _change(durable, item, inodes)
            pending = kept
        else:
            if call.name == "create":
                inodes[call] = Inode()
            _change(live, call, inodes)
            pending.append(call)
    return durable, pending


def _parent(call: Call) -> Path:
    return (call.other or call.path).parent


def _change(names: Names, call: Call, inodes: dict[Call, Inode]) -> None:
    """Carry out a change of names, as far as what it needs is there."""
    if call.name == "make_folder":
        names[call.path] = None
    elif call.name == "create":
        names[call.path] = inodes[call]
    elif call.name == "link" and call.path in names:
        assert call.other is not None
        names[call.other] = names[call.path]
    elif call.name == "rename":
        assert call.other is not None
        for path in [p for p in names if p == call.path or call.path in p.parents]:
            names[call.other / path.relative_to(call.path)] = names.pop(path)
    elif call.name in ("remove", "remove_folder"):
        names.pop(call.path, None)


def crash_states(
    start: Path, calls: list[Call], draw: random.Random, each: int
) -> Iterator[dict[Path, bytes | None]]:
    """What a disk may hold after a crash before each call, `each` draws of it."""
    for count in range(len(calls) + 1):
        synced, pending = replay(start, calls[:count])
        made = [call for call in pending if call.name == "create"]
        inodes = {call: _inode_of(calls[:count], call) for call in made}
        for number in range(each):
            durable = dict(synced)
            # Mostly the order in which it happened, as journals keep it; else any selection.
            if number % 2:
                chosen = pending[: draw.randint(0, len(pending))]
            else:
                chosen = [call for call in pending if draw.random() < 0.5]
            for call in chosen:
                _change(durable, call, inodes)
            yield {
                path: None if inode is None else _torn(inode, draw)
                for path, inode in durable.items()
            }


def _inode_of(calls: list[Call], created: Call) -> Inode:
    """The file that a call made, as it is after all the calls."""
    made = Inode()
    path = created.path
    for call in calls[calls.index(created) + 1 :]:
        if call.name == "write" and call.path == path:
            made.data += call.data
        elif call.name == "sync" and call.path == path:
            made.synced = bytes(made.data)
        elif call.other is not None and call.name == "rename" and path.is_relative_to(call.path):
            path = call.other / path.relative_to(call.path)
    return made


def _torn(inode: Inode, draw: random.Random) -> bytes:
    """Synced bytes are there; of others any part, in sectors or pages, or zeros in their place."""
    data = bytes(inode.data)
    if inode.synced == data:
        return data
    kind, unit = draw.randrange(5), draw.choice((512, 4096))
    if kind == 0:
        return b""
    if kind == 1:
        return data
    if kind == 2:
        return data[: draw.randint(0, len(data) // unit) * unit]
    if kind == 3:
        return bytes(len(data))
    blocks = [data[i : i + unit] for i in range(0, len(data), unit)]
    return b"".join(b if draw.random() < 0.5 else bytes(len(b)) for b in blocks)


LAYOUTS = ("small", "large", "with the best model", "keep one", "over a damaged one")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("saves", "each"),
    [pytest.param(5, 15, id="quick"), pytest.param(30, 50, id="long", marks=pytest.mark.slow)],
)
def test_after_a_crash_it_is_the_old_or_the_new_state(
    tmp_path: Path, layout: str, saves: int, each: int
) -> None:
    """Saves in five layouts; `long` sees more than 10,000 states of the disk."""
    draw = random.Random(layout)
    run = tmp_path / "run"
    stop_at(compile_small(write_spec(tmp_path)), run, 3)
    state = find_checkpoint(run)[0].state
    for path in run.iterdir():
        if path.name != "checkpoints":
            path.unlink()
    prune(Files(), run, 1, 3)
    size = 3000 if layout == "large" else 20
    whole: dict[int, bytes] = {}
    seen: set[object] = set()
    for step in range(4, 4 + saves):
        contents = make_contents(run, state, step, size, layout)
        if layout == "over a damaged one":
            (run / f"checkpoints/step-{step:06d}").mkdir()
        start = tmp_path / "start"
        shutil.rmtree(start, ignore_errors=True)
        shutil.copytree(run, start)
        files = Recorder()
        write_checkpoint(files, run, contents)
        finished = len(files.calls)
        prune(files, run, 1 if layout == "keep one" else 2, step)
        whole[step] = sum_of(run, step)
        calls = [moved(call, run, start) for call in files.calls]
        for number, disk in enumerate(crash_states(start, calls, draw, each)):
            at = number // each
            key = (step, at, frozenset(disk.items()))
            if key in seen:
                continue
            seen.add(key)
            found = load_from(tmp_path / "disk", start, disk)
            newest = step - 1
            assert found in (newest, step), f"{layout}: crash before call {at}"
            assert at < finished or found == step, "after a save has returned it is the new one"
            if found in whole:
                assert sum_of(tmp_path / "disk", found) == whole[found]
    assert len(seen) > (2000 if saves > 5 else 250)


def make_contents(run: Path, state: SavedState, step: int, size: int, layout: str) -> Contents:
    arrays = {f"a{k}": np.full((size,), step + k, np.float32) for k in range(3)}
    changed = state.model_copy(update={"step": step})
    if layout != "with the best model":
        return Contents(changed, arrays, {"m": arrays["a0"]})
    best = run / "best.safetensors"
    best.unlink(missing_ok=True)
    written = write_new(Files(), best, encode_tensors({"w": arrays["a1"]}))
    return Contents(changed, arrays, {"m": arrays["a0"]}, best, written)


def moved(call: Call, run: Path, start: Path) -> Call:
    other = start / call.other.relative_to(run) if call.other else None
    return Call(call.name, start / call.path.relative_to(run), other, call.data)


def load_from(disk: Path, start: Path, names: dict[Path, bytes | None]) -> int:
    """The step of what is found on a disk; afterwards the leftovers are gone."""
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir()
    for path, data in sorted(names.items(), key=lambda item: len(item[0].parts)):
        here = disk / path.relative_to(start)
        if data is None:
            here.mkdir(exist_ok=True, parents=True)
        elif here.parent.is_dir():
            here.write_bytes(data)
    found = find_checkpoint(disk)[0].state.step
    remove_leftovers(Files(), disk / "checkpoints")
    assert all(p.name.startswith("step-") for p in (disk / "checkpoints").iterdir())
    assert list_checkpoints(disk)
    return found


def sum_of(run: Path, step: int) -> bytes:
    folder = run / "checkpoints" / f"step-{step:06d}"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
