"""Chain plan, arena and replay on the same program: three parts that share no code agree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_arena import training_step

from bpc.plan.arena import pack, peak
from bpc.plan.chain import pareto
from bpc.plan.liveness import replay
from bpc.plan.model import Action, Buffer, PlanFault, Saving, Segment, Step, Storage


def random_segment(r: random.Random, name: str, given: int, made: int, before: int) -> Segment:
    saved = r.randrange(1, 3000)
    saving = Saving(
        saved_bytes=saved,
        forward_peak_bytes=saved + made + r.randrange(500),
        backward_peak_bytes=before + r.randrange(500),
        needs_input=r.random() < 0.7,
        needs_output=r.random() < 0.3,
    )
    forward = made + r.randrange(800)
    return Segment(name, given, made, r.randrange(1, 900), forward, r.randrange(1, 50), (saving,))


def random_chain(r: random.Random, n: int) -> list[Segment]:
    sizes = [r.randrange(1, 1000) for _ in range(n + 1)]
    chain: list[Segment] = []
    for s in range(n):
        before = chain[-1].gradient_bytes if chain else 0
        chain.append(random_segment(r, f"s{s}", sizes[s], sizes[s + 1], before))
    return chain


def emit(chain: Sequence[Segment], actions: Sequence[Action]) -> tuple[list[Step], dict[str, int]]:
    """The schedule as launches on storages: values anew at each run, transients as workspace."""
    sizes, current = {"v0": chain[0].input_bytes}, {0: "v0"}
    steps = [Step("load", (), ("v0",))]
    for t, action in enumerate(actions):
        s, segment = action.segment, chain[action.segment]
        way, last = segment.savings[action.saving], action.segment == len(chain) - 1
        work = f"work{t}"
        if action.kind == "backward":
            reads = [f"saved{s}"] + ([] if last else [f"gradient{s}"])
            reads += [current[s]] if way.needs_input else []
            reads += [current[s + 1]] if way.needs_output else []
            made = {f"gradient{s - 1}": chain[s - 1].gradient_bytes} if s else {}
            total = way.backward_peak_bytes
        else:
            reads, current[s + 1] = [current[s]], f"v{s + 1}.{t}"
            made = {current[s + 1]: segment.output_bytes}
            saves = action.kind == "forward_save"
            made |= {f"saved{s}": way.saved_bytes} if saves else {}
            total = way.forward_peak_bytes if saves else segment.forward_peak_bytes
        made[work] = total - sum(made.values())
        assert made[work] >= 0
        sizes |= made
        steps.append(Step(f"{action.kind} {s}", tuple(reads), tuple(made)))
    return steps, sizes


def lifetimes(steps: Sequence[Step], sizes: dict[str, int]) -> list[Buffer]:
    used: dict[str, list[int]] = {}
    for t, step in enumerate(steps):
        for name in (*step.reads, *step.writes):
            used.setdefault(name, []).append(t)
    return [Buffer(name, sizes[name], min(at), max(at)) for name, at in used.items()]


@pytest.mark.parametrize("seed", range(25))
def test_planned_bytes_are_alive_and_no_more(seed: int) -> None:
    r = random.Random(seed)
    chain = random_chain(r, r.randrange(1, 10))
    for plan in pareto(chain):
        steps, sizes = emit(chain, plan.actions)
        buffers = lifetimes(steps, sizes)
        offsets = pack(buffers, alignment=1, nodes=200)
        arena = peak(buffers, offsets)
        places = {name: Storage(size, offsets[name]) for name, size in sizes.items()}
        result = replay(steps, places, arena_bytes=arena)
        assert result.live_bytes == plan.peak_bytes
        assert result.peak_bytes == result.touched_high_water == arena >= plan.peak_bytes
        runs = sum(chain[a.segment].forward_cost for a in plan.actions if a.kind != "backward")
        assert runs - sum(s.forward_cost for s in chain) == plan.extra_cost


@pytest.mark.parametrize("seed", range(60))
def test_a_moved_storage_is_found_exactly_if_it_overlaps(seed: int) -> None:
    r = random.Random(seed)
    buffers = training_step(8, r)
    offsets = pack(buffers)
    last = max(b.last for b in buffers)
    steps = [
        Step(
            f"s{t}",
            tuple(b.name for b in buffers if b.first < t <= b.last),
            tuple(b.name for b in buffers if b.first == t),
        )
        for t in range(last + 1)
    ]
    places = {b.name: Storage(b.nbytes, offsets[b.name]) for b in buffers}
    assert replay(steps, places).peak_bytes == peak(buffers, offsets)
    moved = r.choice(buffers)
    at = r.randrange(peak(buffers, offsets))
    overlaps = any(
        b is not moved
        and (b.first <= moved.last and moved.first <= b.last)
        and (offsets[b.name] < at + moved.nbytes and at < offsets[b.name] + b.nbytes)
        for b in buffers
    )
    places[moved.name] = replace(places[moved.name], offset=at)
    if overlaps:
        with pytest.raises(PlanFault):
            replay(steps, places)
    else:
        replay(steps, places)
