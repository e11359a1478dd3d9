"""Kernels as plain data: what each computes, from which lines, and how much it moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bpc.codegen.cpu import Source, extents
from bpc.codegen.header import touched_shape
from bpc.codegen.parts import arguments
from bpc.errors import Span
from bpc.ir import Node
from bpc.kernel import Kernel, Operand, Reduction, Statement, kernel_bytes, operand_bytes
from bpc.plan.program import Entry, Program
from bpc.types import format_shape

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch; `part`: it continues the one before it, the same function without a wait."""

    entry: str
    at: int
    kernel: Kernel
    function: int
    part: bool


def launches_of(program: Program, source: Source) -> Iterator[Launch]:
    """The launches of all entry points in order."""
    index = iter(source.index)
    for name, entry in program.entries.items():
        before = -1
        for at, kernel in enumerate(entry.kernels):
            function = next(index)
            part = at > 0 and function == before and not entry.barriers[at - 1]
            yield Launch(name, at, kernel, function, part)
            before = function


def step_times(program: Program, accumulate: int) -> dict[str, int]:
    """How often each entry point runs in a training step of `accumulate` batches."""
    times = {"micro_step": 1, "micro_step_add": accumulate - 1, "update": 1}
    return {name: count for name, count in times.items() if name in program.entries and count}


def count_step(program: Program, source: Source, accumulate: int) -> int:
    """Launches of one training step; consecutive parts of one launch count once."""
    times = step_times(program, accumulate)
    return sum(times.get(use.entry, 0) for use in launches_of(program, source) if not use.part)


def describe_kernels(program: Program, source: Source) -> list[Data]:
    """Each generated function with everything that it is launched for."""
    nodes = {
        (name, node.name): node
        for name, entry in program.entries.items()
        for node in entry.graph.nodes
    }
    kernels: list[Data] = []
    for index, function in enumerate(source.functions):
        uses = [use for use in launches_of(program, source) if use.function == index]
        first = uses[0].kernel
        places = dict.fromkeys(span for use in uses for span in use.kernel.spans)
        kernels.append(
            {
                "name": function.name,
                "skeleton": first.skeleton,
                "formulas": _formulas(first),
                "spans": [span.to_json() for span in places],
                "launches": [_describe_launch(use, nodes, program.rows) for use in uses],
            }
        )
    return kernels


def _formulas(kernel: Kernel) -> list[str]:
    return [_formula(item) for item in kernel.body if isinstance(item, Statement | Reduction)]


def _formula(item: Statement | Reduction) -> str:
    if isinstance(item, Statement):
        return item.formula()
    return f"{item.label} = {item.kind}({item.source})"


def _describe_launch(use: Launch, nodes: Mapping[tuple[str, str], Node], rows: int) -> Data:
    kernel = use.kernel
    read, written = kernel_bytes(kernel, rows)
    formulas = {
        item.node: _formula(item)
        for item in kernel.body
        if isinstance(item, Statement | Reduction)
    }
    return {
        "entry": use.entry,
        "launch": use.at,
        "name": kernel.name,
        "space": format_shape(kernel.space),
        "slices": kernel.slices,
        "bytes_read": read,
        "bytes_written": written,
        "flops": kernel.flops,
        "reads": [describe_operand(item, rows) for item in kernel.reads],
        "writes": [describe_operand(item, rows) for item in kernel.writes],
        "nodes": [
            describe_node(nodes[use.entry, name], formulas.get(name)) for name in kernel.nodes
        ],
    }


def describe_operand(operand: Operand, rows: int) -> Data:
    """A tensor of a kernel, with the shape that the kernel touches."""
    return {
        "tensor": operand.value,
        "label": operand.label,
        "type": f"{operand.dtype}{format_shape(touched_shape(operand))}",
        "bytes": operand_bytes(operand, rows),
    }


def describe_node(node: Node, formula: str | None) -> Data:
    """A node with its layer and its place in the spec."""
    return {
        "name": node.name,
        "op": node.op,
        "layer": node.scope,
        "role": node.role,
        "phase": node.phase,
        "span": node.span.to_json(),
        "formula": formula,
    }


def describe_launches(program: Program, source: Source) -> dict[str, list[Data]]:
    """Each entry point's launches in order, `part` where one continues the one before it."""
    order: dict[str, list[Data]] = {name: [] for name in program.entries}
    for use in launches_of(program, source):
        order[use.entry].append(
            {
                "launch": use.at,
                "kernel": source.functions[use.function].name,
                "name": use.kernel.name,
                "slices": use.kernel.slices,
                "part": use.part,
                "barrier_after": program.entries[use.entry].barriers[use.at],
            }
        )
    return order


def describe_table(entry: Entry, rows: int) -> list[Data]:
    """The numbers that each launch of an entry point is given: offsets, then extents."""
    return [
        {
            "launch": launch,
            "name": kernel.name,
            "tensors": [operand.value for operand in arguments(kernel)],
            "offsets": [entry.offset_of(operand) for operand in arguments(kernel)],
            "extents": list(extents(kernel, rows)),
        }
        for launch, kernel in enumerate(entry.kernels)
    ]


def least_moved(entry: Entry, persistent: Mapping[str, object]) -> int:
    """Bytes that any program must move: what a call finds read once, what it leaves written once.

    Outputs that are no states count as left; numbers that pass between kernels do not count.
    """
    outputs = {entry.storage[entry.output_of(role)[0]] for role, _ in entry.graph.outputs}
    read = {name for step in entry.steps for name in step.reads if name in persistent}
    written = {name for step in entry.steps for name in step.writes if name in persistent}
    return sum(entry.sizes[name] for name in (*read, *(written | outputs)))


def list_places(spans: Sequence[Span]) -> str:
    """`:9, :10`: lines of one file, or with their files where there are several."""
    files = {span.file for span in spans}
    shown = [f":{span.line}" if len(files) == 1 else f"{span.file}:{span.line}" for span in spans]
    unique = list(dict.fromkeys(shown))
    return ", ".join(unique[:4]) + (f" and {len(unique) - 4} more" if len(unique) > 4 else "")
