"""The committed examples are what `bpc compile` writes today, and compile as their page says."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bpc

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = {"neuron": "specs/worked/neuron.yaml", "digits_mlp": "specs/digits_mlp.yaml"}
TARGETS = {"neuron": "cpu", "digits_mlp": "all"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_fresh(
    name: str, tmp_path: Path, update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    bpc.compile(EXAMPLES[name]).write(target=TARGETS[name], out=tmp_path / name)
    folder = ROOT / "generated" / name
    if update_golden:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / name, folder)
    written = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(written) == sorted(kept)
    stale = [file for file in written if written[file] != kept[file]]
    assert not stale, f"{stale} changed; run once with --update-golden and read the difference"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_compiles_as_its_page_says(name: str, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path / name
    shutil.copytree(ROOT / "generated" / name, folder)
    page = (folder / "README.md").read_text(encoding="utf-8")
    (command,) = [line.strip() for line in page.splitlines() if line.startswith("    g++ ")]
    words = [*command.split(), "-Wunused"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unused = set(re.findall("unused variable .(\\w+)", done.stderr))
    assert unused <= {"c", "r"}, "a value is loaded or computed for nothing"
    library = ctypes.CDLL(str(folder / f"{name}.so"))
    assert library.bpc_run_range


LAUNCH = np.dtype([("kernel", "i4"), ("slices", "i4"), ("barrier", "i4"), ("first", "i4")])
GIVEN = {
    **{"z.weight": 0.5, "z.bias": 0.1, "x": 2.0, "target": 1.0},
    **{"control.scale": 1.0, "control.divisor": 1.0},
}


def test_an_example_runs_from_its_files_alone(tmp_path: Path) -> None:
    """The library, plan.json and manifest.json are enough to take one step by hand."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = ROOT / "generated/neuron"
    plan = json.loads((folder / "plan.json").read_text("utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    page = (folder / "README.md").read_text("utf-8")
    command = next(line for line in page.splitlines() if line.startswith("    g++ ")).split()
    command[-1] = str(tmp_path / "neuron.so")
    subprocess.run(command, cwd=folder, check=True)
    memory = np.zeros(plan["arena_bytes"] + 64, np.uint8)
    arena = memory[-memory.ctypes.data % 64 :][: plan["arena_bytes"]]
    numbers = {t["name"]: arena[t["offset"] :][:8].view(np.float64) for t in plan["persistent"]}
    for name, value in GIVEN.items():
        numbers[name][0] = value

    order = [kernel["name"] for kernel in manifest["kernels"]]
    table, offsets = [], []
    for row, launch in zip(
        manifest["entries"]["micro_step"], plan["entries"]["micro_step"]["launches"], strict=True
    ):
        kernel = order.index(row["kernel"])
        table.append((kernel, row["slices"], int(row["barrier_after"]), len(offsets)))
        offsets += launch["offsets"] + launch["extents"]
    launches, places = np.array(table, LAUNCH), np.array(offsets, np.int64)
    run = ctypes.CDLL(command[-1]).bpc_run_range
    pointer = ctypes.c_void_p
    status = run(
        pointer(arena.ctypes.data),
        pointer(launches.ctypes.data),
        0,
        len(launches),
        pointer(places.ctypes.data),
        ctypes.c_int64(1),
        1,
    )
    assert status == 0
    assert numbers["control.loss"][0] == pytest.approx(0.031185007428680883, rel=1e-12)
    assert numbers["grad.z.weight"][0] == pytest.approx(-0.0935874678657066, rel=1e-12)
    assert numbers["grad.z.bias"][0] == pytest.approx(-0.0467937339328533, rel=1e-12)
