"""The chain planner against naive searches, a direct simulation and its own promises."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import brute
import pytest

from bpc.plan import chain
from bpc.plan.chain import ChainPlan, best_under, pareto
from bpc.plan.model import Action, Saving, Segment


def random_saving(r: random.Random, output: int, size: int) -> Saving:
    saved = r.randrange(2 * size)
    return Saving(
        saved_bytes=saved,
        forward_peak_bytes=saved + output + r.randrange(size),
        backward_peak_bytes=r.randrange(2 * size),
        needs_input=r.random() < 0.75,
        needs_output=r.random() < 0.25,
        extra_cost=r.choice([0, 0, r.randrange(5)]),
    )


def random_chain(r: random.Random, n: int, size: int = 12, ways: int = 2) -> list[Segment]:
    sizes = [r.randrange(size) for _ in range(n + 1)]
    chain = []
    for s in range(n):
        given, made = sizes[s], sizes[s + 1]
        forward = made + r.randrange(size)
        dropping = r.randrange(max(given, made), given + forward + 1)
        chain.append(
            Segment(
                name=f"s{s}",
                input_bytes=given,
                output_bytes=made,
                gradient_bytes=r.randrange(size),
                forward_peak_bytes=forward,
                forward_cost=r.randrange(1, 10),
                savings=tuple(
                    random_saving(r, made, size) for _ in range(r.randrange(1, ways + 1))
                ),
                forward_drop_peak_bytes=r.choice([None, dropping]),
            )
        )
    return chain


def even_chain(n: int, activation: int = 1000, saved: int = 3000) -> list[Segment]:
    """n equal segments whose names differ."""
    saving = Saving(saved, saved + activation, activation + 500)
    return [
        Segment(f"s{s}", activation, activation, activation, activation + 700, 100, (saving,))
        for s in range(n)
    ]


def simulate(chain: Sequence[Segment], actions: Sequence[Action]) -> tuple[int, int]:
    """Peak and extra cost of a schedule; asserts that every action finds what it reads."""
    n = len(chain)
    state = brute.State(frozenset({0}), (None,) * n, n - 1)
    peak, cost = brute.bytes_of(chain, state), -sum(s.forward_cost for s in chain)
    for action in actions:
        s, segment, held = action.segment, chain[action.segment], set(state.held)
        base, saved = brute.bytes_of(chain, state), list(state.saved)
        if action.kind == "backward":
            way = segment.savings[action.saving]
            assert s == state.following and saved[s] == action.saving
            assert s in held or not way.needs_input
            assert s + 1 in held or not way.needs_output
            peak, saved[s] = max(peak, base + way.backward_peak_bytes), None
            state = state._replace(following=s - 1)
        else:
            assert s in held
            held.add(s + 1)
            cost += segment.forward_cost
            if action.kind == "forward_save":
                way, saved[s] = segment.savings[action.saving], action.saving
                cost += way.extra_cost
                high = base + way.forward_peak_bytes
            elif s in action.drops:
                high = base - segment.input_bytes + segment.dropping_peak_bytes
            else:
                high = base + segment.forward_peak_bytes
            peak = max(peak, high)
        assert held.issuperset(action.drops)
        state = state._replace(held=frozenset(held - set(action.drops)), saved=tuple(saved))
    assert state == brute.State(frozenset(), (None,) * n, -1), "something is still held"
    return peak, cost


def points(plans: Sequence[ChainPlan]) -> list[tuple[int, int]]:
    return [(plan.peak_bytes, plan.extra_cost) for plan in plans]


@pytest.mark.parametrize("seed", range(300))
def test_front_equals_naive_search(seed: int) -> None:
    r = random.Random(seed)
    chain = random_chain(r, n=r.choice([1, 2, 2, 3, 3, 4, 4, 5] + [6] * (seed % 15 == 0)))
    assert points(pareto(chain)) == brute.front(chain, brute.sweeps)


@pytest.mark.parametrize("seed", range(40))
def test_no_point_lies_below_what_any_schedule_can_reach(seed: int) -> None:
    """The class is smaller than all schedules: never better, and the same where nothing repeats."""
    r = random.Random(1000 + seed)
    chain = random_chain(r, n=r.choice([1, 2, 3, 4]), ways=1)
    ours, best = points(pareto(chain)), brute.front(chain, brute.anything)
    assert all(any(q <= p and d <= c for q, d in best) for p, c in ours)
    if len(chain) == 1:
        assert ours == best


@pytest.mark.parametrize("seed", range(40))
def test_schedules_reach_their_numbers(seed: int) -> None:
    r = random.Random(seed)
    chain = random_chain(r, n=r.randrange(1, 14), size=100)
    for plan in pareto(chain):
        assert simulate(chain, plan.actions) == (plan.peak_bytes, plan.extra_cost)


def test_front_is_strictly_monotone_and_ends_without_repeats() -> None:
    plans = pareto(even_chain(20))
    peaks, costs = zip(*points(plans), strict=True)
    assert list(peaks) == sorted(set(peaks)) and list(costs) == sorted(set(costs), reverse=True)
    assert costs[-1] == 0
    kinds = [action.kind for action in plans[-1].actions]
    assert kinds == ["forward_save"] * 20 + ["backward"] * 20


def test_budgets_choose_the_cheapest_that_fits() -> None:
    plans = pareto(even_chain(8))
    for plan in plans:
        assert best_under(plans, plan.peak_bytes) == plan
    assert best_under(plans, plans[0].peak_bytes - 1) is None
    assert best_under(plans, plans[-1].peak_bytes * 10) == plans[-1]


def test_equal_segments_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n equal segments the stretches differ in length only: work grows with n, not n^2."""
    merge, solved = chain._merge, []

    def counted(curves: Any) -> Any:
        solved.append(len(curves))
        return merge(curves)

    monkeypatch.setattr(chain, "_merge", counted)
    counts = []
    for length in (25, 50, 100):
        solved.clear()
        plans = pareto(even_chain(length))
        counts.append(len(solved))
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    assert len(plans) > 50
    assert simulate(even_chain(100), plans[40].actions) == points(plans)[40]


def test_cheaper_way_of_saving_is_taken_when_memory_allows() -> None:
    """A mask costs work, the full tensor bytes: each wins at its own budget."""
    full = Saving(saved_bytes=80, forward_peak_bytes=90, backward_peak_bytes=10)
    mask = Saving(saved_bytes=5, forward_peak_bytes=90, backward_peak_bytes=10, extra_cost=1)
    chain = [Segment(f"s{s}", 10, 10, 10, 60, 100, (full, mask)) for s in range(3)]
    plans = pareto(chain)
    assert plans[-1].extra_cost == 0
    assert {a.saving for a in plans[-1].actions if a.kind == "forward_save"} == {0}
    cheap = best_under(plans, 160)
    assert cheap is not None and 0 < cheap.extra_cost < 100
    assert any(a.saving == 1 for a in cheap.actions)


def test_root_of_n_beats_keeping_all() -> None:
    """Chen et al.: about 2 sqrt(n) held activations for at most one more forward."""
    chain = even_chain(36, activation=1000, saved=1000)
    plan = best_under(pareto(chain), 20_000)
    assert plan is not None and plan.extra_cost <= 36 * 100
    assert pareto(chain)[-1].peak_bytes > 70_000
