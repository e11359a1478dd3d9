"""Save or repeat along a chain of segments: every Pareto-optimal pair of peak and extra cost.

The chain. Value 0 enters segment 0, value s + 1 leaves segment s. The forward runs segments 0 to
n - 1, the backward n - 1 to 0. The program is a series of sweeps: before the backward of segment k,
unless k is saved already, one sweep starts at the last held value at or before k and runs the
segments from there to k. Each but the last of a sweep either saves nothing and keeps or drops its
input, or saves; the last saves. What is kept stays until the backward that reads it: an input held
past its sweep, saved bytes, an output that its backward reads too. The output of a saved segment is
held at least until the next segment is saved.

Memory. A moment's bytes are the held values, the saved bytes, the gradient of the output of the
segment whose backward comes next (of the last segment: not counted) and the bytes of the running
action as `Segment` and `Saving` define them. Everything else (parameters, their gradients,
optimizer state) is constant here and for the caller to add.

Cost. Every segment's forward runs at least once; the extra cost is that of all further runs plus
the `extra_cost` of the ways of saving.

Let C(i, k) be the Pareto front of turning value i and the gradient of value k + 1 into the
gradient of value i. Over all ways o to save and all cuts j, where a front plus bytes is that front
with every peak so much higher:

    C(i, k) = best of  save i by o, hold it;  C(i + 1, k) + held bytes;  backward of i
              and      run i .. j - 1 unsaved; C(j, k) + bytes of value i;  C(i, j - 1)

Fronts are exact: integers, pruned only where another point is no worse in both. Equal stretches of
segments share one front. Source: the persistent schedules of Beaumont et al. 2019
(arXiv:1911.13214), here with transients by segment, all budgets at once and several ways to save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bpc.plan.model import Action, Saving, Segment

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A point of the front: `peak_bytes` of the chain's memory for `extra_cost` repeated work."""

    peak_bytes: int
    extra_cost: int
    _fronts: _Fronts = field(repr=False, compare=False)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The schedule in execution order (made anew at each call)."""
        return self._fronts.schedule(self.peak_bytes)


def pareto(segments: Sequence[Segment]) -> tuple[ChainPlan, ...]:
    """All Pareto-optimal plans of a chain in ascending order of peak; the last repeats nothing.

    See the module's text for the memory model and the class of plans.
    """
    fronts = _Fronts(tuple(segments))
    front = fronts.front(0, len(segments) - 1, False)
    return tuple(
        ChainPlan(int(peak), int(cost), fronts)
        for peak, cost in zip(front.peaks, front.costs, strict=True)
    )


def best_under(plans: Sequence[ChainPlan], budget_bytes: int) -> ChainPlan | None:
    """The cheapest plan whose peak is within the budget; None if none is."""
    fitting = [plan for plan in plans if plan.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda plan: (plan.extra_cost, plan.peak_bytes), default=None)


@dataclass(frozen=True, slots=True)
class _Front:
    """Peaks ascending, costs descending, and by which option each point is reached."""

    peaks: Ints
    costs: Ints
    options: NDArray[np.int32]

    def cost_at(self, budgets: Ints) -> Ints:
        """Least cost for each budget, none of them below the least peak."""
        return self.costs[np.searchsorted(self.peaks, budgets, side="right") - 1]


@dataclass(frozen=True, slots=True)
class _Option:
    """One way through a stretch: `inner` runs above `above` held bytes, then `again` if any.

    `least_bytes` is the peak of all that is outside the two inner stretches.
    """

    least_bytes: int
    cost: int
    above: int
    inner: tuple[int, int, bool] | None
    again: tuple[int, int, bool] | None
    cut: int  # first segment of the inner stretch if this is a cut, else -1
    saving: int


class _Fronts:
    """The fronts of all stretches of one chain, shorter ones first, equal ones once."""

    def __init__(self, segments: tuple[Segment, ...]):
        _check(segments)
        self.segments = segments
        self.kinds = _number_kinds(segments)
        self.known: dict[tuple[object, ...], _Front] = {}
        self.holds = sorted({False, *(o.needs_output for s in segments for o in s.savings)})
        for length in range(1, len(segments) + 1):
            for first in range(len(segments) - length + 1):
                for hold in self.holds:
                    self._solve(first, first + length - 1, hold)

    def front(self, first: int, last: int, hold: bool) -> _Front:
        """The front of a stretch; `hold`: its input must survive it."""
        return self.known[self._key(first, last, hold)]

    def schedule(self, budget_bytes: int) -> tuple[Action, ...]:
        """The cheapest plan of the whole chain within a feasible budget, as actions."""
        done: list[Action] = []
        todo: list[Action | tuple[int, int, bool, int]] = []
        todo.append((0, len(self.segments) - 1, False, budget_bytes))
        while todo:
            item = todo.pop()
            if isinstance(item, Action):
                done.append(item)
            else:
                todo.extend(reversed(self._expand(*item)))
        return tuple(done)

    def _key(self, first: int, last: int, hold: bool) -> tuple[object, ...]:
        return (hold, last == len(self.segments) - 1, *self.kinds[first : last + 1])

    def _gradient(self, last: int) -> int:
        """Bytes of the gradient that a stretch waits for with its backward."""
        return 0 if last == len(self.segments) - 1 else self.segments[last].gradient_bytes

    def _solve(self, first: int, last: int, hold: bool) -> None:
        key = self._key(first, last, hold)
        if key not in self.known:
            options = self._options(first, last, hold)
            self.known[key] = _merge([self._curve(option) for option in options])

    def _options(self, first: int, last: int, hold: bool) -> list[_Option]:
        """Every first decision of a stretch, in a fixed order."""
        ways = range(len(self.segments[first].savings))
        saves = [self._save(first, last, hold, way) for way in ways]
        return saves + self._cuts(first, last, hold)

    def _save(self, first: int, last: int, hold: bool, way: int) -> _Option:
        segment = self.segments[first]
        saving = segment.savings[way]
        kept_input = segment.input_bytes if saving.needs_input or hold else 0
        kept_output = segment.output_bytes if saving.needs_output else 0
        held = kept_input + saving.saved_bytes
        forward = segment.input_bytes + saving.forward_peak_bytes + self._gradient(last)
        backward = held + kept_output + self._gradient(first) + saving.backward_peak_bytes
        inner = (first + 1, last, saving.needs_output) if first < last else None
        return _Option(max(forward, backward), saving.extra_cost, held, inner, None, -1, way)

    def _cuts(self, first: int, last: int, hold: bool) -> list[_Option]:
        segments, gradient = self.segments, self._gradient(last)
        held = segments[first].input_bytes
        highest = segments[first].forward_peak_bytes
        cost = 0
        found: list[_Option] = []
        for cut in range(first + 1, last + 1):
            cost += segments[cut - 1].forward_cost
            if cut - 1 > first:
                highest = max(highest, segments[cut - 1].dropping_peak_bytes)
            again = (first, cut - 1, hold)
            least = held + highest + gradient
            found.append(_Option(least, cost, held, (cut, last, False), again, cut, -1))
        return found

    def _curve(self, option: _Option) -> tuple[Ints, Ints]:
        """Peaks and costs of all points that one option can reach (some of them dominated)."""
        fronts = []
        if option.inner:
            fronts.append((self.front(*option.inner), option.above))
        if option.again:
            fronts.append((self.front(*option.again), 0))
        if not fronts:
            return np.array([option.least_bytes]), np.array([option.cost])
        floor = max(option.least_bytes, *(int(f.peaks[0]) + above for f, above in fronts))
        if len(fronts) == 1:
            front, above = fronts[0]
            first = int(np.searchsorted(front.peaks, floor - above, side="right")) - 1
            return np.maximum(front.peaks[first:] + above, floor), front.costs[first:] + option.cost
        (one, above), (two, _) = fronts
        peaks = np.concatenate((one.peaks + above, two.peaks))
        peaks.sort(kind="stable")
        first = max(int(np.searchsorted(peaks, floor, side="right")) - 1, 0)
        peaks = np.maximum(peaks[first:], floor)
        return peaks, one.cost_at(peaks - above) + two.cost_at(peaks) + option.cost

    def _expand(
        self, first: int, last: int, hold: bool, budget: int
    ) -> list[Action | tuple[int, int, bool, int]]:
        """The first decision of a stretch under a budget: actions and the stretches within."""
        front = self.front(first, last, hold)
        at = int(np.searchsorted(front.peaks, budget, side="right")) - 1
        assert at >= 0, f"segments {first} to {last} do not fit {budget} bytes"
        option = self._options(first, last, hold)[int(front.options[at])]
        inner = [(*option.inner, budget - option.above)] if option.inner else []
        if option.again:
            sweep = [
                Action("forward", s, drops=() if s == first else (s,))
                for s in range(first, option.cut)
            ]
            return [*sweep, *inner, (*option.again, budget)]
        saving = self.segments[first].savings[option.saving]
        keep = saving.needs_input or hold
        early = () if keep else (first,)
        if not inner and not saving.needs_output:
            early = (*early, first + 1)
        late = ((first,) if keep and not hold else ()) + (
            (first + 1,) if saving.needs_output else ()
        )
        return [
            Action("forward_save", first, early, option.saving),
            *inner,
            Action("backward", first, late, option.saving),
        ]


def _merge(curves: list[tuple[Ints, Ints]]) -> _Front:
    """The points of all options that no other point beats; ties go to the earlier option."""
    peaks = np.concatenate([curve[0] for curve in curves])
    costs = np.concatenate([curve[1] for curve in curves])
    sizes = [len(curve[0]) for curve in curves]
    order = np.argsort(peaks, kind="stable")  # merges the ascending runs
    costs = costs[order]
    least = np.minimum.accumulate(costs)
    better = np.flatnonzero(np.concatenate([[True], costs[1:] < least[:-1]]))
    peaks = peaks[order][better]
    last = np.append(peaks[1:] != peaks[:-1], True)  # the cheapest of each peak
    chosen = np.searchsorted(np.cumsum(sizes), order[better][last], side="right")
    return _Front(peaks[last], costs[better][last], chosen.astype(np.int32))


def _number_kinds(segments: Sequence[Segment]) -> tuple[int, ...]:
    """The same small number for segments that differ in name only."""
    numbers: dict[Segment, int] = {}
    return tuple(numbers.setdefault(replace(s, name=""), len(numbers)) for s in segments)


def _check(segments: Sequence[Segment]) -> None:
    assert segments, "a chain has at least one segment"
    for before, after in zip(segments, segments[1:], strict=False):
        assert before.output_bytes == after.input_bytes, f"{before.name} | {after.name}: bytes"
    work = sum(s.forward_cost + max(o.extra_cost for o in s.savings) for s in segments)
    assert work * (len(segments) + 1) < 2**62, "costs overflow 64 bits"


__all__ = ["Action", "ChainPlan", "Saving", "Segment", "best_under", "pareto"]
