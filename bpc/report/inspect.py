"""What `bpc inspect` shows: a list of kernels, or one of them with formulas and source."""

from __future__ import annotations

import difflib
from typing import Any

from bpc.codegen.cpu import Source
from bpc.errors import UsageError
from bpc.kernel import kernel_bytes
from bpc.plan.choose import Planned
from bpc.plan.naming import describe_node
from bpc.plan.program import Program
from bpc.report.manifest import (
    Launch,
    count_step,
    describe_kernels,
    launches_of,
    least_moved,
    list_places,
)
from bpc.report.timeline import STEP

NO_KERNEL = "BPC0605"


def list_kernels(planned: Planned, source: Source, accumulate: int) -> dict[str, Any]:
    """Every generated function: launches, bytes and FLOPs of one training step.

    A function that only `evaluate` or `predict` launch has 0 launches and the figures of one call.
    """
    program = planned.program
    kernels = [_summarise(program, source, index) for index in range(len(source.functions))]
    moved = sum(
        kernel["bytes_read"] + kernel["bytes_written"] for kernel in kernels if kernel["launches"]
    )
    steps = [program.entries[name] for name in STEP if name in program.entries]
    least = least_moved(steps, program.persistent)
    return {
        "launches_per_step": count_step(program, source, accumulate),
        "bytes_moved": moved,
        "least_bytes_moved": least,
        "moved_ratio": moved / max(least, 1),
        "flops": sum(kernel["flops"] for kernel in kernels if kernel["launches"]),
        "kernels": kernels,
    }


def _summarise(program: Program, source: Source, index: int) -> dict[str, Any]:
    uses = [use for use in launches_of(program, source) if use[3] == index]
    in_step = [use for use in uses if use[0] in STEP]
    counted = in_step or uses[:1]
    moved = [kernel_bytes(use[2], program.rows) for use in counted]
    spans = list(dict.fromkeys(span for use in counted for span in use[2].spans))
    return {
        "name": source.functions[index].name,
        "from": f"{_layers(program, counted)} {list_places(spans)}",
        "entries": list(dict.fromkeys(use[0] for use in uses)),
        "serves": list(dict.fromkeys(use[2].name for use in uses)),
        "launches": len(in_step),
        "bytes_read": sum(read for read, _ in moved),
        "bytes_written": sum(written for _, written in moved),
        "flops": sum(use[2].flops for use in counted),
        "spans": [span.to_json() for span in spans],
    }


def _layers(program: Program, uses: list[Launch]) -> str:
    """What the launches are for, in the user's words; long lists are cut with a count."""
    found: dict[str, None] = {}
    for entry, _, kernel, _ in uses:
        nodes = {node.name: node for node in program.entries[entry].graph.nodes}
        found |= dict.fromkeys(describe_node(nodes[name]) for name in kernel.nodes)
    words = list(found)
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def show_kernel(planned: Planned, source: Source, name: str) -> dict[str, Any]:
    """One function by its name or the name of a kernel that it serves.

    Raises:
        UsageError: there is none.
    """
    described = describe_kernels(planned.program, source)
    for kernel, function in zip(described, source.functions, strict=True):
        if name == function.name or name in function.kernels:
            return {**kernel, "source": function.text.strip("\n") + "\n"}
    raise _unknown(source, name)


def _unknown(source: Source, name: str) -> UsageError:
    known = [function.name for function in source.functions]
    near = difflib.get_close_matches(name, known, n=1)
    help = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known[:8])}"
    error = UsageError.at(NO_KERNEL, f"there is no kernel '{name}'", None, help=help)
    assert isinstance(error, UsageError)
    return error
