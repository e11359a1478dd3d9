"""Training through the GPU's host side, kernels run by the simulator as late as they may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_in import MADE, simulated, write_spec

import bpc
from bpc import continued
from bpc.errors import Interrupted


@pytest.mark.parametrize("graphs", [True, False])
def test_training_gives_the_bits_of_the_simulator(
    world: Any, tmp_path: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches of 40 rows, the last one short, then evaluation; every number the same."""
    monkeypatch.setenv("BPC_CUDA_GRAPH", str(int(graphs)))
    path = write_spec(tmp_path, **{"rows: 40": "rows: 37"})
    wanted = bpc.compile(path, device="sim")
    told = wanted.train(run_dir=tmp_path / "sim")
    world.execute = simulated()
    found = bpc.compile(path, device="cuda")
    result = found.train(run_dir=tmp_path / "cuda")
    assert result["device"] == "cuda" and result["final"] == told["final"]
    for name, weights in wanted.parameters().items():
        np.testing.assert_array_equal(found.parameters()[name], weights, err_msg=name)
    found.close()
    wanted.close()


def test_a_run_goes_on_from_its_checkpoint(world: Any, tmp_path: Path) -> None:
    """Begun on the GPU, gone on with on the CPU, ended on the GPU: the run that never stopped."""
    path = write_spec(tmp_path, **{"epochs: 1": "epochs: 2, checkpoint: {every: 1}"})
    straight = bpc.compile(path, device="sim")
    straight.train(run_dir=tmp_path / "straight")
    straight.close()
    world.execute = simulated()
    begun = bpc.compile(path, device="cuda")
    with pytest.raises(Interrupted):
        begun.train(run_dir=tmp_path / "run", stop_after=3)
    begun.close()
    with pytest.raises(Interrupted):
        continued.resume(tmp_path / "run", device="cpu", stop_after=6)
    result = continued.resume(tmp_path / "run", device="cuda")
    assert (result["device"], result["steps"]) == ("cuda", 10)
    files = [tmp_path / name / "checkpoints/step-000010" for name in ("straight", "run")]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (files[0] / name).read_bytes() == (files[1] / name).read_bytes()


# -- values read late -----------------------------------------------------------------------------

OVERFLOWS = {
    "epochs: 1": "epochs: 4, precision: fp16, loss_scale: {start: 1073741824, growth_interval: 3}, "
    "eval_every: 9, log_every: 2, accumulate: 2, checkpoint: {every: 4, keep: 9}"
}


@pytest.mark.parametrize("ahead", [True, False])
def test_overflows_are_found_late_and_change_no_bit(
    world: Any, tmp_path: Path, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps in fp16, the first of which are skipped: lines, weights and every checkpoint."""
    monkeypatch.setenv("BPC_CUDA_AHEAD", str(int(ahead)))
    path = write_spec(tmp_path, **OVERFLOWS)
    wanted = bpc.compile(path, device="sim")
    told = wanted.train(run_dir=tmp_path / "sim")
    wanted.close()
    world.execute = simulated()
    found = bpc.compile(path, device="cuda")
    assert found.device.works_ahead == ahead
    result = found.train(run_dir=tmp_path / "cuda")
    found.close()
    assert result["skipped_steps"] == told["skipped_steps"] >= 4
    assert result["final"] == told["final"]
    runs = [tmp_path / name for name in ("sim", "cuda")]
    texts = [(run / "metrics.jsonl").read_text(encoding="utf-8") for run in runs]
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for rows in lines:
        for row in rows:
            row.pop("step_ms", None)
    assert lines[0] == lines[1]
    saved = sorted(path.relative_to(runs[0]) for path in runs[0].glob("**/*.safetensors"))
    assert len(saved) == 9  # of steps 4, 8 and 10, best weights beside the last; and the run's
    for name in saved:
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes(), name


def test_the_host_waits_for_a_step_when_the_next_one_is_issued(world: Any, tmp_path: Path) -> None:
    """Nothing between two steps waits for the compute stream, and each wait is for the step before.

    40 rows in batches of 8, no logging but at the end: ten steps with one evaluation.
    """
    path = write_spec(tmp_path, **{"epochs: 1": "epochs: 2, log_every: 100, eval_every: 10"})
    net = bpc.compile(path, device="cuda")
    MADE.append(net.device)  # type: ignore[arg-type]
    device: Any = net.device
    copies = {mirror.copied.ptr: at for at, mirror in enumerate(device._late._mirrors)}
    issued, waits = 0, []
    before = len(world.log)
    net.train(run_dir=tmp_path / "run")
    for entry in world.log[before:]:
        if entry[0] == "record" and entry[1] in copies:
            issued += 1
        elif entry[0] == "wait for event" and entry[1] in copies:
            waits.append(issued)
        elif entry[0] == "synchronize" and 0 < issued < 10:
            raise AssertionError(f"the host waits for a stream after step {issued}")
    assert waits[:10] == [2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
