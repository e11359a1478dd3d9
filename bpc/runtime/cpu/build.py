"""From entry points to a device: passes, plan, text, library."""

from __future__ import annotations

import os

from bpc.codegen.cpu import Source, generate
from bpc.entries import Entries
from bpc.passes import run_passes
from bpc.plan.choose import Planned, plan_program
from bpc.plan.program import Program
from bpc.runtime.cpu.device import CpuDevice
from bpc.runtime.cpu.toolchain import build_library, find_toolchain


def plan(
    entries: Entries, memory_bytes: int | None = None, find_least: bool = False
) -> Planned:
    """The program of all entry points under a budget for the arena.

    `find_least` also looks for the least feasible arena where the budget does not ask for it.

    Raises:
        BudgetError: no plan fits.
    """
    graphs = {name: run_passes(graph) for name, graph in entries.graphs.items()}
    return plan_program(graphs, entries.states, entries.rows, memory_bytes, find_least)


def write_source(program: Program, title: str, debug_lines: bool = False) -> Source:
    """The C++ of a program, with `#line` for the spec's statements where that is wanted."""
    kernels = [kernel for entry in program.entries.values() for kernel in entry.kernels]
    return generate(title, kernels, program.rows, debug_lines)


def make_cpu(
    entries: Entries, threads: int | None, memory_bytes: int | None = None
) -> CpuDevice:
    """A compiled device.

    Raises:
        ToolError: no compiler, or it refuses the text.
        BudgetError: no plan fits.
    """
    find_toolchain()
    program = plan(entries, memory_bytes).program
    source = write_source(program, "network")
    library = build_library(source.text)
    return CpuDevice(program, source, library, threads or default_threads())


def default_threads() -> int:
    """As many threads as there are processors for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
