"""Predictions for the rows of a file, written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc import api
from bpc.arrays import read_inputs
from bpc.data.arrayfile import BAD_ROW, encode_prediction, read_arrays
from bpc.errors import DataError
from bpc.train.files import Files, replace_file

TARGET = "target"


def predict_file(net: api.Net, source: Path, out: Path) -> dict[str, Any]:
    """Predict every row of a file, dropout off; row i of the result belongs to row i.

    Args:
        net: what predicts.
        source: `.npy` [rows, ...], `.npz` with the inputs by name, or `.csv` with a row a line.
            A `target` in an `.npz` is not read.
        out: `.npy`, `.npz` or `.csv`.

    Returns:
        file, rows, shape (of a row's prediction), device.

    Raises:
        DataError: the file is damaged, or a number of it is not finite.
        UsageError: names or shapes are not those of the model.
        OSError: what the system says; what was at `out` is still whole.
    """
    shapes = {name: info.shape for name, info in net.description.inputs.items()}
    given = read_arrays(source, shapes)
    if isinstance(given, Mapping) and TARGET not in shapes:
        given = {name: array for name, array in given.items() if name != TARGET}
    inputs = read_inputs(given, net.description)
    for name, array in inputs.items():
        _check_finite(source, name, array)
    prediction = net.predict(inputs)
    classes = net.description.target.kind == "class"
    replace_file(Files(), out, encode_prediction(out.suffix.lower(), prediction, classes))
    return {
        "file": str(out),
        "rows": len(next(iter(inputs.values()))),
        "shape": list(prediction.shape[1:]),
        "device": net.device.summary,
    }


def _check_finite(source: Path, name: str, array: NDArray[Any]) -> None:
    """Refuse what training would refuse."""
    if array.dtype.kind in "iub":
        return
    rows = np.argwhere(~np.isfinite(array))[:, 0]
    if len(rows):
        message = f"{source}: {name}, row {rows[0]} (from 0) holds inf or NaN"
        raise DataError.at(BAD_ROW, message, None, help="remove the row or replace the value")
