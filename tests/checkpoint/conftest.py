from __future__ import annotations

from collections.abc import Callable

import pytest

from bpc.cli.main import main

Outcome = tuple[int, str, str]
"""Exit code, stdout and stderr of a command."""


@pytest.fixture
def bpc(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command in this process."""

    def call(*words: str) -> Outcome:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call
