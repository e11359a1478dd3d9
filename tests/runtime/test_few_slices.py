"""How many threads a program gets: none that would only be waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

import bpc

SPEC = """\
bpc: 1
data: {{source: synthetic, shape: [{width}], classes: 8, rows: 512, batch: {batch}}}
model: [linear: {width}, relu, linear: 8]
loss: cross_entropy
train: {{steps: 2, lr: 1e-3}}
"""


@pytest.mark.parametrize(
    ("width", "batch", "threads"), [(4, 2, "1 thread"), (256, 256, "3 threads")]
)
def test_a_program_of_single_slices_runs_on_one_thread(
    width: int, batch: int, threads: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(SPEC.format(width=width, batch=batch))
    assert bpc.compile(path, device="cpu", threads=3).device.summary.startswith(f"cpu ({threads},")
