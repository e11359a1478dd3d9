from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what tests found over what they expect"
    )
    parser.addoption(
        "--all-mutations", action="store_true", help="compile all mutated specs, not every fifth"
    )


_made_cache = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """One cache of compiled libraries for all tests and workers of a session.

    Workers inherit the variable from the session that starts them; BPC_CACHE in the environment
    keeps a cache between sessions.
    """
    if "BPC_CACHE" not in os.environ:
        config.stash[_made_cache] = os.environ["BPC_CACHE"] = tempfile.mkdtemp(prefix="bpc-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_made_cache, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        del os.environ["BPC_CACHE"]


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
