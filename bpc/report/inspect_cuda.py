"""What `bpc inspect --target cuda` shows: what kernels take, and how a line became machine code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bpc.codegen.amalgamate import single_file
from bpc.codegen.cuda import CudaFunction, CudaLaunch, CudaSource
from bpc.codegen.header import formulas
from bpc.codegen.parts import generalise, unique_by_name
from bpc.diagnose.assembly import interleave, read_ptx, read_sass
from bpc.diagnose.occupancy import LIMITS, bound_occupancy
from bpc.diagnose.resources import Resources, measure_resources
from bpc.kernel import Kernel, kernel_bytes
from bpc.plan.choose import Planned
from bpc.plan.program import Program
from bpc.report.cuda_manifest import count_cuda_step, describe_functions
from bpc.report.inspect import moved_facts, name_layers, no_kernel
from bpc.report.inspect_lines import beside
from bpc.report.manifest import list_places, step_times
from bpc.resources import template_root

NAME = "network.cu"
Data = dict[str, Any]


def list_cuda(planned: Planned, source: CudaSource, accumulate: int, arch: str) -> Data:
    """Every function that is launched: what a step moves and computes, and what it takes.

    Raises:
        ToolError: NVRTC is missing.
    """
    program = planned.program
    times = step_times(program, accumulate)
    taken = _take(source, arch)
    launched = [function for function in source.functions if function.is_global]
    kernels = [
        {**_summarise(program, source, function, times), **_resources(function, taken, arch)}
        for function in launched
    ]
    return {
        "target": "cuda",
        "arch": arch,
        "launches_per_step": count_cuda_step(program, source, accumulate),
        **moved_facts(program, times, kernels),
        "kernels": kernels,
    }


def _take(source: CudaSource, arch: str) -> dict[str, Resources]:
    found = measure_resources(_whole(source), NAME, (arch,))
    return {item.function: item for item in found}


def _whole(source: CudaSource) -> str:
    folders = [template_root() / target / "include" for target in ("cuda", "cpu")]
    return single_file(source.text, NAME, folders)


def _resources(function: CudaFunction, taken: Mapping[str, Resources], arch: str) -> Data:
    item = taken[function.name]
    bound = bound_occupancy(arch, function.threads, item.registers, item.shared_bytes)
    return {
        "block": function.threads,
        "registers": item.registers,
        "spill_bytes": item.spill_bytes,
        "stack_bytes": item.stack_bytes,
        "shared_bytes": item.shared_bytes,
        "occupancy": {
            "share": bound.share,
            "blocks": bound.blocks,
            "warps": bound.warps,
            "most_warps": LIMITS[arch].warps,
            "limit": bound.limit,
        },
    }


def _summarise(
    program: Program, source: CudaSource, function: CudaFunction, times: Mapping[str, int]
) -> Data:
    """One function over a step; the figures of one launch where a step does not launch it."""
    uses = [
        (name, launch)
        for name, launches in source.launches.items()
        for launch in launches
        if launch.function == function.name
    ]
    counted = [(use, times[use[0]]) for use in uses if times.get(use[0])]
    shown = counted or [(uses[0], 1)]
    done = [
        (kernel, count) for (name, use), count in shown for kernel in _kernels(program, name, use)
    ]
    moved = [(kernel_bytes(kernel, program.rows), count) for kernel, count in done]
    spans = list(dict.fromkeys(span for kernel, _ in done for span in kernel.spans))
    used = [(use[0], kernel) for use, _ in shown for kernel in _kernels(program, *use)]
    layers = name_layers(program, used)
    return {
        "name": function.name,
        "from": f"{layers} {list_places(spans)}",
        "entries": list(dict.fromkeys(name for name, _ in uses)),
        "serves": [kernel.name for kernel in unique_by_name(function.kernels)],
        "calls": list(function.calls),
        "grid": shown[0][0][1].grid,
        "launches": sum(count for _, count in counted),
        "bytes_read": sum(read * count for (read, _), count in moved),
        "bytes_written": sum(written * count for (_, written), count in moved),
        "flops": sum(kernel.flops * count for kernel, count in done),
        "spans": [span.to_json() for span in spans],
    }


def _kernels(program: Program, entry: str, launch: CudaLaunch) -> list[Kernel]:
    return [program.entries[entry].kernels[at] for at in (*launch.kernels, *launch.tails)]


# -- one function ---------------------------------------------------------------------------------


def show_cuda(
    planned: Planned,
    source: CudaSource,
    name: str,
    arch: str,
    ptx: bool = False,
    sass: bool = False,
) -> Data:
    """One function by its name or that of a kernel that it serves.

    Raises:
        UsageError: there is none.
        ToolError: NVRTC or the disassembler is missing.
    """
    function = _find(source, name)
    described = describe_functions(planned.program, source)
    whole = next(item for item in described if item["name"] == function.name)
    called = [source.function(inner) for inner in function.calls] or [function]
    entry = _launched_as(source, function)
    text, assembly = _whole(source), {}
    if ptx:
        assembly["ptx"] = read_ptx(text, NAME, entry.name, arch)
    if sass:
        assembly["sass"] = read_sass(text, NAME, entry.name, arch)
    return {
        "target": "cuda",
        "arch": arch,
        **whole,
        "launched_as": entry.name,
        "formulas": [line for inner in called for line in _formulas(inner)],
        "lines": [row for inner in called for row in beside(source, inner, NAME, assembly)],
        "source": "\n".join(f.text.strip("\n") + "\n" for f in dict.fromkeys((*called, function))),
        **_resources(entry, _take(source, arch), arch),
        **{kind: interleave(pieces, _Reader(source).read) for kind, pieces in assembly.items()},
    }


def _find(source: CudaSource, name: str) -> CudaFunction:
    for function in source.functions:
        if function.name == name:
            return function
    for function in source.functions:  # what is launched comes after what it calls
        if not function.calls and any(kernel.name == name for kernel in function.kernels):
            return function
    raise no_kernel([function.name for function in source.functions], name)


def _launched_as(source: CudaSource, function: CudaFunction) -> CudaFunction:
    """The function itself, or the one that calls it."""
    if function.is_global:
        return function
    return next(caller for caller in source.functions if function.name in caller.calls)


def _formulas(function: CudaFunction) -> list[str]:
    return formulas(generalise(function.kernels[0], function.kernels))


class _Reader:
    """Lines of the generated text and of its headers, by name."""

    def __init__(self, source: CudaSource):
        self._texts = {NAME: source.text.splitlines()}

    def read(self, name: str, line: int) -> str | None:
        """A line, None where there is none."""
        lines = self._texts.setdefault(name, self._load(name))
        return lines[line - 1] if 0 < line <= len(lines) else None

    def _load(self, name: str) -> list[str]:
        for target in ("cuda", "cpu"):
            path: Path = template_root() / target / "include" / name
            if path.is_file():
                return path.read_text(encoding="utf-8").splitlines()
        return []
