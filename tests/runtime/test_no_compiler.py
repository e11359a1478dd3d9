"""Machines without a compiler, or with one that fails: what the user is told."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BPC = "import sys; from bpc.cli.main import main; sys.exit(main(sys.argv[1:]))"
SPEC = """\
bpc: 1
name: tiny
data: {source: synthetic, shape: [3], classes: 2, rows: 8, test_rows: 4, batch: 4}
model: [{linear: 2}]
loss: cross_entropy
train: {steps: 2, optimizer: {sgd: {lr: 0.1}}}
"""


def train(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`bpc train` where nothing but what `env` names can be found."""
    (folder / "tiny.yaml").write_text(SPEC)
    (folder / "bin").mkdir(exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("CXX", "PATH")}
    settings = {"PATH": str(folder / "bin"), "BPC_CACHE": str(folder / "cache"), **env}
    return subprocess.run(
        [sys.executable, "-c", BPC, "train", "tiny.yaml", *words],
        env={**clean, **settings, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def script(path: Path, text: str) -> Path:
    """An executable file."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_auto_falls_back_to_the_reference_and_says_why(tmp_path: Path) -> None:
    done = train(tmp_path, "--device", "auto")
    assert done.returncode == 0, done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "no C++ compiler" in line]
    assert len(told) == 1
    assert "on reference, because cpu: no C++ compiler: g++, clang++, c++ not found" in told[0]


def test_auto_in_json_says_which_device_and_why(tmp_path: Path) -> None:
    done = train(tmp_path, "--json", CXX="/nonexistent")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, answer["device"]) == (0, "reference")
    assert any("/nonexistent not found" in note["text"] for note in answer["notes"])


def test_the_compiled_device_alone_is_an_error_with_help(tmp_path: Path) -> None:
    done = train(tmp_path, "--device", "cpu", CXX="/nonexistent")
    assert done.returncode == 1
    assert "BPC0610" in done.stderr and "/nonexistent not found" in done.stderr
    assert "install g++ or clang++" in done.stderr and "--device reference" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_compiler_that_fails_is_quoted(tmp_path: Path, device: str) -> None:
    text = "#!/bin/sh\necho 'program.cpp:1:2: error: no such luck' >&2\nexit 3\n"
    broken = script(tmp_path / "broken++", text)
    done = train(tmp_path, "--device", device, CXX=str(broken))
    told = done.stdout + done.stderr
    assert "broken++ failed on generated code (exit 3)" in told
    assert "Traceback" not in told
    if device == "cpu":
        assert done.returncode == 1
        assert "error: no such luck" in done.stderr
    else:
        assert done.returncode == 0
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_compiler_that_cannot_be_run_is_an_error_too(tmp_path: Path) -> None:
    broken = script(tmp_path / "text++", "neither a script nor a program\n")
    done = train(tmp_path, "--device", "cpu", CXX=str(broken))
    assert done.returncode == 1
    assert "text++ failed on generated code" in done.stderr and "Traceback" not in done.stderr


def test_the_cache_folder_may_have_any_name(tmp_path: Path) -> None:
    """A cache below a folder with spaces and quotes: no shell takes part."""
    odd = tmp_path / "it's a cache"
    env = {"PATH": os.environ["PATH"], "BPC_CACHE": str(odd)}
    done = train(tmp_path, "--device", "auto", "--json", **env)
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["device"] == "reference" or list(odd.rglob("*.so"))
