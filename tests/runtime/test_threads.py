"""Any number of threads and processes, few processors, a damaged cache: the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from header_drivers import NEEDS_COMPILER
from programs import digest, open_net, plan_net, share_library, train_on

from bpc.resources import spec_root

pytestmark = NEEDS_COMPILER

ROOT = Path(__file__).resolve().parents[2]
SPEC = spec_root() / "small_conv.yaml"
STEPS = 4
SCRIPT = """
import hashlib, json, sys
import bpc
net = bpc.compile(sys.argv[1], device="cpu", threads=int(sys.argv[2]))
net.train(steps=int(sys.argv[3]), run_dir=sys.argv[4])
digest = hashlib.sha256()
for name, value in sorted(net.parameters().items()):
    digest.update(value.tobytes())
print(json.dumps(digest.hexdigest()))
"""


def start(folder: Path, threads: int, cache: Path | None = None, **more: Any) -> subprocess.Popen:
    """A training run in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, str(SPEC), str(threads), str(STEPS), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if cache:
        env["BPC_CACHE"] = str(cache)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=env, text=True, **pipes, **more)


def finish(process: subprocess.Popen) -> str:
    """The digest of the run's parameters."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return str(json.loads(out))


def test_more_threads_than_processors_give_the_same_bytes(tmp_path: Path) -> None:
    net = open_net(SPEC)
    (device,) = share_library([plan_net(net).program])
    found = {}
    for threads in (1, 2, 3, 5):
        device.threads = threads
        train_on(net, device, STEPS, tmp_path / str(threads))
        found[threads] = digest(net, device)
    assert all(states == found[1] for states in found.values())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a mask of processors")
def test_a_process_pinned_to_one_processor_works(tmp_path: Path) -> None:
    one = {min(os.sched_getaffinity(0))}

    def pin() -> None:
        os.sched_setaffinity(0, one)

    pinned = finish(start(tmp_path / "pinned", 2, preexec_fn=pin))
    assert pinned == finish(start(tmp_path / "free", 1))


def test_two_processes_compile_the_same_network_at_once(tmp_path: Path) -> None:
    """Then the library is cut short, overwritten and emptied: each time it is made again."""
    cache = tmp_path / "cache"
    both = [start(tmp_path / f"run{k}", 1, cache) for k in range(2)]
    first, second = (finish(process) for process in both)
    assert first == second
    (library,) = (cache / "cpu").glob("*.so")
    whole = library.read_bytes()
    assert [path.suffix for path in (cache / "cpu").iterdir() if path != library] == [".cpp"]
    for number, damaged in enumerate((whole[: len(whole) // 2], b"x" * len(whole), b"")):
        library.write_bytes(damaged)
        assert finish(start(tmp_path / f"again{number}", 1, cache)) == first
        assert library.stat().st_size == len(whole)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    found = finish(start(tmp_path / "run", 1, blocked))
    assert found == finish(start(tmp_path / "free", 1))
