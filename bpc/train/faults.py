"""What can be wrong with a saved state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bpc.errors import BpcError, Diagnostic, Note

DAMAGED = "BPC0650"  # a file that is cut, changed or not of this format
MISMATCH = "BPC0651"  # tensors that are not those of the network
CHANGED_SPEC = "BPC0652"  # the spec says something else than when the run began
NO_CHECKPOINT = "BPC0653"  # a run that has nothing to continue from
IN_USE = "BPC0654"  # another process trains into the folder
RESUME_DIFFERS = "BPC0655"  # a resumed run is not the run that was never stopped


class CheckpointError(BpcError):
    """A saved state cannot be used; nothing was changed by it."""


def damaged(path: Path, reason: str, help: str | None = None) -> CheckpointError:
    """The error of a file that cannot be what bpc wrote."""
    return CheckpointError([Diagnostic(DAMAGED, f"{path}: {reason}", None, (), help)])


def mismatch(path: Path, reasons: Sequence[str]) -> CheckpointError:
    """One error with every tensor that does not fit, of many the first twenty."""
    shown = [Note(reason) for reason in reasons[:20]]
    if len(reasons) > len(shown):
        shown.append(Note(f"and {len(reasons) - len(shown)} more"))
    count = f"{len(reasons)} tensor{'' if len(reasons) == 1 else 's'}"
    message = f"{path}: {count} of it and of the network differ; nothing was loaded"
    help = "load it into the network that it was saved from"
    return CheckpointError([Diagnostic(MISMATCH, message, None, tuple(shown), help)])
