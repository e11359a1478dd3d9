"""The comparison itself, not its times: what it prints, and that peers train the same network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return __import__(name)


def test_peers_agree_and_rows_are_complete() -> None:
    words = ["mlp", "--json", "--peers", "bpc,torch", "--steps", "4", "--repeats", "1"]
    command = [sys.executable, str(FOLDER / "compare.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema_version"] == 1
    assert result["command"] == "compare"
    assert result["ok"] is True
    assert (result["work"], result["threads"]) == ("mlp", 2)
    assert result["processor"] and result["date"]
    rows = {row["peer"]: row for row in result["rows"]}
    assert list(rows) == ["bpc", "torch"]
    for row in rows.values():
        low, high = row["step_ms_quartiles"]
        assert 0 < low <= row["step_ms_median"] <= high
        assert row["first_step_seconds"] > 0 and row["first_step_warm_seconds"] > 0
        assert row["peak_resident_bytes"] > 1 << 20
        assert row["steps"] == 4 and row["versions"]
    assert rows["bpc"]["first_losses"] == pytest.approx(rows["torch"]["first_losses"], rel=1e-4)
    medians = [row["step_ms_median"] for row in rows.values()]
    assert result["ratio_to_fastest"] == pytest.approx(medians[0] / medians[1], rel=1e-12)


def test_a_loss_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = load("compare", monkeypatch)
    one = compare.Found("bpc", losses=[2.0, 1.5, 1.25, 1.0, 0.5])
    near = compare.Found("near", losses=[x * (1 + 5e-5) for x in one.losses])
    far = compare.Found("far", losses=[2.0, 1.5, 1.25 * (1 + 2e-4), 1.0, 0.5])
    broken = compare.Found("broken", losses=[2.0, float("nan"), 1.25, 1.0, 0.5])
    assert compare.find_mismatch([one, near]) is None
    assert compare.find_mismatch([one, near, far]) == (
        "losses of step 3 differ: bpc 1.25, far 1.25025"
    )
    assert "step 2" in compare.find_mismatch([one, broken])


def test_a_peer_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compare, peers = load("compare", monkeypatch), load("peers", monkeypatch)

    def fail(problem: Any, trial: bool) -> Any:
        raise ModuleNotFoundError("No module named 'jax'", name="jax")

    monkeypatch.setitem(peers.PEERS, "jax", fail)
    monkeypatch.setattr(peers, "stay_on", lambda threads: None)
    compare.write_arrays(compare.WORKS["mlp"], tmp_path / "arrays.npz")
    peers.main("jax", "mlp", str(tmp_path / "arrays.npz"), "2", "first")
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert missing == 'jax is not installed: pip install "bpc[bench]"'
    assert compare.make_row(compare.Found("jax", missing=missing)) == {
        "peer": "jax",
        "missing": missing,
    }


def test_the_ratio_is_to_the_fastest_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = load("compare", monkeypatch)
    times = {"bpc": 0.6, "torch": 1.5, "jax": 1.0}
    rows = [{"peer": peer, "step_ms_median": time} for peer, time in times.items()]
    assert compare.find_ratio(rows) == pytest.approx(0.6, rel=1e-12)
    assert compare.find_ratio(rows[:1]) is None
    assert compare.find_ratio(rows[1:]) is None
    assert compare.find_ratio([*rows[:1], {"peer": "torch", "missing": "x"}]) is None
