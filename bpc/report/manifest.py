"""Kernels as plain data: what each computes, from which lines, and how much it moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bpc.codegen.cpu import Source, arguments, extents, touched_shape
from bpc.errors import Span
from bpc.ir import Node
from bpc.kernel import Kernel, Operand, Reduction, Statement, kernel_bytes, operand_bytes
from bpc.plan.program import Entry, Program
from bpc.report.timeline import STEP
from bpc.types import format_shape

Data = dict[str, Any]
Launch = tuple[str, int, Kernel, int]


def launches_of(program: Program, source: Source) -> Iterator[Launch]:
    """(entry, launch, kernel, index of its function), for all entry points in order."""
    at = 0
    for name, entry in program.entries.items():
        for launch, kernel in enumerate(entry.kernels):
            yield name, launch, kernel, source.index[at]
            at += 1


def count_step(program: Program, source: Source, accumulate: int) -> int:
    """Launches of one training step of `accumulate` batches and one update.

    Consecutive launches of one function without a barrier between them are one launch in parts.
    """
    counts = {name: 0 for name in program.entries}
    parts = _mark_parts(program, source)
    for name, launch, _, _ in launches_of(program, source):
        counts[name] += not parts[name, launch]
    more = (accumulate - 1) * counts.get("micro_step_add", 0)
    return sum(counts.get(name, 0) for name in STEP) + more


def _mark_parts(program: Program, source: Source) -> dict[tuple[str, int], bool]:
    """Whether a launch is a further part of the one before it."""
    marks: dict[tuple[str, int], bool] = {}
    before: tuple[str, int] | None = None
    for name, launch, _, function in launches_of(program, source):
        waited = launch == 0 or program.entries[name].barriers[launch - 1]
        marks[name, launch] = before == (name, function) and not waited
        before = (name, function)
    return marks


def describe_kernels(program: Program, source: Source) -> list[Data]:
    """Each generated function with everything that it is launched for."""
    nodes = {
        (name, node.name): node for name, entry in program.entries.items() for node in entry.graph.nodes
    }
    kernels: list[Data] = []
    for index, function in enumerate(source.functions):
        uses = [use for use in launches_of(program, source) if use[3] == index]
        first = uses[0][2]
        places = dict.fromkeys(span for _, _, kernel, _ in uses for span in kernel.spans)
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
    entry, launch, kernel, _ = use
    read, written = kernel_bytes(kernel, rows)
    formulas = {
        item.node: _formula(item)
        for item in kernel.body
        if isinstance(item, Statement | Reduction)
    }
    return {
        "entry": entry,
        "launch": launch,
        "name": kernel.name,
        "space": format_shape(kernel.space),
        "slices": kernel.slices,
        "bytes_read": read,
        "bytes_written": written,
        "flops": kernel.flops,
        "reads": [_describe_operand(item, rows) for item in kernel.reads],
        "writes": [_describe_operand(item, rows) for item in kernel.writes],
        "nodes": [
            _describe_node(nodes[entry, name], formulas.get(name)) for name in kernel.nodes
        ],
    }


def _describe_operand(operand: Operand, rows: int) -> Data:
    return {
        "tensor": operand.value,
        "label": operand.label,
        "type": f"{operand.dtype}{format_shape(touched_shape(operand))}",
        "bytes": operand_bytes(operand, rows),
    }


def _describe_node(node: Node, formula: str | None) -> Data:
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
    parts = _mark_parts(program, source)
    order: dict[str, list[Data]] = {name: [] for name in program.entries}
    for name, launch, kernel, index in launches_of(program, source):
        order[name].append(
            {
                "launch": launch,
                "kernel": source.functions[index].name,
                "name": kernel.name,
                "slices": kernel.slices,
                "part": parts[name, launch],
                "barrier_after": program.entries[name].barriers[launch],
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


def least_moved(entries: Sequence[Entry], persistent: Mapping[str, object]) -> int:
    """Bytes that any program must move: what enters read once, what stays written once."""
    total = 0
    for entry in entries:
        makers = entry.graph.producers()
        kept = {home for _, value in entry.graph.outputs
                if (home := _home(entry, makers, value)) is not None}
        read = {name for step in entry.steps for name in step.reads if name in persistent}
        written = {name for step in entry.steps for name in step.writes if name in persistent}
        total += sum(entry.sizes[name] for name in (*sorted(read), *sorted(written | kept)))
    return total


def _home(entry: Entry, makers: Mapping[str, Node], name: str) -> str | None:
    while name in makers and makers[name].op == "reshape":
        name = makers[name].inputs[0]
    return entry.storage.get(name)


def list_places(spans: Sequence[Span]) -> str:
    """`:9, :10`: lines of one file, or with their files where there are several."""
    files = {span.file for span in spans}
    shown = [f":{span.line}" if len(files) == 1 else f"{span.file}:{span.line}" for span in spans]
    unique = list(dict.fromkeys(shown))
    return ", ".join(unique[:4]) + (f" and {len(unique) - 4} more" if len(unique) > 4 else "")
