"""Large files are mapped: opening one and training on it reads only what is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GIB = 1 << 30


def write_sparse(path: Path, shape: tuple[int, ...], dtype: str = "<f4") -> None:
    """A .npy of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        size = file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize
    os.truncate(path, size)


SCRIPT = """
import json, resource, time
import bpc
resource.setrlimit(resource.RLIMIT_DATA, (768 << 20,) * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
net = bpc.compile("net.yaml", device="reference")
data = net.data
opened = time.perf_counter() - started
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
steps = net.train(steps=3)["steps"]
print(json.dumps({
    "rows": [net.description.train_rows, net.description.test_rows],
    "type": type(data.train["x"]).__name__,
    "seconds": opened, "grown": (rss - before) << 10, "steps": steps,
}))
"""


def run(folder: Path, data: str) -> dict[str, object]:
    (folder / "net.yaml").write_text(
        f"bpc: 1\ndata: {data}\nmodel: [linear: 2]\nloss: cross_entropy\n"
        "train: {lr: 0.1, optimizer: sgd, eval_every: 1000}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("divided", ["split: {rows: [[0, 64]]}", "by file"])
def test_two_gib_are_opened_without_being_read(tmp_path: Path, divided: str) -> None:
    rows, width = 1 << 15, 1 << 14
    write_sparse(tmp_path / "x.npy", (rows, width))
    np.save(tmp_path / "y.npy", np.arange(rows) % 2)
    np.save(tmp_path / "t.npy", np.zeros((64, width), np.float32))
    np.save(tmp_path / "u.npy", np.arange(64) % 2)
    assert (tmp_path / "x.npy").stat().st_size > 2 * GIB
    rest = divided if divided != "by file" else "test_inputs: t.npy, test_target: u.npy"
    data = f"{{source: npy, inputs: x.npy, target: y.npy, batch: 16, {rest}}}"
    found = run(tmp_path, data)
    assert found["type"] == "StoredRows" and found["steps"] == 3
    # Reading it would take 2 GiB; opening takes what Python's own modules take.
    assert isinstance(found["grown"], int) and found["grown"] < GIB // 4


def test_statistics_of_a_large_file_are_gathered_piece_by_piece(tmp_path: Path) -> None:
    """As f64 the file would take 2 GiB, more than the process may have."""
    rows, width = 1 << 14, 1 << 14
    write_sparse(tmp_path / "x.npy", (rows, width))
    np.save(tmp_path / "y.npy", np.arange(rows) % 2)
    test = "split: {rows: [[0, 64]]}"
    data = f"{{source: npy, inputs: x.npy, target: y.npy, normalise: standard, batch: 16, {test}}}"
    found = run(tmp_path, data)
    assert found["type"] == "StoredRows" and found["steps"] == 3
