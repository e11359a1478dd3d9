"""Finds the first inf or NaN of a step by running the step again, node by node.

A window whose gradients are not finite moves neither weights nor moments, so the step can be
repeated from the states that it left, with the counter of windows set back by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.entries import MICRO_STEP, MICRO_STEP_ADD, UPDATE, Entries
from bpc.errors import Diagnostic, NonFiniteError, Note, Span
from bpc.ir import Graph, Node, Value
from bpc.runtime.device import Device
from bpc.runtime.reference import round_to, run_graph
from bpc.train.stepper import mean_loss
from bpc.types import Rows, format_shape

NON_FINITE = "BPC0603"
Arrays = dict[str, NDArray[Any]]
Batch = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Fault:
    """The first value of a step that is not finite: what made it, where, and from what.

    `batch` is the number of the batch in its window, from 0, None for states and the update;
    `row` is a row of that batch, if the tensor has a row axis.
    """

    node: str
    layer: str
    phase: str  # "state" | "input" | "forward" | "backward" | "update"
    span: Span
    element: tuple[int, ...]
    value: float
    row: int | None = None
    operands: tuple[str, ...] = ()
    batch: int | None = None

    def data_row(self, batches: Sequence[Sequence[int]]) -> int | None:
        """The row of the data it was made from, given those of each batch of the window."""
        if self.row is None or self.batch is None or self.row >= len(batches[self.batch]):
            return None
        return int(batches[self.batch][self.row])

    def describe(self) -> str:
        """`log1 is -inf at [3, 1], in the forward pass`."""
        where = f" at {list(self.element)}" if self.element else ""
        name = self.node
        if self.layer and self.layer not in (name, "update"):
            name = f"{name} (of {self.layer})"
        return f"{name} is {self.value}{where}, {_PHASES[self.phase]}"


_PHASES = {
    "state": "before the step began",
    "input": "in the batch as the program's type holds it",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "update": "in the update",
}


class _Found(Exception):
    def __init__(self, fault: Fault):
        super().__init__(fault.node)
        self.fault = fault


def find_fault(
    entries: Entries, device: Device, batches: Sequence[Batch], span: Span, backoff: float
) -> Fault | None:
    """Repeat the last window on the reference and name the first value that is not finite.

    Args:
        entries: the program.
        device: holds the states that the skipped window left.
        batches: the window's batches in order.
        span: the place of the data section, for faults in the batch itself.
        backoff: what the loss scale was multiplied by after the window.
    """
    held = {state.name: device.read_state(state.name) for state in entries.states}
    held["control.window"] = held["control.window"] - 1
    held["control.scale"] = held["control.scale"] / backoff
    try:
        _check_states(entries, held)
        _repeat(entries, held, batches, span)
    except _Found as found:
        return found.fault
    return None


def _check_states(entries: Entries, held: Arrays) -> None:
    for state in entries.states:
        if state.kind in ("parameter", "master"):
            _check(held[state.name], state.value, "state", "", state.span)


def _repeat(entries: Entries, held: Arrays, batches: Sequence[Batch], span: Span) -> None:
    first_row = 0
    for number, batch in enumerate(batches):
        graph = entries.graphs[MICRO_STEP_ADD if number else MICRO_STEP]
        held["control.first_row"] = np.asarray(first_row)
        try:
            _repeat_batch(graph, held, batch, span)
        except _Found as found:
            raise _Found(replace(found.fault, batch=number)) from None
        first_row += len(batch["target"])
    _run_checked(entries.graphs[UPDATE], held, {}, entries.rows)


def _repeat_batch(graph: Graph, held: Arrays, batch: Batch, span: Span) -> None:
    inputs = {value.name: round_to(batch[value.name], value.dtype) for value in graph.inputs}
    for value in graph.inputs:
        _check(inputs[value.name], value, "input", "", span)
    _run_checked(graph, held, inputs, len(batch["target"]))


def find_in_forward(
    graph: Graph, given: Mapping[str, NDArray[Any]], rows: int, span: Span, exact: bool
) -> Fault:
    """The first value of a forward pass that is not finite, where the loss is not.

    Args:
        graph: the forward pass.
        given: inputs and states by name.
        rows: of the batch.
        span: the place of the data section, for faults in the batch itself.
        exact: in float64, not in the types of the graph.
    """
    held = {state.name: given[state.name] for state in graph.states}
    try:
        for value in graph.inputs:
            _check(given[value.name], value, "input", "", span)
        _run_checked(graph, held, {v.name: given[v.name] for v in graph.inputs}, rows, exact)
    except _Found as found:
        return found.fault
    raise AssertionError("the loss is finite")


def _run_checked(
    graph: Graph, held: Arrays, inputs: Arrays, rows: int, exact: bool = False
) -> None:
    """Run a graph and move the states on; raise _Found at the first value that is not finite."""
    seen: Arrays = {**held, **inputs}

    def observe(node: Node, results: tuple[NDArray[Any], ...]) -> None:
        for value, array in zip(node.outputs, results, strict=True):
            _check(array, value, node.phase, node.scope, node.span, node, seen)
            seen[value.name] = array

    values = run_graph(graph, seen, rows, exact, observe=observe)
    held.update({state: values[name] for state, name in graph.updates})


def _check(
    array: NDArray[Any],
    value: Value,
    phase: str,
    layer: str,
    span: Span,
    node: Node | None = None,
    seen: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    if value.dtype.kind != "float" or np.isfinite(array).all():
        return
    flat = int(np.argmin(np.isfinite(array).ravel()))
    element = tuple(int(i) for i in np.unravel_index(flat, array.shape))
    row = _row_of(value, element)
    operands = tuple(_describe_operands(node, seen, array.shape, element)) if node and seen else ()
    found = float(array[element])
    raise _Found(Fault(value.name, layer, phase, span, element, found, row, operands))


def _row_of(value: Value, element: tuple[int, ...]) -> int | None:
    """The row of the batch that an element belongs to."""
    if not value.shape or not isinstance(value.shape[0], Rows):
        return None
    return element[0] // value.shape[0].factor


def _describe_operands(
    node: Node, seen: Mapping[str, NDArray[Any]], shape: tuple[int, ...], element: tuple[int, ...]
) -> Iterable[str]:
    """What the element was made from: the operands there, or the largest value of each."""
    for name in dict.fromkeys(node.inputs):
        operand = seen[name]
        if not np.issubdtype(operand.dtype, np.floating) or not operand.size:
            continue
        if _broadcasts(operand.shape, shape):
            number = float(np.broadcast_to(operand, shape)[element])
            yield f"its operand {name} is {number:.9g} there"
        else:
            number = float(np.abs(operand).max())
            sizes = format_shape(operand.shape)
            yield f"its operand {name} {sizes} has the largest magnitude {number:.9g}"


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, target) for size, target in pairs)


def find_unexplained(entries: Entries, device: Device, span: Span) -> Fault:
    """A fault that did not come again: the first gradient that is not finite, else the loss.

    This happens where a device rounds in another order than the reference does.
    """
    for state in entries.states_of("gradient"):
        try:
            _check(device.read_state(state.name), state.value, "backward", "", state.span)
        except _Found as found:
            return found.fault
    return Fault("loss", "", "forward", span, (), mean_loss(device))


def make_error(
    fault: Fault, step: int, data_rows: Sequence[Sequence[int]], kept: str
) -> NonFiniteError:
    """The error that stops a run.

    Args:
        fault: what was found.
        step: the number of the step, from 1.
        data_rows: rows of the training part that each batch of the window read.
        kept: what was saved, for the last note.
    """
    notes = [Note(text) for text in fault.operands]
    row = fault.data_row(data_rows)
    if row is not None:
        which = "the batch"
        if len(data_rows) > 1 and fault.batch is not None:
            which = f"batch {fault.batch + 1} of the step"
        notes.append(Note(f"that row of {which} is row {row} of the data"))
    notes.append(Note(kept))
    message = f"step {step}: {fault.describe()}"
    help = (
        "a smaller train.lr, train.clip or another init often helps; "
        "train.nonfinite: skip passes over such steps"
    )
    diagnostic = Diagnostic(NON_FINITE, message, fault.span, tuple(notes), help)
    return NonFiniteError([diagnostic], fault.node, step, fault.element, fault.value)


def make_check_error(fault: Fault, loss: NDArray[Any]) -> NonFiniteError:
    """The error of a check of gradients, whose batch is the first rows of the data."""
    notes = [Note(text) for text in fault.operands]
    if fault.row is not None:
        notes.append(Note(f"that row is row {fault.row} of the data"))
    message = f"the loss is {float(loss)}, so that it has no gradient: {fault.describe()}"
    help = "check what the layer gets: the data, data.normalise, or the init of its weights"
    diagnostic = Diagnostic(NON_FINITE, message, fault.span, tuple(notes), help)
    return NonFiniteError([diagnostic], fault.node, 0, fault.element, fault.value)
