"""What `bpc inspect` shows: a list of kernels, or one of them with formulas and source."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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
    step_times,
)

NO_KERNEL = "BPC0608"


def list_kernels(planned: Planned, source: Source, accumulate: int) -> dict[str, Any]:
    """Every generated function: launches, bytes and FLOPs of one training step.

    A function that only `evaluate` or `predict` launch has 0 launches and the figures of one call.
    """
    program = planned.program
    times = step_times(program, accumulate)
    kernels = [_summarise(program, source, at, times) for at in range(len(source.functions))]
    in_step = [kernel for kernel in kernels if kernel["launches"]]
    moved = sum(kernel["bytes_read"] + kernel["bytes_written"] for kernel in in_step)
    least = sum(
        least_moved(program.entries[name], program.persistent) * count
        for name, count in times.items()
    )
    return {
        "launches_per_step": count_step(program, source, accumulate),
        "bytes_moved": moved,
        "least_bytes_moved": least,
        "moved_ratio": moved / max(least, 1),
        "flops": sum(kernel["flops"] for kernel in in_step),
        "kernels": kernels,
    }


def _summarise(
    program: Program, source: Source, index: int, times: Mapping[str, int]
) -> dict[str, Any]:
    """One function; `launches` counts consecutive parts as one, `parts` does not."""
    uses = [use for use in launches_of(program, source) if use.function == index]
    counted = [(use, times[use.entry]) for use in uses if times.get(use.entry)]
    shown = counted or [(uses[0], 1)]
    moved = [(kernel_bytes(use.kernel, program.rows), count) for use, count in shown]
    spans = list(dict.fromkeys(span for use, _ in shown for span in use.kernel.spans))
    return {
        "name": source.functions[index].name,
        "from": f"{_layers(program, [use for use, _ in shown])} {list_places(spans)}",
        "entries": list(dict.fromkeys(use.entry for use in uses)),
        "serves": list(dict.fromkeys(use.kernel.name for use in uses)),
        "launches": sum(count for use, count in counted if not use.part),
        "parts": sum(count for _, count in counted),
        "bytes_read": sum(read * count for (read, _), count in moved),
        "bytes_written": sum(written * count for (_, written), count in moved),
        "flops": sum(use.kernel.flops * count for use, count in shown),
        "spans": [span.to_json() for span in spans],
    }


def _layers(program: Program, uses: list[Launch]) -> str:
    """What the launches are for, in the user's words; long lists are cut with a count."""
    found: dict[str, None] = {}
    for use in uses:
        nodes = {node.name: node for node in program.entries[use.entry].graph.nodes}
        for name in use.kernel.nodes:
            words = describe_node(nodes[name])
            found[words.split(" of ")[0] if nodes[name].phase == "update" else words] = None
    listed = list(found)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


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
