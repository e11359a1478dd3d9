"""Runs any one graph compiled: what `net.gradients` uses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from bpc.codegen.cpu import generate
from bpc.ir import Graph
from bpc.passes import run_passes
from bpc.plan.program import build_program
from bpc.runtime.cpu.build import default_threads
from bpc.runtime.cpu.device import CpuDevice
from bpc.runtime.cpu.toolchain import build_library
from bpc.runtime.device import Array


class GraphRunner:
    """Compiles each graph once for each number of rows."""

    def __init__(self, threads: int | None = None):
        self._threads = threads or default_threads()
        self._compile = lru_cache(maxsize=8)(self._build)

    def __call__(self, graph: Graph, given: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """The values that the graph's outputs name.

        Args:
            graph: any verified graph of ops.
            given: inputs and states by name.
            rows: rows of the batch.
        """
        device = self._compile(graph, max(rows, 1))
        for value in graph.inputs:
            device.write_input(value.name, np.asarray(given[value.name]))
        for state in graph.states:
            device.write_state(state.name, np.asarray(given[state.name]))
        device.run(graph.name, rows)
        return {
            name: device.read_output(graph.name, role, rows) for role, name in graph.outputs
        }

    def _build(self, graph: Graph, rows: int) -> CpuDevice:
        program = build_program({graph.name: run_passes(graph)}, graph.states, rows)
        source = generate(graph.name, program.entries[graph.name].kernels, rows)
        return CpuDevice(program, source, build_library(source.text), self._threads)
