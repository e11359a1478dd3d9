"""Predictions for the rows of a file, written to a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.arrays import read_inputs
from bpc.data.arrayfile import BAD_ROW, encode_prediction, read_arrays
from bpc.data.sources.csvinputs import read_csv_inputs
from bpc.data.sources.faults import Where
from bpc.data.sources.prepare import FILE_SOURCES
from bpc.errors import DataError, Diagnostic, UsageError
from bpc.train.files import Files, replace_file
from bpc.trained import Trained

TARGET, ROWS = "target", "rows"
Arrays = dict[str, NDArray[Any]]


def predict_file(run: Trained, source: Path, out: Path) -> dict[str, Any]:
    """Predict every row of a file, dropout off; row i of the result belongs to row i.

    Rows are scaled and their gaps filled as those that the run was trained on.

    Args:
        run: what predicts.
        source: `.npy` [rows, ...], `.npz` with the inputs by name, or `.csv` with a row a line.
            A `target` in an `.npz` is not read.
        out: `.npy`, `.npz` or `.csv`.

    Returns:
        file, rows, shape (of a row's prediction), classes (their names, or null), device.

    Raises:
        DataError: the file is damaged, lacks a column, has names or shapes that are not those of
            the model, or a number of it is not finite.
        OSError: what the system says; what was at `out` is still whole.
    """
    net = run.net
    try:
        inputs = read_inputs(_read(run, source), net.description)
        for name, array in inputs.items():
            _check_finite(source, name, array)
        prediction = net.predict(inputs)
    except UsageError as error:
        raise DataError([_in_file(item, source, run) for item in error.diagnostics]) from None
    names = _class_names(run)
    classes = net.description.target.kind == "class"
    content = encode_prediction(out.suffix.lower(), prediction, classes, names)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(Files(), out, content)
    return {
        "file": str(out),
        "rows": len(next(iter(inputs.values()))),
        "shape": list(prediction.shape[1:]),
        "classes": names,
        "device": net.device.summary,
    }


def _in_file(found: Diagnostic, source: Path, run: Trained) -> Diagnostic:
    """What is wrong with arrays, as a fault of the file that they are from."""
    needed = [f"{name} {_show([ROWS, *shape])}" for name, shape in _shapes(run).items()]
    help = found.help or f"the run takes {', '.join(needed)}, the first axis counts rows"
    return replace(found, message=f"{source}: {found.message}", help=help)


def _show(extents: Iterable[object]) -> str:
    return f"[{', '.join(map(str, extents))}]"


def _read(run: Trained, source: Path) -> Arrays | NDArray[Any]:
    """The inputs of a file as the model takes them, names and shapes not checked yet."""
    data, shapes = run.net.spec.data, _shapes(run)
    if source.suffix.lower() == ".csv" and data.source == "csv":
        where = Where(data.span, data.spans)
        given: Any = read_csv_inputs(str(source), data.options, where)
    else:
        given = read_arrays(source, shapes)
    if not isinstance(given, Mapping):
        if len(shapes) != 1:
            return np.asarray(given)
        given = {next(iter(shapes)): given}
    given = {name: array for name, array in given.items() if name != TARGET or name in shapes}
    if data.source == "npz":
        given = _choose(given, data.options.get("inputs"), shapes)
    if data.source in FILE_SOURCES:
        given = {name: _shaped(array, shapes.get(name)) for name, array in given.items()}
    fits = {name: a for name, a in given.items() if name in shapes and _fits(a, shapes[name])}
    return {**given, **run.facts.prepare(fits)}


def _fits(array: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return array.ndim > 0 and array.shape[1:] == shape and array.dtype.kind in "fiub"


def _shapes(run: Trained) -> dict[str, tuple[int, ...]]:
    return {name: info.shape for name, info in run.net.description.inputs.items()}


def _choose(given: Arrays, members: Any, shapes: Iterable[str]) -> Arrays:
    """The inputs among the arrays of an archive; one may go by the name that it had in training.

    `members`: what the spec says of inputs: the array of each, or nothing of that.
    """
    named = members if isinstance(members, Mapping) else {}
    found = {}
    for name in shapes:
        member = name if name in given else str(named.get(name, name))
        if member in given:
            found[name] = given[member]
    return found


def _shaped(array: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Rows in the shape that data.shape gives to those of a file."""
    if shape is None or array.ndim < 2 or prod(array.shape[1:]) != prod(shape):
        return array
    return array.reshape(len(array), *shape)


def _class_names(run: Trained) -> list[str] | None:
    """The names of the classes, None where they are their numbers."""
    names = run.facts.classes or run.net.description.target.names
    return list(names) if list(names) != [str(k) for k in range(len(names))] else None


def _check_finite(source: Path, name: str, array: NDArray[Any]) -> None:
    """Refuse what training would refuse."""
    if array.dtype.kind in "iub":
        return
    rows = np.argwhere(~np.isfinite(array))[:, 0]
    if len(rows):
        message = f"{source}: {name}, row {rows[0]} (from 0) holds inf or NaN"
        raise DataError.at(BAD_ROW, message, None, help="remove the row or replace the value")
