"""The plan of a network: what is kept, what is repeated, and the program that follows.

Candidates are the Pareto-optimal plans of the chain of segments (`bpc.plan.chain`). Each one that
is looked at is turned into a graph, fused, placed and replayed: what counts is the arena that it
really needs, not the estimate that led to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bpc.errors import BudgetError, Diagnostic, LiveTensor
from bpc.ir import Graph, State
from bpc.ops import OPS
from bpc.plan.chain import ChainPlan, pareto
from bpc.plan.program import Entry, Program, build_program, join_entries, place_entry
from bpc.plan.repeats import REPEAT, original
from bpc.plan.schedule import schedule
from bpc.plan.segments import Chain, find_chain
from bpc.types import format_bytes

NO_PLAN_FITS = "BPC0510"
STEPS = ("micro_step", "micro_step_add")
_EXHAUSTIVE = 12  # at most so many candidates are all tried
_NEIGHBOURS = 3  # cheaper candidates tried again around what bisection found
_SMALLEST = 4  # candidates of least estimated peak that are tried for the least feasible arena


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one forward value that the backward pass reads, and why."""

    value: str
    decision: str  # "kept" | "repeated"
    why: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A program that fits its budget, and what was decided to get there.

    `forward_flops` is one forward pass of `micro_step`, `step_flops` one `micro_step` and one
    `update` that repeat nothing, `recompute_flops` what the plan repeats.
    `least_feasible_bytes` is the smallest arena of all plans that were tried.
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
    find_least: bool = False,
) -> Planned:
    """The cheapest program found whose arena fits the budget.

    Args:
        graphs: entry points made of primitives.
        states: everything that outlives a call.
        rows: planned rows of a batch.
        budget_bytes: for the whole arena; None keeps everything.
        find_least: also look for the least feasible arena where the budget does not ask for it.

    Raises:
        BudgetError: no plan fits.
    """
    everything = build_program(graphs, states, rows)
    search = _Search(everything, graphs, rows)
    fits = budget_bytes is None or everything.arena_bytes <= budget_bytes
    if not fits or find_least:
        search.try_smallest()
    if fits:
        return search.planned(everything, budget_bytes)
    assert budget_bytes is not None
    found = search.cheapest_under(budget_bytes)
    if found is None:
        raise _nothing_fits(search.least(), budget_bytes)
    return search.planned(found, budget_bytes)


@dataclass(slots=True)
class _Search:
    """Tries plans of the chain and remembers what each one really needs."""

    everything: Program
    graphs: Mapping[str, Graph]
    rows: int
    chains: dict[str, Chain] = field(init=False)
    tried: dict[int, Program] = field(init=False)
    _plans: tuple[ChainPlan, ...] | None = None

    def __post_init__(self) -> None:
        self.chains = {
            name: find_chain(self.graphs[name], self.rows) for name in STEPS if name in self.graphs
        }
        self.tried = {}

    @property
    def plans(self) -> tuple[ChainPlan, ...]:
        """All plans of the chain; found on first use, since it takes long for deep networks."""
        if self._plans is None:
            first = next(iter(self.chains.values()), None)
            self._plans = pareto(first.segments) if first and len(first.segments) > 1 else ()
        return self._plans

    def program(self, index: int) -> Program:
        """The program of one plan; its estimated peak rises with the index, its cost falls."""
        if index not in self.tried:
            actions = self.plans[index].actions
            entries = dict(self.everything.entries)
            for name, chain in self.chains.items():
                entries[name] = self._place(name, schedule(chain, actions))
            self.tried[index] = join_entries(self.everything, entries)
        return self.tried[index]

    def _place(self, name: str, graph: Graph) -> Entry:
        whole = self.everything
        return place_entry(
            name, graph, whole.persistent, whole.offsets, whole.persistent_bytes, self.rows
        )

    def try_smallest(self) -> None:
        """Look at the plans with the least estimated peaks."""
        for index in range(min(_SMALLEST, len(self.plans))):
            self.program(index)

    def least(self) -> Program:
        """The smallest program seen."""
        return min([self.everything, *self.tried.values()], key=lambda made: made.arena_bytes)

    def cheapest_under(self, budget_bytes: int) -> Program | None:
        """The program of least work that fits, among those tried.

        Needs fall with the index nearly always: bisection finds the edge, then neighbours that
        repeat less are tried, and if nothing fits, everything is.
        """
        count = len(self.plans)
        if count <= _EXHAUSTIVE:
            order: Sequence[int] = range(count)
        else:
            low, high = 0, count - 1
            while low < high:
                middle = (low + high + 1) // 2
                if self.program(middle).arena_bytes <= budget_bytes:
                    low = middle
                else:
                    high = middle - 1
            order = range(low, min(count, low + 1 + _NEIGHBOURS))
        for index in order:
            self.program(index)
        if not self._fitting(budget_bytes):
            for index in range(count):
                self.program(index)
        fitting = self._fitting(budget_bytes)
        return min(fitting, key=_work, default=None)

    def _fitting(self, budget_bytes: int) -> list[Program]:
        return [made for made in self.tried.values() if made.arena_bytes <= budget_bytes]

    def planned(self, program: Program, budget_bytes: int | None) -> Planned:
        """The chosen program with its figures."""
        base, chosen = _work(self.everything)[0], _work(program)[0]
        chain = next(iter(self.chains.values()), None)
        return Planned(
            program,
            _decide(self.everything, program),
            budget_bytes,
            self.least().arena_bytes,
            sum(chain.flops) if chain else 0,
            chosen - base,
            base,
        )


def _work(program: Program) -> tuple[int, int]:
    """(FLOPs of a step, arena bytes): what plans are compared by."""
    entries = program.entries
    names = [name for name in ("micro_step", "update") if name in entries] or list(entries)
    flops = sum(kernel.flops for name in names for kernel in entries[name].kernels)
    return flops, program.arena_bytes


def _decide(everything: Program, program: Program) -> dict[str, Decision]:
    """Kept or repeated, for every stored forward value that the backward pass reads."""
    found: dict[str, Decision] = {}
    for name in STEPS:
        if name not in program.entries:
            continue
        entry = program.entries[name]
        stored = {operand.value for kernel in entry.kernels for operand in kernel.writes}
        repeated = {original(value) for value in stored if REPEAT in value}
        for value in _saved_values(everything.entries[name]):
            if value in repeated or value not in stored:
                found[value] = Decision(value, "repeated", _why_repeated(entry, value))
            else:
                found[value] = Decision(value, "kept", _why_kept(entry, value))
    return found


def _saved_values(entry: Entry) -> list[str]:
    """Forward values that a backward kernel of the keep-all program loads."""
    makers = entry.graph.producers()
    phases = {node.name: node.phase for node in entry.graph.nodes}
    saved = []
    for kernel in entry.kernels:
        backward = any(phases[name] == "backward" for name in kernel.nodes)
        for operand in kernel.reads:
            maker = makers.get(operand.value)
            if backward and maker is not None and maker.phase == "forward":
                saved.append(operand.value)
    return list(dict.fromkeys(saved))


def _why_kept(entry: Entry, value: str) -> str:
    readers = [k.name for k in entry.kernels if any(o.value == value for o in k.reads)]
    return f"read again by {readers[-1]}" if readers else "an output"


def _why_repeated(entry: Entry, value: str) -> str:
    values = entry.graph.values()
    flops = sum(
        OPS[node.op].flops(node, [values[name] for name in node.inputs], 1)
        for node in entry.graph.nodes
        if REPEAT in node.name and original(node.output.name) == value
    )
    return f"computed again before its backward, {flops:,} FLOPs a row"


def _nothing_fits(least: Program, budget_bytes: int) -> BudgetError:
    entry = max(least.entries.values(), key=lambda made: made.replayed.peak_bytes)
    alive = [
        LiveTensor(name, entry.sizes[name], least.kinds.get(name, "temporary"))
        for name in entry.replayed.alive_at_peak
    ]
    message = (
        f"no plan fits {format_bytes(budget_bytes)}; "
        f"the least possible is {format_bytes(least.arena_bytes)}"
    )
    ordered = sorted(alive, key=lambda tensor: -tensor.nbytes)
    return BudgetError(
        [Diagnostic(NO_PLAN_FITS, message, None)], budget_bytes, least.arena_bytes, ordered
    )

