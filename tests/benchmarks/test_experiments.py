"""The reported experiments: two of them at a tiny size, and a page that shows what is stored."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "experiments.md"
STORED = ROOT / "docs" / "experiments"


@pytest.fixture(scope="module")
def modules() -> Any:
    """The scripts by name; they import each other from their own folder."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def experiments(modules: Any) -> ModuleType:
    found: ModuleType = modules("experiments")
    return found


def value(sheet: dict[str, Any], case: str, key: str) -> Any:
    (row,) = (row for row in sheet["rows"] if row["case"] == case)
    return row["values"][key]


def test_zeros_are_dead_and_he_is_above_xavier(modules: Any) -> None:
    sheet = modules("experiment_training").initialisations(seeds=1, rounds=2, images=20)
    assert all(value(sheet, "zeros, Frobenius", f"layer{k}")["mean"] == 0 for k in (1, 2, 3))
    dead = "zeros: largest weight after 2 rounds of small batches"
    assert all(value(sheet, dead, f"layer{k}")["mean"] == 0 for k in (1, 2, 3))
    moved = [value(sheet, "zeros: range of the biases then", f"layer{k}") for k in (1, 2, 3)]
    assert [part["mean"] > 0 for part in moved] == [False, False, True]
    for k in (1, 2, 3):
        he, xavier = (
            value(sheet, f"{init}, Frobenius", f"layer{k}")["mean"]
            for init in ("he_normal", "xavier_uniform")
        )
        assert he > 1.1 * xavier > 0


def test_relu_keeps_a_mask_where_its_result_goes(
    experiments: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, with its page; the plot needs matplotlib, which is not asked for."""
    page = tmp_path / "seen.md"
    page.write_text("<!-- figures: mask_bytes -->\n<!-- end of figures -->\n", encoding="utf-8")
    out = tmp_path / "seen"
    code = experiments.main(["mask_bytes", "--out", str(out), "--no-plots", "--json"])
    sheet = json.loads(capsys.readouterr().out)["experiments"]["mask_bytes"]
    assert code == 0 and json.loads((out / "mask_bytes.json").read_text()) == sheet
    assert value(sheet, "relu, then dropout", "bytes") == 1024
    assert value(sheet, "sigmoid, then dropout", "bytes") == 32768
    assert "| relu, then dropout | relu1.mask bit[batch, 256] | 1,024 |" in page.read_text()


def test_an_unknown_experiment_is_refused(experiments: ModuleType) -> None:
    with pytest.raises(SystemExit, match="2"):
        experiments.main(["warm-up"])


def test_the_page_shows_what_is_stored(experiments: ModuleType, modules: Any) -> None:
    page = modules("experiment_page")
    text = PAGE.read_text(encoding="utf-8")
    assert sorted(page.places(text)) == sorted(experiments.EXPERIMENTS)
    sheets = {name: experiments.load(STORED, name) for name in experiments.EXPERIMENTS}
    assert page.embed(text, sheets) == text, "run python benchmarks/experiments.py --stored"


def test_plots_are_there_and_small(modules: Any) -> None:
    shown = set(re.findall(r"\]\(experiments/([a-z_]+)\.svg\)", PAGE.read_text(encoding="utf-8")))
    plots = sorted(STORED.glob("*.svg"))
    assert {path.stem for path in plots} == shown
    assert sum(path.stat().st_size for path in plots) < 150_000
