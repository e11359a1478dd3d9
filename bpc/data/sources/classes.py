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
    """Every class by its number; `told`: the spec names them.

    `ignored` is a target that may stand where a class does: the loss leaves it out.
    """

    names: tuple[str, ...]
    told: bool
    ignored: int | None = None

    def encode(self, labels: Labels) -> tuple[Codes, NDArray[np.bool_]]:
        """Targets, int64 [rows], and whether each is one of these classes or the ignored one."""
        if labels.names is None:
            known = (labels.codes >= 0) & (labels.codes < len(self.names))
            if self.ignored is not None:
                known |= labels.codes == self.ignored
            return labels.codes, known
        places = {name: place for place, name in enumerate(self.names)}
        for name in labels.names:
            if self.ignored is not None and is_ignored(name, self.ignored, len(self.names)):
                places.setdefault(name, self.ignored)
        # A code of -1, a row without a name, takes the last entry.
        table = np.array([places.get(name, 0) for name in labels.names] + [0], np.int64)
        known = np.array([name in places for name in labels.names] + [False])
        return table[labels.codes], known[labels.codes]


def is_ignored(name: str, ignored: int, classes: int) -> bool:
    """Whether the text of a target is the number `ignored`, and no class has that number."""
    try:
        return float(name) == ignored and not 0 <= ignored < classes
    except ValueError:
        return False


def find_classes(
    records: Records, rows: Rows, told: object, where: Where, ignored: int | None = None
) -> Classes:
    """The classes of a source.

    Args:
        records: of the file that is trained on.
        rows: the rows that are trained on and can be used.
        told: `classes` of the spec: how many, or their names; None to count them in `rows`.
        where: places of options.
        ignored: a target that does not count as a class because it is there.

    Raises:
        DataError: less than two classes, or more than 65,536.
    """
    labels = records.labels
    assert labels is not None, "the target is values"
    if isinstance(told, int):
        return Classes(tuple(map(str, range(told))), True, ignored)
    if told is not None:
        return Classes(tuple(told), True, ignored)  # type: ignore[arg-type]
    used = labels.codes[rows]
    if labels.names is None:
        counted = used if ignored is None else used[used != ignored]
        names = _number(int(counted.max(initial=-1)), where)
    else:
        found = [labels.names[code] for code in np.unique(used) if code >= 0]
        names = sort_names(_without_ignored(found, ignored))
    _check_count(len(names), where)
    return Classes(names, False, ignored)


def _without_ignored(names: list[str], ignored: int | None) -> list[str]:
    """The names but for the ignored one, unless one of the others would have its number."""
    if ignored is None:
        return names
    least = len(names) - sum(is_ignored(name, ignored, 0) for name in names)
    return [name for name in names if not is_ignored(name, ignored, least)]


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
    name_row = records.name_target or records.name_row
    also = "" if classes.ignored is None else f", nor ignore_index {classes.ignored}"
    if labels.names is None and code < 0 and not classes.told:
        return f"{name_row(row)}: the target is {code}, no class number{also}"
    found = str(code) if labels.names is None else quote(labels.names[code])
    listed = ", ".join(classes.names[:8]) + (", ..." if len(classes.names) > 8 else "")
    where = "is not one of" if classes.told else "is not in the part that is trained on:"
    return f"{name_row(row)}: class {found} {where} {listed}{also}"
