"""10,000 mutated specs through the whole compile: errors with places, soon, in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutate_specs import MOST_BYTES, MOST_SECONDS, SEEDS, mutate
from mutations import CHANGES

ROOT = Path(__file__).resolve().parents[2]
COUNT = 10_000
BLOCKS = 4
SHARE = 5  # of which one part is run unless all are asked for


@pytest.mark.parametrize("block", range(BLOCKS))
def test_mutated_specs(block: int, request: pytest.FixtureRequest) -> None:
    """Every fifth of them; all with `pytest --all-mutations`."""
    stride = 1 if request.config.getoption("--all-mutations") else SHARE
    first, count = block * COUNT // BLOCKS, COUNT // BLOCKS // stride
    program = Path(__file__).with_name("mutate_specs.py")
    paths = os.pathsep.join([str(ROOT), str(program.parent)])
    done = subprocess.run(
        [sys.executable, str(program), str(first), str(count), str(stride)],
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["faults"] == []
    assert report["count"] == count == report["refused"] + report["planned"]
    assert report["worst_seconds"] <= MOST_SECONDS
    assert report["extra_bytes"] <= MOST_BYTES
    assert report["refused"] > count / 2 and report["planned"] > count / 50


def test_a_mutation_follows_from_its_number() -> None:
    kinds = len(SEEDS) * len(CHANGES)
    texts = [mutate(number) for number in range(2 * kinds)]
    assert texts == [mutate(number) for number in range(2 * kinds)]
    assert len(set(texts)) > 1.9 * kinds
    seeds = {text.encode() for text in SEEDS}
    assert sum(text in seeds for text in texts) < kinds / 4
