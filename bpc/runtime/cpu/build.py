"""From entry points to a device: passes, plan, text, library."""

from __future__ import annotations

import os

from bpc.codegen.cpu import Source, generate
from bpc.entries import Entries
from bpc.passes import run_passes
from bpc.plan.program import Program, build_program
from bpc.runtime.cpu.device import CpuDevice
from bpc.runtime.cpu.toolchain import build_library, find_toolchain


def plan(entries: Entries) -> Program:
    """The program of all entry points."""
    graphs = {name: run_passes(graph) for name, graph in entries.graphs.items()}
    return build_program(graphs, entries.states, entries.rows)


def write_source(program: Program, title: str) -> Source:
    """The C++ of a program."""
    kernels = [kernel for entry in program.entries.values() for kernel in entry.kernels]
    return generate(title, kernels, program.rows)


def make_cpu(entries: Entries, threads: int | None) -> CpuDevice:
    """A compiled device.

    Raises:
        ToolError: no compiler, or it refuses the text.
    """
    find_toolchain()
    program = plan(entries)
    source = write_source(program, "network")
    library = build_library(source.text)
    return CpuDevice(program, source, library, threads or default_threads())


def default_threads() -> int:
    """As many threads as there are processors for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
