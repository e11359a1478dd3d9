"""A source in files, from its options to two parts of checked rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bpc.data.sources.arrays import open_idx_pair, open_npy_files, open_npz_file
from bpc.data.sources.classes import Classes, find_classes, say_unknown
from bpc.data.sources.csvfile import open_csv
from bpc.data.sources.faults import (
    BAD_CLASS,
    BAD_OPTION,
    BAD_RECORD,
    BAD_SHAPE,
    TOO_FEW,
    Where,
    fault,
)
from bpc.data.sources.records import ArrayColumn, Column, Half, Prepared, Records, Rows
from bpc.data.sources.splits import split_rows
from bpc.data.sources.text import prepare_text
from bpc.types import I64, count_of

Options = Mapping[str, Any]
Open = Callable[[Options, Where, bool], Records]

_OPEN: Mapping[str, Open] = {
    "csv": open_csv,
    "npz": open_npz_file,
    "npy": open_npy_files,
    "idx": open_idx_pair,
}
FILE_SOURCES = (*_OPEN, "text")
_REASONS_KEPT = 8
SKIP_HELP = "mend the row, or leave such rows out with on_bad: skip"


def prepare(source: str, options: Options, where: Where, ignored: int | None = None) -> Prepared:
    """Open, divide and check a source whose data lies in files.

    Mapped numbers are not read; what has to be parsed (CSV, text) is. Rows whose class is `ignored`
    are kept, and keep it as their target; it is no class by being there.

    Raises:
        DataError: a file, an option or a record is at fault; a record with its file and row.
    """
    _refuse_two_ways(options, where)
    if source == "text":
        return prepare_text(options, where)
    records = _OPEN[source](options, where, False)
    if _names_test(options):
        other = _OPEN[source](options, where, True)
        _check_alike(records, other, where)
        train, test = _all_of(records), _all_of(other)
    else:
        train, test = split_rows(len(records), options.get("split"), where)
        other = records
    return _divide(records, train, other, test, options, where, ignored)


def _names_test(options: Options) -> bool:
    return any(name == "test" or name.startswith("test_") for name in options)


def _refuse_two_ways(options: Options, where: Where) -> None:
    if _names_test(options) and "split" in options:
        message = "split divides one file, and another one is named to test on"
        raise fault(BAD_OPTION, message, where.at("split"), "leave one of the two out")


def _all_of(records: Records) -> Rows:
    return np.arange(len(records), dtype=np.int64)


def _divide(
    records: Records,
    train: Rows,
    other: Records,
    test: Rows,
    options: Options,
    where: Where,
    ignored: int | None,
) -> Prepared:
    skip = options.get("on_bad") == "skip"
    first = _leave_out_bad(records, train, skip)
    second = first if test is train else _leave_out_bad(other, test, skip)
    if records.labels is None:
        return Prepared(first, second, None)
    classes = find_classes(records, first.rows, options.get("classes"), where, ignored)
    coded = _encode(first, classes, skip)
    held = coded if second is first else _encode(second, classes, skip)
    return Prepared(coded, held, classes.names)


def _leave_out_bad(records: Records, rows: Rows, skip: bool) -> Half:
    bad = records.bad.within(rows)
    columns = dict(records.inputs)
    if records.target is not None:
        columns["target"] = records.target
    reasons = [_say_why(records, int(row)) for row in bad[:_REASONS_KEPT]]
    return leave_out(Half(columns, records, rows), bad, reasons, skip, BAD_RECORD)


def _say_why(records: Records, row: int) -> str:
    return records.bad.reasons.get(row, f"{records.name_row(row)} cannot be used")


def leave_out(half: Half, bad: Rows, reasons: list[str], skip: bool, code: str) -> Half:
    """The half without its bad rows.

    Raises:
        DataError: there is one, and bad rows are not to be skipped; or no other is left.
    """
    if not len(bad):
        return half
    span = half.records.span
    if not skip:
        more = f" (and {count_of(len(bad) - 1, 'more row')})" if len(bad) > 1 else ""
        raise fault(code, f"{reasons[0]}{more}", span, SKIP_HELP)
    kept = half.rows[~np.isin(half.rows, bad, assume_unique=True)]
    if not len(kept):
        message = f"no row of a part can be used; the first: {reasons[0]}"
        raise fault(TOO_FEW, message, span)
    told = (*half.reasons, *reasons)[:_REASONS_KEPT]
    return replace(half, rows=kept, left_out=half.left_out + len(bad), reasons=told)


def _encode(half: Half, classes: Classes, skip: bool) -> Half:
    """The half with class numbers for its target."""
    assert half.records.labels is not None, "the target is values"
    codes, known = classes.encode(half.records.labels)
    bad = half.rows[~known[half.rows]]
    reasons = [say_unknown(half.records, int(row), classes) for row in bad[:_REASONS_KEPT]]
    half = replace(half, columns={**half.columns, "target": ArrayColumn(codes, (), I64)})
    return leave_out(half, bad, reasons, skip, BAD_CLASS)


def _check_alike(records: Records, other: Records, where: Where) -> None:
    """The file to test on has the shapes of the file to train on.

    Raises:
        DataError: an input or the target has another shape.
    """
    pairs: list[tuple[str, Column | None, Column | None]] = [
        (name, column, other.inputs.get(name)) for name, column in records.inputs.items()
    ]
    pairs.append(("target", records.target, other.target))
    for name, mine, theirs in pairs:
        found, wanted = (None if c is None else list(c.shape) for c in (theirs, mine))
        if found != wanted:
            message = f"the {name} to test on has rows of {found}, to train on {wanted}"
            raise fault(BAD_SHAPE, message, where.at("test", "test_inputs", "test_images"))
