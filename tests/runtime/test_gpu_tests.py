"""What waits for a GPU runs on the stand-in: only a device can pass it for good, or find it wrong,
but a slip in a test or in the benchmark shows here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from header_drivers import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REAL = ("test_04", "test_08", "test_10", "test_21")
"""A cache on disk, two streams at once, a fault in a kernel and cuBLASLt are a device's own."""

LONG = ("test_11", "test_14", "test_15")
"""Many steps of what others take a few of; they pass on the stand-in as well, in 40 s."""

PARTS = """
import json, sys
import gpu_stand_in
sys.path.insert(0, "benchmarks")
import gpu

gpu.LOOP_STEPS, gpu.WARM_UP, gpu.ROUNDS, gpu.ROUND_STEPS, gpu.TRAIN_STEPS = 3, 1, 1, 2, 4
found = {kind: [gpu.WORKERS[kind](what) for what in names] for kind, names in (
    ("train", ["digits_mlp"]), ("time", ["bpc"]), ("loop", list(gpu.LOOPS)))}
print(json.dumps(found))
"""


def run(*words: str) -> str:
    folders = (str(HERE), str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_tests_for_a_device_pass_on_the_stand_in() -> None:
    options = ["-p", "gpu_stand_in", "-p", "no:cacheprovider", "-m", "gpu", "-o", "addopts=", "-q"]
    left_out = f"not ({' or '.join((*REAL, *LONG))})"
    out = run("-m", "pytest", *options, "-k", left_out, "tests/gpu")
    passed = re.search(r"^(\d+) passed, (\d+) deselected in", out, re.M)
    assert passed and int(passed[1]) >= 16, out


def test_the_benchmark_runs_on_the_stand_in() -> None:
    found = json.loads(run("-c", PARTS).splitlines()[-1])
    (trained,) = found["train"]
    assert trained["same_bits"] or trained["worst"] <= 1e-4
    (timed,) = found["time"]
    assert timed["step_ms"] > 0 < timed["device_ms"] and len(timed["losses"]) == 1
    ahead, waiting = found["loop"]
    assert ahead["loss"] == waiting["loss"]
