"""Arrays of rows: members of a .npz, or one .npy each; and images with labels in IDX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import (
    BAD_OPTION,
    BAD_SHAPE,
    NOT_THERE,
    Where,
    fault,
    quote,
)
from bpc.data.sources.files import is_packed, quote_path
from bpc.data.sources.idx import open_idx, read_header
from bpc.data.sources.npy import open_npy
from bpc.data.sources.npz import Archive
from bpc.data.sources.records import BadRows, Column, DeferredColumn, Labels, Records, column_of
from bpc.data.sources.shapes import fit_shape
from bpc.errors import Span

Array = NDArray[Any]
Options = Mapping[str, Any]

_TARGETS = ("target", "y", "labels")
_ROWS_AT_ONCE = 1 << 20
_MOST_REASONS = 1000


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array that is known by its header."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    load: Callable[[], Array]
    mapped: bool

    def column(self, shape: tuple[int, ...] | None = None) -> Column:
        """It as a column whose rows have this shape."""
        if self.mapped:
            return column_of(self.load(), shape)
        return DeferredColumn(
            self.shape[0], self.shape[1:] if shape is None else shape, self.dtype, self.load
        )


def _npy(path: str, span: Span) -> _Stored:
    array = open_npy(path, span)
    return _Stored(path, array.dtype, array.shape, lambda: array, mapped=True)


def open_npz_file(options: Options, where: Where, test: bool) -> Records:
    """The arrays of a .npz by name.

    Raises:
        DataError: the file or an array in it is missing, damaged or of another shape.
    """
    key = "test" if test else "file"
    path, span = options[key], where.at(key)
    archive = Archive(path, span)
    target = options.get("target") or _find_target(archive, path, span)
    names = _choose_members(archive, options.get("inputs"), target, where)
    if not names:
        raise fault(NOT_THERE, f"{quote_path(path)} has no array beside {quote(target)}", span)
    arrays = {
        name: _member(archive, member, where.at(f"inputs.{name}", f"inputs.{at}", "inputs"))
        for at, (name, member) in enumerate(names.items())
    }
    found = _member(archive, target, where.at("target"))
    return _to_records(arrays, found, path, options, where, span)


def _member(archive: Archive, name: str, span: Span) -> _Stored:
    header = archive.header(name, span)
    mapped = archive.is_mapped(name)
    return _Stored(
        archive.path, header.dtype, header.shape, lambda: archive.load(name, span), mapped
    )


def _find_target(archive: Archive, path: str, span: Span) -> str:
    for name in _TARGETS:
        if name in archive.names:
            return name
    message = f"{quote_path(path)} has no array 'target', 'y' or 'labels'"
    found = ", ".join(archive.names[:8]) or "none"
    raise fault(NOT_THERE, message, span, f"name it with target: ...; it has {found}")


def _choose_members(archive: Archive, given: Any, target: str, where: Where) -> dict[str, str]:
    """The array of each input; without `inputs`, all but the target, by their own names."""
    if given is None:
        return {name: name for name in archive.names if name != target}
    if isinstance(given, Mapping):
        return {name: _one_member(member, name, where) for name, member in given.items()}
    members = (given,) if isinstance(given, int | str) else given
    return {str(member): str(member) for member in members}


def _one_member(member: Any, name: str, where: Where) -> str:
    if isinstance(member, int | str):
        return str(member)
    message = f"the input {name} is one array, found a list"
    raise fault(BAD_OPTION, message, where.at(f"inputs.{name}"), "name one array for each input")


def open_npy_files(options: Options, where: Where, test: bool) -> Records:
    """One .npy for each input and one for the target, all with the same number of rows."""
    prefix = "test_" if test else ""
    if test and not ("test_inputs" in options and "test_target" in options):
        message = "a part to test on needs both test_inputs and test_target"
        raise fault(BAD_OPTION, message, where.at("test_inputs", "test_target"))
    given, key = options[f"{prefix}inputs"], f"{prefix}inputs"
    paths = given if isinstance(given, Mapping) else {"x": given}
    arrays = {name: _npy(path, where.at(f"{key}.{name}", key)) for name, path in paths.items()}
    target = _npy(options[f"{prefix}target"], where.at(f"{prefix}target"))
    return _to_records(arrays, target, next(iter(paths.values())), options, where, where.at(key))


def open_idx_pair(options: Options, where: Where, test: bool) -> Records:
    """A file of images and one of labels."""
    prefix = "test_" if test else ""
    if test and not ("test_images" in options and "test_labels" in options):
        message = "a part to test on needs both test_images and test_labels"
        raise fault(BAD_OPTION, message, where.at("test_images", "test_labels"))
    path, span = options[f"{prefix}images"], where.at(f"{prefix}images")
    target = _idx(options[f"{prefix}labels"], where.at(f"{prefix}labels"))
    return _to_records({"x": _idx(path, span)}, target, path, options, where, span)


def _idx(path: str, span: Span) -> _Stored:
    header = read_header(path, span)
    mapped = not is_packed(path, span)
    return _Stored(path, header.dtype, header.shape, lambda: open_idx(path, span), mapped)


def _to_records(
    arrays: Mapping[str, _Stored],
    target: _Stored,
    path: str,
    options: Options,
    where: Where,
    span: Span,
) -> Records:
    _check_counts(arrays, target, span)
    inputs: dict[str, Column] = {}
    for name, array in arrays.items():
        _check_name(name, where)
        shape = fit_shape(array.shape[1:], options.get("shape"), name, len(arrays), where)
        inputs[name] = array.column(shape)
    if not _is_class(target, options, where):
        return Records(inputs, _namer(path), span, None, target.column())
    labels, bad = _read_labels(target.load(), target.path)
    name_target = _namer(target.path)
    return Records(inputs, _namer(path), span, labels, None, bad, name_target=name_target)


def _namer(path: str) -> Callable[[int], str]:
    return lambda row: f"{quote_path(path)}, row {row}"


def _check_counts(arrays: Mapping[str, _Stored], target: _Stored, span: Span) -> None:
    counts = {name: array.shape[0] for name, array in (*arrays.items(), ("target", target))}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise fault(
            BAD_SHAPE, f"numbers of rows differ: {told}", span, "the first axis counts rows"
        )


def _check_name(name: str, where: Where) -> None:
    if name.isidentifier() and name.isascii() and name != "target":
        return
    message = f"{quote(name)} cannot be the name of an input"
    help = "give it another one, such as inputs: {x: " + quote(name)[1:-1] + "}"
    raise fault(BAD_OPTION, message, where.at("inputs", "file"), help)


def _is_class(target: _Stored, options: Options, where: Where) -> bool:
    """Flat whole numbers are classes unless the spec says values."""
    task, told = options.get("task"), options.get("classes")
    if task == "values":
        if told is not None:
            message = "task: values has no classes"
            raise fault(BAD_OPTION, message, where.at("classes"), "leave one of the two out")
        return False
    flat = len(target.shape) == 1
    asked = task == "classes" or told is not None
    if asked and not flat:
        message = f"the target has shape {list(target.shape)}; classes are one number a row"
        raise fault(BAD_SHAPE, message, where.at("target", "labels"))
    return asked or (flat and target.dtype.kind in "iub")


def _read_labels(target: Array, path: str) -> tuple[Labels, BadRows]:
    """Whole numbers, and the rows that hold none."""
    codes = np.empty(len(target), np.int64)
    bad: list[int] = []
    for start in range(0, len(target), _ROWS_AT_ONCE):
        piece = np.asarray(target[start : start + _ROWS_AT_ONCE])
        numbers = _round_down(piece)
        codes[start : start + len(piece)] = numbers
        bad += (start + np.flatnonzero(numbers != piece)).tolist()
    reasons = {
        row: f"{quote_path(path)}, row {row}: the target is {target[row]}, no class number"
        for row in bad[:_MOST_REASONS]
    }
    return Labels(codes), BadRows(np.array(bad, np.int64), reasons)


def _round_down(values: Array) -> NDArray[np.int64]:
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    numbers: NDArray[np.int64] = (
        np.nan_to_num(values, nan=-1).clip(-(2.0**53), 2.0**53).astype(np.int64)
    )
    return numbers
