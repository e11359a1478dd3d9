"""What `bpc plan-memory` says: sizes, lifetimes, places and reasons."""

from __future__ import annotations

from typing import Any

from bpc.plan.choose import Planned
from bpc.plan.picture import arena_svg
from bpc.report.timeline import find_moment, list_tensors, make_axis, place_all


def report_memory(planned: Planned) -> dict[str, Any]:
    """The plan of a training step as plain data; bytes, FLOPs, and launches of one time axis."""
    program = planned.program
    axis, moment = make_axis(program), find_moment(program)
    shift = next(span.first for span in axis if span.entry == moment.entry)
    classes = {kind.value: size for kind, size in moment.classes.items()}
    step = max(planned.step_flops, 1)
    return {
        "planned_peak_bytes": program.arena_bytes,
        "budget_bytes": planned.budget_bytes,
        "least_feasible_bytes": planned.least_feasible_bytes,
        "forward_flops": planned.forward_flops,
        "recompute_flops": planned.recompute_flops,
        "step_flops": planned.step_flops,
        "overhead_ratio": planned.recompute_flops / step,
        "peak_moment": str(moment),
        "peak_launch": moment.launch + shift,
        "classes": classes,
        "unused_bytes": program.arena_bytes - sum(classes.values()),
        "axis": [
            {"entry": span.entry, "first": span.first, "launches": span.launches} for span in axis
        ],
        "tensors": [tensor.to_json() for tensor in list_tensors(planned, axis)],
    }


def draw_memory(planned: Planned, title: str) -> str:
    """The arena over a training step as an SVG document."""
    program = planned.program
    placed = place_all(program, make_axis(program))
    return arena_svg(placed, program.arena_bytes, planned.budget_bytes, title)
