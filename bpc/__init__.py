"""bpc compiles a YAML description of a neural network into one static training program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bpc.api import compile as compile

__version__ = "0.1.0"
__all__ = ["__version__", "compile"]


def __getattr__(name: str) -> Any:
    # Importing bpc stays free of everything that only a compilation needs.
    if name != "compile":
        raise AttributeError(f"module 'bpc' has no attribute {name!r}")
    from bpc import api

    return api.compile
