from __future__ import annotations

from pathlib import Path

import pytest
from field_nets import Maker


@pytest.fixture(params=["reference", "cpu"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Compiles texts for a device; runs go to `runs/` in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return Maker(tmp_path, request.param)


@pytest.fixture
def make_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """The same where the device does not matter."""
    monkeypatch.chdir(tmp_path)
    return Maker(tmp_path, "reference")
