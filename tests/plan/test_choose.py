"""Plans under a budget: they fit, they repeat no more than they must, and no plan is refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bpc.api import compile as compile_net
from bpc.codegen.cpu import generate
from bpc.codegen.lines import structure
from bpc.entries import Entries
from bpc.errors import BudgetError
from bpc.ir import Graph
from bpc.kernel import Kernel
from bpc.passes import run_passes
from bpc.plan.choose import Planned, plan_program
from bpc.plan.liveness import replay
from bpc.plan.model import Step, Storage
from bpc.plan.program import Entry, Program
from bpc.plan.repeats import REPEAT, original
from bpc.resources import spec_root

OWN = Path(__file__).parent.parent / "specs"
PATHS = [spec_root() / "synthetic_mlp12.yaml", OWN / "conv_chain.yaml"]
EACH = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
NO_CUT = """\
bpc: 1
name: no-cut
data: {source: synthetic, shape: [16], classes: 3, rows: 8, batch: 8}
model:
  - linear: {name: a, out: 16}
  - linear: {name: b, out: 16, from: x}
  - add: {from: [a, b], name: c}
  - linear: {name: d, out: 3, from: c}
  - linear: {name: e, out: 3, from: a}
  - add: {from: [d, e]}
loss: cross_entropy
train: {steps: 1, optimizer: {sgd: {lr: 0.1}}}
"""


@dataclass(frozen=True)
class Network:
    """Entry points as the planner takes them."""

    entries: Entries
    graphs: dict[str, Graph]

    def plan(self, budget_bytes: int | None, least: bool = False) -> Planned:
        made = self.entries
        return plan_program(self.graphs, made.states, made.rows, budget_bytes, least)


@cache
def network(path: Path) -> Network:
    entries = compile_net(path, device="reference").entries
    return Network(entries, {name: run_passes(graph) for name, graph in entries.graphs.items()})


@cache
def edges(path: Path) -> tuple[int, int]:
    """The least feasible bytes, and those of the plan that keeps everything."""
    everything = network(path).plan(None, least=True)
    return everything.least_feasible_bytes, everything.program.arena_bytes


@cache
def sweep(path: Path) -> tuple[tuple[int, Planned], ...]:
    """Plans for budgets from the least to more than enough."""
    least, most = edges(path)
    budgets = [least + (most - least) * k // 6 for k in range(7)]
    return tuple((budget, network(path).plan(budget)) for budget in [*budgets, 2 * most])


def repeated(program: Program) -> list[str]:
    """Values of the training step that are made a second time."""
    step = program.entries["micro_step"]
    return [v.name for node in step.graph.nodes for v in node.outputs if REPEAT in v.name]


@EACH
def test_a_plan_fits_its_budget_and_more_budget_repeats_less(path: Path) -> None:
    plans = sweep(path)
    for budget, planned in plans:
        assert planned.program.arena_bytes <= budget == planned.budget_bytes
    costs = [planned.recompute_flops for _, planned in plans]
    assert costs == sorted(costs, reverse=True), costs
    assert costs[-1] == costs[-2] == 0 < costs[0]


@EACH
def test_the_least_feasible_budget_works_and_a_byte_less_does_not(path: Path) -> None:
    least, _ = edges(path)
    assert network(path).plan(least).program.arena_bytes == least
    with pytest.raises(BudgetError) as caught:
        network(path).plan(least - 1)
    error = caught.value
    assert (error.exit_code, error.budget_bytes) == (3, least - 1)
    assert error.least_feasible_bytes == least
    assert error.alive and all(tensor.nbytes > 0 for tensor in error.alive)
    assert sum(tensor.nbytes for tensor in error.alive) <= least
    kinds = {tensor.kind for tensor in error.alive}
    assert {"parameter", "moment", "gradient"} <= kinds


@EACH
def test_keeping_everything_repeats_nothing(path: Path) -> None:
    planned = network(path).plan(None)
    assert planned.recompute_flops == 0 and not repeated(planned.program)
    assert {decision.decision for decision in planned.decisions.values()} == {"kept"}
    assert 0 < planned.forward_flops < planned.step_flops


@EACH
def test_decisions_say_what_the_program_does(path: Path) -> None:
    planned = sweep(path)[0][1]
    assert planned.recompute_flops > 0
    again = {name.split(REPEAT)[0] for name in repeated(planned.program)}
    decided = {k for k, found in planned.decisions.items() if found.decision == "repeated"}
    assert decided and decided <= again
    assert all(decision.why for decision in planned.decisions.values())


def test_a_graph_without_cuts_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "no_cut.yaml"
    path.write_text(NO_CUT)
    net = network(path)
    everything = net.plan(None, least=True)
    assert not repeated(everything.program)
    most, least = everything.program.arena_bytes, everything.least_feasible_bytes
    assert net.plan(least).program.arena_bytes == least <= most
    with pytest.raises(BudgetError):
        net.plan(least - 1)


def replayed_bytes(program: Program, entry: Entry) -> int:
    """The arena of an entry by the simulator, from steps and offsets alone."""
    storages = {
        name: Storage(size, entry.offsets[name], name in program.persistent)
        for name, size in entry.sizes.items()
    }
    kept = {entry.storage[entry.output_of(role)[0]] for role, _ in entry.graph.outputs}
    late = tuple(sorted(kept - set(program.persistent)))
    steps = [*entry.steps, Step("outputs", late, ())]
    return replay(steps, storages, program.arena_bytes).peak_bytes


@EACH
def test_the_simulator_agrees_with_every_plan(path: Path) -> None:
    for _, planned in sweep(path):
        program = planned.program
        peaks = [replayed_bytes(program, entry) for entry in program.entries.values()]
        assert max(program.persistent_bytes, *peaks) == program.arena_bytes


def kernels_of(program: Program) -> list[Kernel]:
    return [kernel for entry in program.entries.values() for kernel in entry.kernels]


def code_of(kernel: Kernel, rows: int) -> list[str]:
    """The kernel's words, without its name, comments and breaks of lines."""
    (made,) = generate("n", [kernel], rows).functions
    lines = [line.split("  //")[0] for line in made.text.splitlines() if line[:2] != "//"]
    return " ".join(lines).replace(f" {made.name}(", " f(").split()


@EACH
def test_a_budget_changes_no_text(path: Path) -> None:
    """A kernel of the same nodes and operands reads the same in every plan, run twice or not."""
    everything = network(path).plan(None).program
    known = {_key(kernel): code_of(kernel, 8) for kernel in kernels_of(everything)}
    for _, planned in sweep(path)[::3]:
        shared = [k for k in kernels_of(planned.program) if _key(k) in known]
        assert len(shared) >= len(known) // 2
        for kernel in shared:
            assert code_of(kernel, 8) == known[_key(kernel)], kernel.name


def _key(kernel: Kernel) -> object:
    tensors = tuple(original(operand.value) for operand in (*kernel.reads, *kernel.writes))
    return tuple(original(name) for name in kernel.nodes), tensors, structure(kernel)


def test_the_text_is_the_same_from_plan_to_plan() -> None:
    """Nothing of the text hangs on the order of a set or on a counter that goes on."""
    net = network(PATHS[1])
    texts = [generate("n", kernels_of(net.plan(None).program), 8).text for _ in range(2)]
    assert texts[0] == texts[1]
