"""Where bpc finds the files that it ships and the folder that it may cache in."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def template_root() -> Path:
    """The folder of the code templates, in a checkout and in an installed wheel alike."""
    return _shipped("templates", "_templates")


def spec_root() -> Path:
    """The folder of the example specs, in a checkout and in an installed wheel alike."""
    return _shipped("specs", "_specs")


def asset(name: str) -> Path:
    """A data file that lies inside the package."""
    return _PACKAGE / "data" / "assets" / name


def cache_root() -> Path:
    """Where results worth keeping between runs go; the folder need not exist yet.

    BPC_CACHE names it; otherwise it is `bpc` in the user's cache folder (XDG_CACHE_HOME).
    """
    chosen = os.environ.get("BPC_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bpc"


def _shipped(in_checkout: str, in_wheel: str) -> Path:
    """Prefer what the wheel put into the package; a checkout keeps it beside the package."""
    installed = _PACKAGE / in_wheel
    folder = installed if installed.is_dir() else _PACKAGE.parent / in_checkout
    assert folder.is_dir(), f"{in_checkout} is missing from the installation"
    return folder
