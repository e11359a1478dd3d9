from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what tests found over what they expect"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether a golden test should write its file instead of comparing with it."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(update_golden: bool) -> Callable[[Path, str], None]:
    """Compares a text with a file; with `--update-golden` it writes the file."""

    def compare(path: Path, text: str) -> None:
        if update_golden:
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; run once with --update-golden and read it"
        assert text == path.read_text(encoding="utf-8")

    return compare
