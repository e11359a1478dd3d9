"""`bpc verify-resume`: which stops it takes, and what it leaves when it is stopped itself."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from nets import CONFIGURATIONS, STEPS, compile_small, train_straight, write_spec

from bpc import verify
from bpc.cli.main import main
from bpc.errors import Interrupted, UsageError
from bpc.train.loop import _Run
from bpc.train.pipeline import Settled

EARLY = CONFIGURATIONS["early stopping"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    write_spec(Path())
    return tmp_path


@pytest.fixture
def end() -> int:
    """Where early stopping ends the run."""
    steps: int = train_straight(compile_small(Path("net.yaml"), EARLY), Path("run"))["steps"]
    assert 1 < steps < STEPS - 1
    return steps


def verify_early(at: int, **more: Any) -> dict[str, Any]:
    return verify.verify_resume("net.yaml", at, STEPS, set=EARLY, device="reference", **more)


def test_a_run_that_ends_early_is_compared_up_to_its_end(end: int) -> None:
    said: list[str] = []
    found = verify_early(end - 1, told=said.append)
    assert (found["at"], found["steps"]) == (end - 1, end)
    assert said[2] == "1 step in a new process"


def test_a_stop_behind_an_early_end_says_where_the_run_ended(end: int) -> None:
    for at in (end, STEPS - 1):
        with pytest.raises(UsageError) as caught:
            verify_early(at)
        (fault,) = caught.value.diagnostics
        begin = f"a stop after step {at} of {STEPS}: the run stopped early after step {end}: "
        assert fault.message.startswith(begin)
        assert fault.help == f"stop it before: --at {end - 1}"


@pytest.mark.parametrize("part", ["straight", "stopped"])
def test_one_that_is_interrupted_names_no_folder_that_is_gone(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settle = _Run._settle

    def strike(self: _Run, settled: Settled) -> None:
        settle(self, settled)
        if settled.window.number == 4 and (self.job.stop_after is None) == (part == "straight"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(_Run, "_settle", strike)
    with pytest.raises(Interrupted):
        verify.verify_resume("net.yaml", 7, device="reference")
    code = main(["verify-resume", "net.yaml", "--at", "7", "--device", "reference", "--quiet"])
    assert (code, *capsys.readouterr()) == (130, "", "bpc: interrupted\n")
    assert list(Path("temporary").iterdir()) == []
