"""What `bpc inspect` shows: a list of kernels, or one of them with formulas and source."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bpc.codegen.cpu import Source
from bpc.errors import UsageError
from bpc.kernel import Kernel, kernel_bytes
from bpc.plan.choose import Planned
from bpc.plan.naming import describe_node
from bpc.plan.program import Program
from bpc.report.manifest import (
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
    return {
        "target": "cpu",
        "launches_per_step": count_step(program, source, accumulate),
        **moved_facts(program, times, kernels),
        "kernels": kernels,
    }


def moved_facts(
    program: Program, times: Mapping[str, int], kernels: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What a step moves, the least that it could, and what it computes."""
    in_step = [kernel for kernel in kernels if kernel["launches"]]
    moved = sum(kernel["bytes_read"] + kernel["bytes_written"] for kernel in in_step)
    least = sum(
        least_moved(program.entries[name], program.persistent) * count
        for name, count in times.items()
    )
    return {
        "bytes_moved": moved,
        "least_bytes_moved": least,
        "moved_ratio": moved / max(least, 1),
        "flops": sum(kernel["flops"] for kernel in in_step),
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
    layers = name_layers(program, [(use.entry, use.kernel) for use, _ in shown])
    return {
        "name": source.functions[index].name,
        "from": f"{layers} {list_places(spans)}",
        "entries": list(dict.fromkeys(use.entry for use in uses)),
        "serves": list(dict.fromkeys(use.kernel.name for use in uses)),
        "launches": sum(count for use, count in counted if not use.part),
        "parts": sum(count for _, count in counted),
        "bytes_read": sum(read * count for (read, _), count in moved),
        "bytes_written": sum(written * count for (_, written), count in moved),
        "flops": sum(use.kernel.flops * count for use, count in shown),
        "spans": [span.to_json() for span in spans],
    }


def name_layers(program: Program, uses: Iterable[tuple[str, Kernel]]) -> str:
    """What kernels of entry points are for, in the user's words; long lists end in a count."""
    found: dict[str, None] = {}
    for entry, kernel in uses:
        nodes = {node.name: node for node in program.entries[entry].graph.nodes}
        for name in kernel.nodes:
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
            return {"target": "cpu", **kernel, "source": function.text.strip("\n") + "\n"}
    raise no_kernel([function.name for function in source.functions], name)


def no_kernel(known: Sequence[str], name: str) -> UsageError:
    """The error for a name that no kernel has; offers the nearest."""
    longer = [other for other in known if other.startswith(f"{name}_")]
    near = longer or difflib.get_close_matches(name, known, n=1)
    help = f"did you mean '{near[0]}'?" if near else f"there are {_some(known)}"
    error = UsageError.at(NO_KERNEL, f"there is no kernel '{name}'", None, help=help)
    assert isinstance(error, UsageError)
    return error


def _some(known: Sequence[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    left = len(known) - most
    more = f" and {left} more; `bpc inspect SPEC` lists them" if left > 0 else ""
    return ", ".join(known[:most]) + more
