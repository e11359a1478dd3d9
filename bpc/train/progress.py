"""What the loop tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """A watcher; it may print, draw or collect, and must not raise."""

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Called once, before the first step."""

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        """Called after each step; `loss` is None where the host has not read it yet.

        On a GPU the next step may have begun, so that weights may be those that it leaves.
        """

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Called after each evaluation, with the weights that were evaluated on the device."""

    def on_note(self, text: str) -> None:
        """Called with something worth knowing at once, such as a skipped step."""

    def close(self) -> None:
        """Called by whoever made the watcher, at the end."""


class NoProgress:
    """Watches nothing."""

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Ignore it."""

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        """Ignore it."""

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Ignore it."""

    def on_note(self, text: str) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Ignore it."""
