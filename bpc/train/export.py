"""The weights of a run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpc.train.checkpoint import find_model
from bpc.train.files import Files, replace_file
from bpc.train.tensorfile import encode_tensors, read_tensors


def export_model(run: Path, out: Path, best: bool = False) -> dict[str, Any]:
    """Write the weights of a run (or of a checkpoint, or of such a file) to `out`.

    Returns:
        file, source, tensors, parameters, bytes.

    Raises:
        CheckpointError: there are none, or they are damaged.
        OSError: what the system says; what was at `out` is still whole.
    """
    source = find_model(run, best)
    tensors = read_tensors(source)
    written = replace_file(Files(), out, encode_tensors(tensors))
    return {
        "file": str(out),
        "source": str(source),
        "tensors": len(tensors),
        "parameters": sum(array.size for array in tensors.values()),
        "bytes": written.size,
    }
