"""Read a data source into NumPy arrays, checked."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.dataset import Dataset, Part
from bpc.data.describe import HOLD_OUT, NO_PLACES, Description, describe, inline_inputs, written
from bpc.data.mnist import read_mnist5k
from bpc.data.order import uniform
from bpc.data.read_files import read_files
from bpc.data.sources.faults import Where
from bpc.data.sources.tables import FILE_OPTIONS
from bpc.errors import DataError, Span
from bpc.resources import asset

__all__ = ["Dataset", "check", "read"]


def read(
    source: str,
    options: Mapping[str, object],
    span: Span,
    seed: int,
    places: Mapping[str, Span] = NO_PLACES,
    ignored: int | None = None,
) -> Dataset:
    """Read and check a source.

    Args:
        source: a name of `bpc.data.describe.SOURCES`.
        options: the `data:` section as plain values.
        span: where the section stands; every error points there.
        seed: chooses the numbers of a synthetic source; the others ignore it.
        places: where options of it stand.
        ignored: a class target that the loss leaves out, whether it is a class or not.

    Raises:
        DataError: an option, a file or a row is at fault; the message names the row.
        ToolError: the package that holds the data is not installed.
    """
    options = written(options)
    if source in FILE_OPTIONS:
        return read_files(source, options, Where(span, places), ignored)
    description = describe(source, options, span, places, ignored)
    if source == "digits":
        dataset = _split(*_read_digits(), description)
    elif source == "mnist5k":
        dataset = _split(*read_mnist5k(span), description)
    elif source == "synthetic":
        dataset = _make_synthetic(description, seed)
    else:
        dataset = _read_inline(options, span, description)
    check(dataset.train, description, span)
    if dataset.test is not dataset.train:
        check(dataset.test, description, span)
    return dataset


def check(part: Part, description: Description, span: Span, name: str = "data") -> None:
    """Refuse non-finite numbers and class targets outside [0, classes), naming the first row.

    Raises:
        DataError: with the row, the value and what would be right.
    """
    for key, values in part.items():
        if np.issubdtype(values.dtype, np.floating):
            _check_finite(values, f"{name}: {key}", span)
    classes = description.target.classes
    if classes is not None:
        _check_classes(part["target"], classes, description.target.ignored, name, span)


def _check_finite(values: NDArray[Any], name: str, span: Span) -> None:
    # The sum is one pass without a temporary; it is finite unless a value is not (or it overflows).
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    faults = np.argwhere(~np.isfinite(values))
    if len(faults):
        index = tuple(int(i) for i in faults[0])
        raise DataError.at(
            "BPC0410",
            f"{name}, row {index[0]}: {values[index]} at element {list(index[1:])}"
            " is not a finite number",
            span,
            help="remove the row or replace the value",
        )


def _check_classes(
    targets: NDArray[Any], classes: int, ignored: int | None, name: str, span: Span
) -> None:
    wrong = find_outside(targets, classes, ignored)
    if len(wrong):
        row = int(wrong[0])
        also = "" if ignored is None else f" nor ignore_index {ignored}"
        raise DataError.at(
            "BPC0411",
            f"{name}: target, row {row}: class {targets[row]} is not in 0..{classes - 1}{also}",
            span,
            help=f"classes are counted from 0 and there are {classes} of them",
        )


def find_outside(targets: NDArray[Any], classes: int, ignored: int | None) -> NDArray[np.int64]:
    """Rows whose class target is neither in [0, classes) nor the one that is left out."""
    outside = (targets < 0) | (targets >= classes)
    if ignored is not None:
        outside &= targets != ignored
    return np.flatnonzero(outside)


def _split(x: NDArray[np.float32], y: NDArray[np.int64], description: Description) -> Dataset:
    """Hold out every fifth row: those with index % 5 == 4."""
    x = x.reshape(len(x), *description.inputs["x"].shape)
    held = np.arange(len(y)) % HOLD_OUT == HOLD_OUT - 1
    dataset = Dataset({"x": x[~held], "target": y[~held]}, {"x": x[held], "target": y[held]})
    assert len(dataset.train["target"]) == description.train_rows
    return dataset


def _read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with np.load(asset("digits.npz"), allow_pickle=False) as stored:
        return stored["pixels"].astype(np.float32) / 16, stored["labels"].astype(np.int64)


def _make_synthetic(description: Description, seed: int) -> Dataset:
    """Uniform inputs of unit variance; a fixed random linear map of them makes the targets."""
    total = description.train_rows + description.test_rows
    arrays: dict[str, NDArray[Any]] = {}
    classes = description.target.classes
    width = classes or prod(description.target.shape)
    score = np.zeros((total, width))
    features = 0
    for stream, (name, info) in enumerate(description.inputs.items()):
        size = prod(info.shape)
        flat = _spread(seed, 2 * stream, (total, size))
        score += flat @ _spread(seed, 2 * stream + 1, (size, width))
        features += size
        arrays[name] = flat.astype(np.float32).reshape(total, *info.shape)
    if classes is None:
        values = (score / sqrt(features)).astype(np.float32)
        arrays["target"] = values.reshape(total, *description.target.shape)
    else:
        arrays["target"] = score.argmax(axis=1).astype(np.int64)
    cut = description.train_rows
    return Dataset(
        {name: values[:cut] for name, values in arrays.items()},
        {name: values[cut:] for name, values in arrays.items()},
    )


def _spread(seed: int, stream: int, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Numbers uniform in [-sqrt 3, sqrt 3): mean 0, variance 1."""
    centred = uniform(seed, stream, shape[0] * shape[1]) * 2 - 1
    return (centred * sqrt(3)).reshape(shape)


def _read_inline(options: Mapping[str, object], span: Span, description: Description) -> Dataset:
    part: dict[str, NDArray[Any]] = {
        name: _to_floats(rows, name, span) for name, rows in inline_inputs(options, span).items()
    }
    if description.target.kind == "class":
        part["target"] = _to_classes(options["y"], span)
    else:
        part["target"] = _to_floats(options["y"], "y", span)
    return Dataset(part, part)


def _to_floats(rows: object, name: str, span: Span) -> NDArray[np.float64]:
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        raise DataError.at(
            "BPC0410", f"{name} holds a whole number beyond the range of float64", span
        ) from None


def _to_classes(rows: object, span: Span) -> NDArray[np.int64]:
    values = _to_floats(rows, "y", span)
    for row in np.flatnonzero(values != np.floor(values)):
        raise DataError.at(
            "BPC0411", f"y, row {row}: {values[row]} is not a class index, a whole number", span
        )
    return np.clip(values, -(2.0**62), 2.0**62).astype(np.int64)
