"""CSV: rows of cells, read as numbers, and one of them perhaps as the name of a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.classes import MOST_CLASSES
from bpc.data.sources.csvlayout import (
    MISSING,
    Chosen,
    Layout,
    choose_columns,
    find_layout,
    is_number,
    opened,
    rows_of,
    to_number,
)
from bpc.data.sources.faults import (
    BAD_CLASS,
    BAD_OPTION,
    BAD_SHAPE,
    NOT_THERE,
    Where,
    fault,
    quote,
)
from bpc.data.sources.files import keep, quote_path, stamp_file
from bpc.data.sources.records import BadRows, Gaps, Labels, Records, column_of
from bpc.data.sources.shapes import fit_shape
from bpc.errors import Span
from bpc.types import count_of

Options = Mapping[str, Any]
Floats = NDArray[np.float64]

_ROWS_AT_ONCE = 8192
_MOST_REASONS = 1000


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is read of a file; `named`: the target names classes; `fill`: cells may be empty."""

    layout: Layout
    chosen: Chosen
    named: bool
    numbered: bool
    fill: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """What was read of a file: numbers of inputs side by side, the target, and what is wrong."""

    numbers: Floats
    target: Floats
    labels: Labels | None
    lines: NDArray[np.int64]
    bad: BadRows
    gaps: Gaps


def open_csv(options: Options, where: Where, test: bool) -> Records:
    """The rows of the file to train on, or of that to test on, which has the same columns.

    Raises:
        DataError: the file cannot be read, lacks a column, or has no rows.
    """
    plan = _plan(options["file"], options, where, where.at("file"))
    path, span = (
        (options["test"], where.at("test")) if test else (options["file"], where.at("file"))
    )
    if test:
        plan = _plan_test(plan, path, options, where, span)
    table = keep((stamp_file(path, span), plan), lambda: _read(path, plan, span))
    return _to_records(table, plan, path, options, where, span)


def _plan(path: str, options: Options, where: Where, span: Span) -> _Plan:
    layout = find_layout(path, options, where, span)
    chosen = choose_columns(layout, options, path, where)
    told, task = options.get("classes"), options.get("task")
    if task == "values" and told is not None:
        message = "task: values has no classes"
        raise fault(BAD_OPTION, message, where.at("classes"), "leave one of the two out")
    found = [layout.first_row[at] for at in chosen.target if at < len(layout.first_row)]
    as_text = any(not is_number(cell) and cell.strip().lower() not in MISSING for cell in found)
    numbered = isinstance(told, int)
    classes = task == "classes" or told is not None or (task is None and as_text)
    if classes and len(chosen.target) > 1:
        message = f"classes stand in one column, target names {len(chosen.target)}"
        raise fault(BAD_OPTION, message, where.at("target"))
    return _Plan(layout, chosen, classes and not numbered, numbered, "missing" in options)


def _plan_test(plan: _Plan, path: str, options: Options, where: Where, span: Span) -> _Plan:
    """The same columns in another file: by name where there is a header, else by number."""
    layout = find_layout(path, options, where, span)
    names = plan.layout.names
    if (names is None) != (layout.names is None):
        has, lacks = ("test", "file") if names is None else ("file", "test")
        message = f"of the two files {quote_path(options[has])} has a header, "
        message += f"{quote_path(options[lacks])} has none"
        raise fault(BAD_SHAPE, message, span, "say header: true or false")
    if names is None or layout.names is None:
        if layout.width != plan.layout.width:
            message = f"{quote_path(path)} has {count_of(layout.width, 'column')}, "
            raise fault(BAD_SHAPE, f"{message}the file to train on {plan.layout.width}", span)
        chosen = plan.chosen
    else:
        place = {name: at for at, name in enumerate(layout.names)}
        needed = [at for _, columns in plan.chosen.inputs for at in columns]
        for name in (names[at] for at in (*needed, *plan.chosen.target)):
            if name not in place:
                message = f"{quote_path(path)} has no column {quote(name)}, which is trained on"
                raise fault(NOT_THERE, message, span)
        chosen = Chosen(
            tuple((n, tuple(place[names[at]] for at in ats)) for n, ats in plan.chosen.inputs),
            tuple(place[names[at]] for at in plan.chosen.target),
        )
    return _Plan(layout, chosen, plan.named, plan.numbered, plan.fill)


def _read(path: str, plan: _Plan, span: Span) -> _Table:
    reader = _Reader(path, plan)
    with opened(path, span) as text:
        rows = rows_of(text, plan.layout.delimiter, path, span)
        if plan.layout.names is not None:
            next(rows)
        while piece := list(islice(rows, _ROWS_AT_ONCE)):
            reader.add(piece)
            if len(reader.codes) > MOST_CLASSES:
                message = f"{quote_path(path)}: the target has more than {MOST_CLASSES:,} classes"
                raise fault(BAD_CLASS, message, span, "with task: values the target is numbers")
    return reader.finish()


@dataclass(slots=True)
class _Reader:
    """Turns cells into numbers, some thousand rows at a time."""

    path: str
    plan: _Plan
    count: int = 0
    lines: list[int] = field(default_factory=list)
    numbers: list[Floats] = field(default_factory=list)
    targets: list[Floats] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, piece: Sequence[tuple[int, list[str]]]) -> None:
        """Take in the next rows with their lines."""
        layout, chosen = self.plan.layout, self.plan.chosen
        self.lines += [line for line, _ in piece]
        nothing = [""] * layout.width
        rows = [row if len(row) == layout.width else nothing for _, row in piece]
        for at, (_, row) in enumerate(piece):
            if len(row) != layout.width:
                cells = f"{count_of(len(row), 'cell')}, {layout.width} are needed"
                self._refuse(self.count + at, f"the row has {cells}")
        columns = list(zip(*rows, strict=True))
        wanted = [at for _, ats in chosen.inputs for at in ats]
        made = [self._convert(columns[at], at, place) for place, at in enumerate(wanted)]
        self.numbers.append(np.stack(made, axis=1))
        if self.plan.named:
            self._add_labels(columns[chosen.target[0]], chosen.target[0])
        else:
            self.targets.append(
                np.stack([self._convert(columns[at], at, None) for at in chosen.target], axis=1)
            )
        self.count += len(piece)

    def _convert(self, cells: Sequence[str], column: int, place: int | None) -> Floats:
        """The numbers of a column; what is none is noted and becomes 0. `place`: of an input."""
        joined = "".join(cells)
        if joined.isascii() and "_" not in joined:
            try:
                values = np.array(cells, np.float64)
            except ValueError:
                pass
            else:
                if np.isfinite(values).all():
                    return values
        return np.array([self._read_cell(c, at, column, place) for at, c in enumerate(cells)])

    def _read_cell(self, cell: str, at: int, column: int, place: int | None) -> float:
        value = to_number(cell)
        if value is not None:
            return value
        row, name = self.count + at, self.plan.layout.name(column)
        if cell.strip().lower() not in MISSING:
            self._refuse(row, f"{name} holds {quote(cell)}, not a finite number")
        elif place is None or not self.plan.fill:
            mend = "" if place is None else " (missing: mean would fill it)"
            self._refuse(row, f"{name} holds nothing{mend}")
        else:
            self.gaps.append((row, place))
        return 0.0

    def _add_labels(self, cells: Sequence[str], column: int) -> None:
        for at, cell in enumerate(cells):
            name = cell.strip()
            if not name:
                self._refuse(self.count + at, f"{self.plan.layout.name(column)} holds nothing")
            self.labels.append(self.codes.setdefault(name, len(self.codes)) if name else -1)

    def _refuse(self, row: int, why: str) -> None:
        if row not in self.bad:
            few = len(self.bad) < _MOST_REASONS
            self.bad[row] = f"{_name_row(self.path, row, self.lines)}: {why}" if few else ""

    def finish(self) -> _Table:
        """All that was read."""
        width = sum(len(columns) for _, columns in self.plan.chosen.inputs)
        target = _join(self.targets, len(self.plan.chosen.target))
        labels = Labels(np.array(self.labels, np.int64), tuple(self.codes))
        if self.plan.numbered:
            labels = self._number(target[:, 0])
        named = self.plan.named or self.plan.numbered
        reasons = {row: why for row, why in self.bad.items() if why}
        gaps = np.array(sorted(self.gaps), np.int64).reshape(-1, 2)
        return _Table(
            _join(self.numbers, width),
            target,
            labels if named else None,
            np.array(self.lines, np.int64),
            BadRows(np.array(sorted(self.bad), np.int64), reasons),
            Gaps(gaps[:, 0], gaps[:, 1]),
        )

    def _number(self, values: Floats) -> Labels:
        """Class numbers; what is no whole number is noted."""
        for row in np.flatnonzero((values != np.floor(values)) | (np.abs(values) > 2**53)):
            name = self.plan.layout.name(self.plan.chosen.target[0])
            self._refuse(int(row), f"{name} holds {values[row]:g}, not the number of a class")
        return Labels(np.clip(values, -(2.0**53), 2.0**53).astype(np.int64))


def _join(parts: Sequence[Floats], width: int) -> Floats:
    joined = np.concatenate(parts) if parts else np.empty((0, width))
    joined.flags.writeable = False
    return joined


def _name_row(path: str, row: int, lines: Sequence[int] | NDArray[np.int64]) -> str:
    return f"{quote_path(path)}, row {row} (line {lines[row]})"


def _to_records(
    table: _Table, plan: _Plan, path: str, options: Options, where: Where, span: Span
) -> Records:
    inputs, gaps = {}, {}
    start = 0
    for name, columns in plan.chosen.inputs:
        stop = start + len(columns)
        count, wished = len(plan.chosen.inputs), options.get("shape")
        shape = fit_shape((len(columns),), wished, name, count, where)
        inputs[name] = column_of(table.numbers[:, start:stop], shape)
        within = (table.gaps.elements >= start) & (table.gaps.elements < stop)
        gaps[name] = Gaps(table.gaps.rows[within], table.gaps.elements[within] - start)
        start = stop
    target = None if table.labels is not None else column_of(table.target)
    return Records(
        inputs,
        lambda row: _name_row(path, row, table.lines),
        span,
        table.labels,
        target,
        table.bad,
        gaps,
    )
