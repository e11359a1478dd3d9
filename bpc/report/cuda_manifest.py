"""The CUDA side as plain data: launches with their arguments, functions with their causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bpc.codegen.cuda import Argument, CudaFunction, CudaLaunch, CudaSource
from bpc.codegen.header import formulas
from bpc.codegen.parts import arguments, generalise, unique_by_name
from bpc.ir import Node
from bpc.kernel import Kernel, kernel_bytes
from bpc.plan.program import Entry, Program
from bpc.report.manifest import Data, describe_node, describe_operand, step_times
from bpc.runtime.launching import ROWS_AT, TABLES_AT, TICKET_AT, block_bytes, pack_launches
from bpc.types import format_shape


def count_cuda_step(program: Program, source: CudaSource, accumulate: int) -> int:
    """Launches of one training step."""
    times = step_times(program, accumulate)
    return sum(len(source.launches[name]) * count for name, count in times.items())


# -- launch.json ----------------------------------------------------------------------------------


def describe_cuda_launches(program: Program, source: CudaSource) -> Data:
    """Every launch in order: function, grid, block, arguments with the places of their tensors.

    Offsets are bytes: `offset` from the beginning of the arena, `launch_block` from that of the
    launch block, a small buffer with the row count, the ticket and the tables.
    """
    packed = pack_launches(program, source, 0, 0)
    entries = {}
    for name, launches in source.launches.items():
        entry = program.entries[name]
        entries[name] = [
            _describe_launch(entry, source, at, launch, resolved.arguments)
            for at, (launch, resolved) in enumerate(
                zip(launches, packed.launches[name], strict=True)
            )
        ]
    return {
        "arena_bytes": program.arena_bytes,
        "launch_block": {
            "bytes": block_bytes(source),
            "rows_at": ROWS_AT,
            "ticket_at": TICKET_AT,
            "tables_at": TABLES_AT,
        },
        "entries": entries,
    }


def _describe_launch(
    entry: Entry, source: CudaSource, at: int, launch: CudaLaunch, places: Sequence[int]
) -> Data:
    function = source.function(launch.function)
    passed = zip(function.parameters, launch.arguments, places, strict=True)
    described: Data = {
        "launch": at,
        "function": launch.function,
        "grid": launch.grid,
        "block": launch.threads,
        "shared_bytes": 0,
        "kernels": [entry.kernels[k].name for k in launch.kernels],
        "tails": [entry.kernels[k].name for k in launch.tails],
        "arguments": [_describe_argument(*item) for item in passed],
    }
    if launch.table:
        described["table"] = [
            {
                "kernel": entry.kernels[k].name,
                "tensors": list(names),
                "offsets": [entry.offsets[entry.storage[value]] for value in names],
                "numbers": list(numbers),
            }
            for k, (names, numbers) in zip(launch.kernels, launch.table, strict=True)
        ]
    return described


def _describe_argument(parameter: str, argument: Argument, place: int) -> Data:
    if argument.kind == "tensor":
        return {"parameter": parameter, "tensor": argument.value, "offset": place}
    if argument.kind == "parts":
        return {"parameter": parameter, "int32": place}
    return {"parameter": parameter, "launch_block": place}


# -- manifest.json --------------------------------------------------------------------------------


def describe_functions(program: Program, source: CudaSource) -> list[Data]:
    """Each function of the text: what it computes, for which kernels, from which lines."""
    nodes = {
        node.name: node for entry in program.entries.values() for node in entry.graph.nodes
    }
    uses = _uses(source)
    return [
        _describe_function(function, nodes, uses.get(function.name, []), program.rows)
        for function in source.functions
    ]


def _uses(source: CudaSource) -> dict[str, list[Data]]:
    """Where each function is launched."""
    found: dict[str, list[Data]] = {}
    for entry, launches in source.launches.items():
        for at, launch in enumerate(launches):
            use = {"entry": entry, "launch": at, "grid": launch.grid, "block": launch.threads}
            found.setdefault(launch.function, []).append(use)
    return found


def _describe_function(
    function: CudaFunction, nodes: Mapping[str, Node], uses: list[Data], rows: int
) -> Data:
    served = unique_by_name(function.kernels)
    return {
        "name": function.name,
        "launched": function.is_global,
        "calls": list(function.calls),
        "threads": function.threads,
        "spans": [s.to_json() for s in dict.fromkeys(s for k in served for s in k.spans)],
        "launches": uses,
        **({} if function.calls else _describe_work(function, served, nodes, rows)),
    }


def _describe_work(
    function: CudaFunction, served: Sequence[Kernel], nodes: Mapping[str, Node], rows: int
) -> Data:
    first = served[0]
    return {
        "skeleton": first.skeleton,
        "formulas": formulas(generalise(first, function.kernels)),
        "kernels": [_describe_kernel(kernel, rows) for kernel in served],
        "nodes": [describe_node(nodes[name], None) for k in served for name in k.nodes],
    }


def _describe_kernel(kernel: Kernel, rows: int) -> Data:
    read, written = kernel_bytes(kernel, rows)
    count = len(kernel.reads)
    operands = [describe_operand(item, rows) for item in arguments(kernel)]
    return {
        "name": kernel.name,
        "space": format_shape(kernel.space),
        "bytes_read": read,
        "bytes_written": written,
        "flops": kernel.flops,
        "nodes": list(kernel.nodes),
        "reads": operands[:count],
        "writes": operands[count:],
    }


def describe_cuda(program: Program, source: CudaSource, accumulate: int) -> dict[str, Any]:
    """The part of the manifest that is about CUDA."""
    return {
        "launches_per_step": count_cuda_step(program, source, accumulate),
        "entries": {
            name: [launch.function for launch in launches]
            for name, launches in source.launches.items()
        },
        "functions": describe_functions(program, source),
    }
