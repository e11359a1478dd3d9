from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from spec_tables import LAYERS, LOSSES, OPTIMIZERS

from bpc.errors import SpecError
from bpc.report.diagnostics import read_line_of_file, render_diagnostics
from bpc.spec import load_spec

FOLDER = Path(__file__).parent.parent / "errors" / "spec"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_error_reads_as_expected(
    name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(SpecError) as caught:
        load_spec(f"{name}.yaml", LAYERS, LOSSES, OPTIMIZERS)
    text = render_diagnostics(caught.value.diagnostics, read_line_of_file)
    golden(FOLDER / f"{name}.txt", text + "\n")


def test_every_text_has_its_spec() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {
        path.stem for path in FOLDER.glob("*.yaml")
    }
