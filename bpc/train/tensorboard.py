"""Event files for TensorBoard, from the rows of `metrics.jsonl`; needs the package tensorboardX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from bpc.errors import ToolError

PACKAGE = "tensorboardX"
FOLDER = "tensorboard"
MISSING = "BPC0613"
_INSTALL = 'pip install "bpc[tensorboard]"'
_PLAIN = ("lr", "scale", "skipped", "step_ms", "gradient_norm", "epoch")


class Events(Protocol):
    """Takes rows of metrics; it must not stop a run."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Take in what was measured after a step."""

    def close(self) -> None:
        """Write what is still held."""


class NoEvents:
    """Takes nothing."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Ignore it."""


class EventFile:
    """Scalars by name and step: `loss/train`, `loss/test`, `metrics/accuracy`, `train/lr`,
    `gradient_norm/fc1.weight`, `zero_units/relu1`."""

    def __init__(self, folder: Path, after: int):
        """`after`: the step that the run goes on from; what the folder has of later ones is void.

        Raises:
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        purge = after + 1 if after else None
        library: Any = import_module(PACKAGE)
        # Two files that are begun in one second have the same name but for the end.
        end = f".from-step-{after}"
        self._writer = library.SummaryWriter(str(folder), purge_step=purge, filename_suffix=end)

    def write(self, row: Mapping[str, Any]) -> None:
        """Take in a row; rows of events have no scalars."""
        if "event" in row:
            return
        for name, value in list_scalars(row):
            self._writer.add_scalar(name, value, row["step"])
        if "test_loss" in row:
            self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def list_scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a row by the name that a chart of them has."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield f"{key.removesuffix('s') if key == 'gradient_norms' else key}/{name}", inner
        elif value is None:
            continue
        elif key in _PLAIN:
            yield f"train/{key}", value
        elif key == "train_loss":
            yield "loss/train", value
        elif key.startswith("test_"):
            name = key.removeprefix("test_")
            yield "loss/test" if name == "loss" else f"metrics/{name}", value


def open_events(folder: Path | None, after: int) -> Events:
    """A file of events in `folder`, or nothing without one.

    Raises:
        OSError: the folder cannot be written.
    """
    return NoEvents() if folder is None else EventFile(folder, after)


def check_installed() -> None:
    """Refuse event files that nothing here can write.

    Raises:
        ToolError: the package is missing; says what to install.
    """
    if find_spec(PACKAGE) is None:
        message = f"event files for TensorBoard need the package {PACKAGE}, which is not installed"
        raise ToolError.at(MISSING, message, None, help=_INSTALL)
