"""A checkpoint goes by logical names, so that a run moves between devices, layouts and budgets."""

from __future__ import annotations

from pathlib import Path

import pytest
from nets import CONFIGURATIONS, contents_of, metrics_of, write_spec

from bpc import api, continued
from bpc.errors import Interrupted

LAST = "checkpoints/step-000012"


def contents(run: Path) -> object:
    found = contents_of(run / LAST)
    found["state"]["plan"] = {}
    return found


@pytest.mark.parametrize("name", ["dropout", "accumulation", "fp16 with overflows", "momentum"])
def test_a_run_moves_from_device_to_device(tmp_path: Path, name: str) -> None:
    """Simulated CUDA, then C++, then CUDA again, each bit as if it had never left the CPU."""
    spec, sets = write_spec(tmp_path), {**CONFIGURATIONS[name], "train.steps": 12}
    straight, run = tmp_path / "straight", tmp_path / "run"
    api.compile(spec, set=sets, device="cpu", threads=1).train(run_dir=straight)
    begun = api.compile(spec, set=sets, device="sim")
    with pytest.raises(Interrupted):
        begun.train(run_dir=run, stop_after=4)
    with pytest.raises(Interrupted):
        continued.resume(run, device="cpu", threads=2, stop_after=7)
    result = continued.resume(run, device="sim")
    assert (result["device"], result["steps"]) == ("sim", 12)
    assert contents(run) == contents(straight)
    assert metrics_of(run) == metrics_of(straight)


def test_a_run_goes_on_from_the_copies_of_files_that_are_gone(tmp_path: Path) -> None:
    """A spec that extends another, `--set` and `--steps`: one file in the folder has it all."""
    base = write_spec(tmp_path)
    child = tmp_path / "child.yaml"
    child.write_text("bpc: 1\nextends: net.yaml\ntrain: {optimizer: {adam: {lr: 0.02}}}\n")
    sets = {"data.batch": "5", "train.steps": None, "train.epochs": "9"}
    net = api.compile(child, set=sets, device="reference")
    net.train(12, run_dir=tmp_path / "straight")
    begun = api.compile(child, set=sets, device="reference")
    with pytest.raises(Interrupted):
        begun.train(12, run_dir=tmp_path / "run", stop_after=5)
    base.unlink()
    child.unlink()
    for _ in range(2):  # the second time it is the run's own spec already
        assert continued.resume(tmp_path / "run")["steps"] == 12
        kept = (tmp_path / "run" / "spec.yaml").read_text()
        assert kept.startswith("bpc: 1\nextends: net.yaml\n")
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")
