"""Which rows are held out: a share of them, every n-th, or ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpc.data.order import rows_at
from bpc.data.sources.faults import BAD_SPLIT, TOO_FEW, Where, fault
from bpc.data.sources.records import Rows
from bpc.types import count_of

DEFAULT_SHARE = 0.2

_KEY = 0x5EED_0F_5911  # of the permutation; it has to stay, or rows change sides


def split_rows(rows: int, split: object, where: Where) -> tuple[Rows, Rows]:
    """Numbers of the rows to train on and of those held out, each in order.

    A share takes the first rows of a permutation that depends on the number of rows alone, so
    that another `seed` trains on the same rows. A share of 0 holds nothing out: both are all.

    Args:
        rows: how many there are.
        split: a share, {"every": n} or {"rows": ranges}; None is a share of 0.2.
        where: places of options.

    Raises:
        DataError: rows that are not there, or none left on one side.
    """
    held = np.zeros(rows, bool)
    if isinstance(split, dict):
        _mark(held, split, where)
    else:
        share = DEFAULT_SHARE if split is None else float(split)  # type: ignore[arg-type]
        if share == 0:
            everything = np.arange(rows, dtype=np.int64)
            return everything, everything
        count = min(max(1, round(rows * share)), rows)
        held[rows_at(_KEY, 0, rows, 0, count)] = True
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    if not len(train) or not len(test):
        side = "to train on" if not len(train) else "held out"
        message = f"of {count_of(rows, 'row')} none is {side}"
        help = "take another split, or split: 0 to test on the rows that are trained on"
        raise fault(TOO_FEW, message, where.at("split"), help)
    return train, test


def _mark(held: np.ndarray[Any, np.dtype[np.bool_]], split: dict[str, Any], where: Where) -> None:
    if "every" in split:
        held[split["every"] - 1 :: split["every"]] = True
        return
    for start, stop in check_ranges(split["rows"], len(held), "row", where):
        held[start:stop] = True


def check_ranges(
    ranges: Sequence[Sequence[int]], count: int, noun: str, where: Where
) -> list[tuple[int, int]]:
    """Half-open ranges within 0 .. count, in order and apart.

    Raises:
        DataError: a range is empty, overlaps another one or ends behind the last.
    """
    found = sorted((int(start), int(stop)) for start, stop in ranges)
    end = 0
    for start, stop in found:
        if start >= stop or stop > count or start < end:
            why = "is empty" if start >= stop else "meets the one before it"
            why = f"ends behind {noun} {count - 1}, the last" if stop > count else why
            message = f"split: the range [{start}, {stop}] {why}"
            help = "[first, one behind the last], counted from 0, such as [0, 1000]"
            raise fault(BAD_SPLIT, message, where.at("split"), help)
        end = stop
    return found
