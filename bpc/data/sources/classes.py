"""Classes: found in the part that is trained on, named, counted from 0 in a stable order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import BAD_CLASS, Where, fault, quote
from bpc.data.sources.records import Labels, Records, Rows

MOST_CLASSES = 1 << 16

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Classes:
    """Every class by its number; `told`: the spec names them."""

    names: tuple[str, ...]
    told: bool

    def encode(self, labels: Labels) -> Codes:
        """Class numbers, int64 [rows]; -1 where the class is not one of these."""
        if labels.names is None:
            known = (labels.codes >= 0) & (labels.codes < len(self.names))
            return np.where(known, labels.codes, -1)
        places = {name: place for place, name in enumerate(self.names)}
        table = np.array([places.get(name, -1) for name in labels.names] + [-1], np.int64)
        return table[labels.codes]  # a code of -1 takes the last entry, which is -1


def find_classes(records: Records, rows: Rows, told: object, where: Where) -> Classes:
    """The classes of a source.

    Args:
        records: of the file that is trained on.
        rows: the rows that are trained on and can be used.
        told: `classes` of the spec: how many, or their names; None to count them in `rows`.
        where: places of options.

    Raises:
        DataError: less than two classes, or more than 65,536.
    """
    labels = records.labels
    assert labels is not None, "the target is values"
    if isinstance(told, int):
        return Classes(tuple(map(str, range(told))), True)
    if told is not None:
        return Classes(tuple(told), True)  # type: ignore[arg-type]
    used = labels.codes[rows]
    if labels.names is None:
        names = _number(int(used.max(initial=-1)), where)
    else:
        names = sort_names([labels.names[code] for code in np.unique(used) if code >= 0])
    _check_count(len(names), where)
    return Classes(names, False)


def _number(largest: int, where: Where) -> tuple[str, ...]:
    _check_count(largest + 1, where)
    return tuple(str(number) for number in range(largest + 1))


def _check_count(count: int, where: Where) -> None:
    if 2 <= count <= MOST_CLASSES:
        return
    found = f"{count:,} classes" if count > 1 else "one class only" if count else "no class"
    span = where.at("target", "labels")
    help = f"from 2 to {MOST_CLASSES:,} are possible; with task: values the target is numbers"
    raise fault(BAD_CLASS, f"the target has {found}", span, help)


def sort_names(names: Sequence[str]) -> tuple[str, ...]:
    """Numbers by value, other names by their characters."""
    try:
        values = {name: float(name) for name in names}
    except ValueError:
        values = {}
    if not all(map(isfinite, values.values())):
        values = {}
    return tuple(sorted(names, key=lambda name: (values.get(name, 0.0), name)))


def say_unknown(records: Records, row: int, classes: Classes) -> str:
    """Why the class of a row cannot be used: where, which one, and which there are."""
    labels = records.labels
    assert labels is not None, "the target is values"
    code = int(labels.codes[row])
    found = str(code) if labels.names is None else quote(labels.names[code])
    listed = ", ".join(classes.names[:8]) + (", ..." if len(classes.names) > 8 else "")
    where = "is not one of" if classes.told else "is not in the part that is trained on:"
    name = records.name_target or records.name_row
    return f"{name(row)}: class {found} {where} {listed}"
