"""Runs that are killed at random moments, each a child of this process; says what was left.

Usage: killed_run.py SPEC RUN KILLS SEED. Half of the children kill themselves inside a call that
changes files, of writes after a part of the bytes; the others are killed by the clock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from nets import compile_small, contents_of

from bpc.errors import Interrupted
from bpc.train.checkpoint import find_checkpoint, list_checkpoints
from bpc.train.faults import CheckpointError
from bpc.train.files import Bytes, Files
from bpc.train.loop import Resume
from bpc.train.run_folder import RunFolder


class Deadly(Files):
    """The process dies in the call with a number, before it or, of a write, in its middle."""

    def __init__(self, at: int):
        self.left = at

    def _count(self) -> bool:
        self.left -= 1
        return self.left == 0

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, descriptor: int, data: Bytes) -> int:
        if self._count():
            super().write(descriptor, memoryview(data)[: len(data) // 2])
            self._die()
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        if self._count():
            self._die()
        super().sync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        if self._count():
            self._die()
        super().rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        if self._count():
            self._die()
        super().link(old, new)

    def remove(self, path: Path) -> None:
        if self._count():
            self._die()
        super().remove(path)


def train_on(net: Any, run: Path, files: Files) -> int:
    """Go on with a run as far as it gets; the checkpoint that it began from."""
    try:
        found, _ = find_checkpoint(run)
    except CheckpointError:
        for path in sorted(run.rglob("*"), reverse=True) if run.exists() else ():
            path.rmdir() if path.is_dir() else path.unlink()
        net.train(run_dir=run, files=files)
        return 0
    net.train(resume=Resume(RunFolder(run), found), files=files)
    return found.state.step


def fork(net: Any, run: Path, files: Files) -> int:
    child = os.fork()
    if child == 0:
        try:
            train_on(net, run, files)
        except Interrupted:
            os._exit(130)
        os._exit(0)
    return child


def main(spec: str, folder: str, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    net, run = compile_small(Path(spec)), Path(folder)
    assert net.data and net.device
    steps: list[int] = []
    killed = 0
    for number in range(kills):
        by_clock = number % 2
        child = fork(net, run, Files() if by_clock else Deadly(draw.randint(1, 120)))
        if by_clock:
            time.sleep(draw.uniform(0.002, 0.06))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        steps.append(check(run))
    child = fork(net, run, Files())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = [str(path) for path in run.rglob(".*")]
    print(json.dumps({"killed": killed, "steps": steps, "last": check(run), "left": left}))


def check(run: Path) -> int:
    """The step of the newest checkpoint; every one that has a name is that of the straight run."""
    straight = run.parent / "straight" / "checkpoints"
    for _, path in list_checkpoints(run):
        assert contents_of(path) == contents_of(straight / path.name), path
    try:
        found, warned = find_checkpoint(run)
    except CheckpointError:
        return 0
    assert not warned, warned
    return found.state.step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
