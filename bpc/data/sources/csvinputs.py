"""The inputs of a net from a CSV file that it was not trained on, and that needs no target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.csvlayout import (
    MISSING,
    Chosen,
    Layout,
    choose_columns,
    find_layout,
    opened,
    rows_of,
    to_number,
)
from bpc.data.sources.faults import (
    BAD_RECORD,
    BAD_SHAPE,
    NOT_THERE,
    Where,
    quote,
    suggest,
)
from bpc.data.sources.files import quote_path
from bpc.data.sources.rowfaults import RowFaults
from bpc.errors import DataError, Diagnostic, Note, Span
from bpc.types import count_of

Floats = NDArray[np.float64]
Inputs = dict[str, tuple[int, ...]]

_ROWS_AT_ONCE = 8192


def read_csv_inputs(path: str, options: Mapping[str, Any], where: Where) -> dict[str, Floats]:
    """The columns that a net was trained on, [rows, columns] for each input, NaN for a gap.

    Columns go by name where both files have a header; other columns of `path` are passed over.
    Otherwise they go by number, and `path` has those of the inputs alone or all of the file that
    was trained on.

    Args:
        path: the file with the rows.
        options: of the CSV source that was trained on.
        where: the place of that source.

    Raises:
        DataError: a column is missing, or a cell holds no number; with the place of the first one
            and the number of further rows.
    """
    trained = find_layout(options["file"], options, where, where.at("file"))
    chosen = choose_columns(trained, options, options["file"], where)
    span = Span(path, 1, 1)
    layout = find_layout(path, options, where, span)
    columns = _place(path, layout, trained, chosen, where)
    return _read(path, layout, columns, "missing" in options)


def _place(path: str, layout: Layout, trained: Layout, chosen: Chosen, where: Where) -> Inputs:
    """The columns of each input in the file at hand."""
    if layout.names is not None and trained.names is not None:
        return _place_by_name(path, layout.names, trained.names, chosen, where)
    flat = [at for _, columns in chosen.inputs for at in columns]
    if layout.width == trained.width:
        return dict(chosen.inputs)
    if layout.width != len(flat):
        message = f"{quote_path(path)} has {count_of(layout.width, 'column')} and no names to go by"
        help = f"either the {len(flat)} of the inputs, or all {trained.width} as in training"
        raise DataError.at(BAD_SHAPE, message, Span(path, 1, 1), help=help)
    found, start = {}, 0
    for name, columns in chosen.inputs:
        found[name] = tuple(range(start, start + len(columns)))
        start += len(columns)
    return found


def _place_by_name(
    path: str, names: Sequence[str], trained: Sequence[str], chosen: Chosen, where: Where
) -> Inputs:
    wanted = [trained[at] for _, columns in chosen.inputs for at in columns]
    missing = [name for name in dict.fromkeys(wanted) if name not in names]
    if missing:
        note = Note("the run was trained on it here", where.at("file"))
        unused = [name for name in names if name not in wanted]
        raise DataError([_describe(path, name, unused, note) for name in missing])
    twice = next((name for name in wanted if list(names).count(name) > 1), None)
    if twice is not None:
        message = f"{quote_path(path)} has more than one column called {quote(twice)}"
        raise DataError.at(NOT_THERE, message, Span(path, 1, 1), help="rename all but one")
    place = {name: at for at, name in enumerate(names)}
    return {name: tuple(place[trained[at]] for at in columns) for name, columns in chosen.inputs}


def _describe(path: str, name: str, unused: Sequence[str], note: Note) -> Diagnostic:
    message = f"{quote_path(path)} has no column {quote(name)}, which the net takes"
    return Diagnostic(NOT_THERE, message, Span(path, 1, 1), (note,), suggest(name, unused))


def _read(path: str, layout: Layout, columns: Inputs, gaps: bool) -> dict[str, Floats]:
    flat = [at for ats in columns.values() for at in ats]
    parts, faults = [np.empty((0, len(flat)))], RowFaults(path, layout.delimiter)
    span = Span(path, 1, 1)
    with opened(path, span) as text:
        rows = rows_of(text, layout.delimiter, path, span)
        if layout.names is not None:
            next(rows)
        good = _read_rows(rows, layout, flat, gaps, faults)
        while piece := list(islice(good, _ROWS_AT_ONCE)):
            parts.append(np.array(piece))
    faults.raise_if_any()
    whole, start, found = np.concatenate(parts), 0, {}
    for name, ats in columns.items():
        found[name] = whole[:, start : start + len(ats)]
        start += len(ats)
    return found


def _read_rows(
    rows: Iterable[tuple[int, list[str]]],
    layout: Layout,
    columns: Sequence[int],
    gaps: bool,
    faults: RowFaults,
) -> Iterator[list[float]]:
    """The rows that can be used; what is wrong with the others is added to `faults`."""
    try:
        for line, row in rows:
            try:
                found = _read_row(line, row, layout, columns, gaps, faults)
            except DataError as fault:
                faults.add(fault)
            else:
                yield found
    except DataError:
        faults.raise_if_any()  # what was found before comes first
        raise


def _read_row(
    line: int,
    row: Sequence[str],
    layout: Layout,
    columns: Sequence[int],
    gaps: bool,
    faults: RowFaults,
) -> list[float]:
    start = Span(faults.path, line, 1)
    if len(row) != layout.width:
        message = f"the row has {count_of(len(row), 'cell')}, {layout.width} are needed"
        raise DataError.at(BAD_RECORD, message, start)
    found = []
    for at in columns:
        value = to_number(row[at])
        bad = value is None and (not gaps or row[at].strip().lower() not in MISSING)
        span = faults.place(line, row, at) if bad else start
        if value is None and row[at].strip().lower() in MISSING:
            if not gaps:
                message = f"{layout.name(at)} holds nothing"
                help = "a net that is trained with data.missing: mean fills gaps"
                raise DataError.at(BAD_RECORD, message, span, help=help)
            value = float("nan")
        elif value is None:
            message = f"{layout.name(at)} holds {quote(row[at])}, not a finite number"
            raise DataError.at(BAD_RECORD, message, span)
        found.append(value)
    return found
