"""From opened files to the two parts of a data set: gaps filled, inputs scaled, rows checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from bpc.data.dataset import Dataset, Facts
from bpc.data.scale import Scale, measure, read_given
from bpc.data.sources.faults import BAD_OPTION, BAD_RECORD, Where, fault, quote, suggest
from bpc.data.sources.prepare import SKIP_HELP, leave_out, prepare
from bpc.data.sources.records import NUMPY_TYPES, Array, Column, Half, Rows, column_of
from bpc.data.stored import StoredRows, convert, delivered_type, find_bad, pieces, say_not_finite
from bpc.errors import Note
from bpc.types import F32, F64, count_of

MOST_HELD = 256 << 20
"""Bytes of a column, as it is delivered, that are read into memory before the first step."""

_REASONS_KEPT = 8
Options = Mapping[str, Any]


def read_files(source: str, options: Options, where: Where, ignored: int | None = None) -> Dataset:
    """The two parts of a source whose data lies in files.

    Columns up to 256 MiB become arrays, of which every number is checked here. Larger ones stay in
    their file: a row is checked when a batch asks for it, or here if bad rows are to be skipped.
    `ignored` is a class target that the loss leaves out, whether it is a class or not.

    Raises:
        DataError: a file, an option or a record is at fault.
    """
    prepared = prepare(source, options, where, ignored)
    skip = options.get("on_bad") == "skip"
    train = _check(prepared.train, skip)
    same = prepared.test is prepared.train
    test = train if same else _check(prepared.test, skip)
    fills = _find_fills(train, options)
    train, test = _fill(train, fills), _fill(test, fills)
    scales = find_scales(train, options, where)
    facts = Facts(prepared.classes, scales, fills, (len(train.rows), len(test.rows)))
    first = _deliver(train, scales, skip)
    halves = (train,) if same else (train, test)
    return Dataset(
        first,
        first if same else _deliver(test, scales, skip),
        _make_notes(halves, where),
        facts,
        sum(half.left_out for half in halves),
    )


def _stays(column: Column, rows: int, scaled: bool) -> bool:
    """Whether the rows of a column stay where they are: as arrays they would be too large."""
    bits = 64 if scaled else column.dtype.bits
    return rows * prod(column.shape) * bits // 8 > MOST_HELD


def _check(half: Half, skip: bool) -> Half:
    """The half without rows that are not finite; those that stay in a file are not read for it.

    Raises:
        DataError: there is one, and bad rows are not to be skipped.
    """
    for name, column in half.columns.items():
        if column.dtype not in (F32, F64) or (_stays(column, len(half.rows), False) and not skip):
            continue
        bad: list[Rows] = []
        reasons: list[str] = []
        for numbers, raw in pieces(column, half.rows):
            places = find_bad(raw)
            bad.append(numbers[places])
            room = _REASONS_KEPT - len(reasons)
            told = [(int(numbers[at]), raw[at]) for at in places[:room]]
            reasons += [say_not_finite(name, half, row, values) for row, values in told]
        half = leave_out(half, np.concatenate(bad), reasons, skip, BAD_RECORD)
    return half


def _find_fills(train: Half, options: Options) -> dict[str, list[float]]:
    """For each input with gaps, what fills each of its elements."""
    wish = options.get("missing")
    if wish is None:
        return {}
    found = {}
    for name, column in train.columns.items():
        if name == "target":
            continue
        elements = prod(column.shape)
        found[name] = [wish] * elements if wish != "mean" else _means(train, name, elements)
    return found


def _means(train: Half, name: str, elements: int) -> list[float]:
    """The mean of each element over the rows that have it, in f64; 0 where none has."""
    flat = train.columns[name].take(train.rows).reshape(len(train.rows), elements)
    there = np.ones(flat.shape, bool)
    gaps = train.records.gaps[name]
    place = np.searchsorted(train.rows, gaps.rows).clip(max=len(train.rows) - 1)
    mine = train.rows[place] == gaps.rows
    there[place[mine], gaps.elements[mine]] = False
    counts = there.sum(axis=0)
    sums = np.where(there, flat, 0.0).sum(axis=0, dtype=np.float64)
    return [float(mean) for mean in sums / np.maximum(counts, 1)]


def _fill(half: Half, fills: Mapping[str, list[float]]) -> Half:
    """The half with gaps filled."""
    columns = dict(half.columns)
    for name, values in fills.items():
        gaps, column = half.records.gaps[name], columns[name]
        everything = np.arange(len(column), dtype=np.int64)
        flat = np.array(column.take(everything)).reshape(len(column), -1)
        flat[gaps.rows, gaps.elements] = np.asarray(values)[gaps.elements]
        columns[name] = column_of(flat, column.shape)
    return replace(half, columns=columns)


def find_scales(train: Half, options: Options, where: Where) -> dict[str, Scale]:
    """How each input is scaled, measured on the rows that are trained on.

    Raises:
        DataError: `normalise` names no input, or gives numbers that do not fit.
    """
    wish = options.get("normalise")
    inputs = [name for name in train.columns if name != "target"]
    if wish is None:
        return {}
    wishes = _spread(wish, inputs, where)
    shared = options.get("statistics") or "element"
    found = {}
    for name, kind in wishes.items():
        column = train.columns[name]
        if isinstance(kind, Mapping):
            found[name] = read_given(kind, column.shape, name, where)
        elif kind != "none":
            raws = _finite_pieces(train, name)
            found[name] = measure(raws, column.shape, kind, shared)
    return found


def _finite_pieces(half: Half, name: str) -> Iterator[Array]:
    for numbers, raw in pieces(half.columns[name], half.rows):
        for at in find_bad(raw)[:1]:
            message = say_not_finite(name, half, int(numbers[at]), raw[at])
            raise fault(BAD_RECORD, message, half.records.span, SKIP_HELP)
        yield raw


def _spread(wish: Any, inputs: list[str], where: Where) -> dict[str, Any]:
    """What is wished of each input."""
    if not isinstance(wish, Mapping) or set(wish) <= {"mean", "std"}:
        return dict.fromkeys(inputs, wish)
    for name in wish:
        if name not in inputs:
            message = f"normalise: there is no input {quote(name)}"
            span = where.at(f"normalise.{name}", "normalise")
            raise fault(BAD_OPTION, message, span, suggest(name, inputs))
    return dict(wish)


def _deliver(half: Half, scales: Mapping[str, Scale], skip: bool) -> dict[str, Any]:
    """Arrays by name, or what stands for one that stays in its file."""
    made: dict[str, Any] = {}
    for name, column in half.columns.items():
        scale = scales.get(name)
        dtype = np.dtype(NUMPY_TYPES[delivered_type(column, scale)])
        if _stays(column, len(half.rows), False):
            made[name] = StoredRows(name, half, scale, skip)
        elif _stays(column, len(half.rows), scale is not None):
            made[name] = StoredRows(name, half, scale, True)
        else:
            array = np.empty((len(half.rows), *column.shape), dtype)
            start = 0
            for numbers, raw in pieces(column, half.rows):
                array[start : start + len(numbers)] = convert(raw, scale, dtype)
                start += len(numbers)
            made[name] = array
    return made


def _make_notes(halves: tuple[Half, ...], where: Where) -> tuple[Note, ...]:
    """How many rows were left out, and why of the first one."""
    count = sum(half.left_out for half in halves)
    if not count:
        return ()
    first = next(reason for half in halves for reason in half.reasons)
    were = "was" if count == 1 else "were"
    text = f"{count_of(count, 'row')} {were} left out; the first: {first}"
    return (Note(text, where.at("on_bad")),)
