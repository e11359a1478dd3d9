"""The device without a compiler: graphs run node by node with NumPy, nothing is reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.entries import Entries
from bpc.ir import Graph, Value
from bpc.runtime.device import Array, Scalars
from bpc.runtime.host_memory import check_fits
from bpc.runtime.reference import Arrays, round_to, run_graph
from bpc.types import nbytes, shape_at


class ReferenceDevice:
    """Runs every entry point with `run_graph`, each result rounded to its declared type."""

    name = "reference"
    summary = "reference (NumPy; no memory is reused)"
    works_ahead = False

    def __init__(self, entries: Entries):
        self.planned_peak_bytes = count_bytes(entries)
        check_fits(self.planned_peak_bytes)
        self._graphs = entries.graphs
        self._states = {state.name: state.value for state in entries.states}
        self._slots = {value.name: value for value in _inputs(entries.graphs.values())}
        self._held: Arrays = {
            name: round_to(np.zeros(shape_at(value.shape, entries.rows)), value.dtype)
            for name, value in self._states.items()
        }
        self._inputs: Arrays = {}
        self._outputs: dict[str, Arrays] = {}
        self.rows = entries.rows
        self.arena_bytes = self.planned_peak_bytes

    @property
    def companions(self) -> Mapping[str, str]:
        """Nothing beside the text of the program decides bits here."""
        return {}

    def write_input(self, name: str, array: Array) -> None:
        """Fill an input slot; the number of rows is that of the array."""
        slot = self._slots[name]
        assert array.shape[1:] == shape_at(slot.shape, self.rows)[1:], f"{name} {array.shape}"
        assert len(array) <= self.rows, f"{name}: {len(array)} rows, planned for {self.rows}"
        self._inputs[name] = np.array(round_to(array, slot.dtype))

    def write_rows(self, name: str, array: Array, rows: NDArray[np.integer[Any]]) -> None:
        """Fill an input slot with the rows of these numbers."""
        self.write_input(name, array[rows])

    def read_state(self, name: str) -> Array:
        """A copy of a state."""
        return self._held[name].copy()

    def write_state(self, name: str, array: Array) -> None:
        """Replace a state."""
        value = self._states[name]
        assert array.shape == shape_at(value.shape, self.rows), f"{value}: {array.shape}"
        self._held[name] = np.array(round_to(array, value.dtype))

    def read_scalar(self, name: str) -> float | int:
        """A state without axes."""
        value: float | int = self._held[name].item()
        return value

    def snapshot(self) -> Scalars:
        """Metrics and control values; nothing runs that could change them."""
        return self

    def write_scalar(self, name: str, value: float | int) -> None:
        """Replace a state without axes."""
        self.write_state(name, np.asarray(value))

    def run(self, entry: str, rows: int) -> None:
        """Run an entry point; states move on, outputs are kept until the next call."""
        graph = self._graphs[entry]
        given = {**self._held, **{value.name: self._inputs[value.name] for value in graph.inputs}}
        values = run_graph(graph, given, rows)
        self._held.update({state: values[name] for state, name in graph.updates})
        self._outputs[entry] = {role: values[name] for role, name in graph.outputs}

    def read_output(self, entry: str, role: str, rows: int) -> Array:
        """A copy of a result."""
        return self._outputs[entry][role].copy()

    def close(self) -> None:
        """Let go of all arrays."""
        self._held.clear()
        self._inputs.clear()
        self._outputs.clear()


def count_bytes(entries: Entries) -> int:
    """Bytes of all states, all inputs and every value of the largest entry point, side by side."""
    kept = [*(state.value for state in entries.states), *_inputs(entries.graphs.values())]
    largest = max(_total(_computed(graph), entries.rows) for graph in entries.graphs.values())
    return _total(kept, entries.rows) + largest


def _inputs(graphs: Iterable[Graph]) -> list[Value]:
    """Every input of several graphs once."""
    return list({value.name: value for graph in graphs for value in graph.inputs}.values())


def _computed(graph: Graph) -> list[Value]:
    return [value for node in graph.nodes for value in node.outputs]


def _total(values: Iterable[Value], rows: int) -> int:
    return sum(nbytes(value.dtype, value.shape, rows) for value in values)
