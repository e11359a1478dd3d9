"""What is said of every fault of a file, an option or a record, as a person reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from data_files import write_faulty

from bpc import api
from bpc.errors import BpcError
from bpc.report.diagnostics import read_line_of_file, render_diagnostics

FOLDER = Path(__file__).parent.parent / "errors" / "data"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faulty")
    write_faulty(folder)
    for spec in FOLDER.glob("*.yaml"):
        shutil.copy(spec, folder)
    return folder


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_error_reads_as_expected(
    name: str, files: Path, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    with pytest.raises(BpcError) as caught:
        assert api.compile(f"{name}.yaml", device="reference").data
    text = render_diagnostics(caught.value.diagnostics, read_line_of_file)
    golden(FOLDER / f"{name}.txt", text + "\n")


def test_every_text_has_its_spec() -> None:
    texts, specs = ({path.stem for path in FOLDER.glob(f"*.{end}")} for end in ("txt", "yaml"))
    assert texts == specs
