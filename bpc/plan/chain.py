"""Save or repeat along a chain of segments: every Pareto-optimal pair of peak and extra cost.

The chain. Value 0 enters segment 0, value s + 1 leaves segment s. The forward runs segments 0 to
n - 1, the backward n - 1 to 0. The program is a series of sweeps: before the backward of segment k,
unless k is saved already, one sweep starts at the last held value at or before k and runs the
segments from there to k. Each but the last of a sweep either saves nothing and keeps or drops its
input, or saves; the last saves. What is kept stays until the backward that reads it: an input held
past its sweep, saved bytes, an output that its backward reads too. The output of a saved segment is
held at least until the next segment is saved. An input that its backward reads may yet be dropped
as the sweep saves the segment, if the sweep made it from an unsaved one; a later sweep, just before
that backward, makes it again.

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
              and      run i .. j - 1 unsaved;  C(j, k) + bytes of value i;  C(i, j - 1)
              and      run i .. j - 1 unsaved, save j by o, drop value j;
                       C(j + 1, k) + bytes of value i and of o;  D(i, j, o)

where D(i, j, o) is C(i, j) with segment j saved: only value j is to be made for its backward, and
the saved bytes wait with the gradient. It obeys the same recursion and D(j, j, o) is the backward
alone. Of the third line j = k is allowed, with nothing between the save and D.

Fronts are exact: integers, pruned only where another point is no worse in both. Equal stretches of
segments share one front. Schedules outside the class (a held value dropped for a while and made
again, a repetition earlier than its backward needs it) can be better on uneven chains. Source: the
persistent schedules of Beaumont et al. 2019 (arXiv:1911.13214), here with transients by segment,
all budgets at once, several ways to save, and inputs that are made again for a saved segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import NamedTuple

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
    front = fronts.front(fronts.whole)
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
        return self.costs[self.peaks.searchsorted(budgets, side="right") - 1]


class _Stretch(NamedTuple):
    """Segments `first` .. `last`, from holding value `first` to the gradient of that value.

    `hold`: value `first` must survive it. `way`: -1, or the way in which segment `last` is saved
    already without its input, which is all that the stretch has to make for that backward.
    """

    first: int
    last: int
    hold: bool = False
    way: int = -1


@dataclass(frozen=True, slots=True)
class _Option:
    """One way through a stretch: `inner` runs above `above` held bytes, then `again` if any.

    `least_bytes` is the peak of all that is outside these two. `way` is how the segment before
    `inner` is saved, -1 if it is not.
    """

    least_bytes: int
    cost: int
    above: int
    inner: _Stretch | None
    again: _Stretch | None
    way: int


class _Fronts:
    """The fronts of all stretches of one chain, shorter ones first, equal ones once."""

    def __init__(self, segments: tuple[Segment, ...]):
        _check(segments)
        self.segments = segments
        self.whole = _Stretch(0, len(segments) - 1)
        self.kinds = _number_kinds(segments)
        self.detachable = [  # ways to save a segment whose input can be dropped and made again
            [way for way, saving in enumerate(s.savings) if saving.needs_input] for s in segments
        ]
        self.known: dict[tuple[object, ...], _Front] = {}
        self.holds = sorted({False, *(o.needs_output for s in segments for o in s.savings)})
        for length in range(1, len(segments) + 1):
            for first in range(len(segments) - length + 1):
                self._solve(first, first + length - 1)

    def front(self, stretch: _Stretch) -> _Front:
        """The front of a stretch."""
        return self.known[self._key(stretch)]

    def schedule(self, budget_bytes: int) -> tuple[Action, ...]:
        """The cheapest plan of the whole chain within a feasible budget, as actions."""
        done: list[Action] = []
        todo: list[Action | tuple[_Stretch, int]] = [(self.whole, budget_bytes)]
        while todo:
            item = todo.pop()
            if isinstance(item, Action):
                done.append(item)
            else:
                todo.extend(reversed(self._expand(*item)))
        return tuple(done)

    def _key(self, stretch: _Stretch) -> tuple[object, ...]:
        first, last, hold, way = stretch
        return (hold, way, last == self.whole.last, *self.kinds[first : last + 1])

    def _waiting(self, stretch: _Stretch) -> int:
        """Bytes that wait, from the start of a stretch, for the backward of its last segment."""
        segment = self.segments[stretch.last]
        gradient = 0 if stretch.last == self.whole.last else segment.gradient_bytes
        if stretch.way < 0:
            return gradient
        saving = segment.savings[stretch.way]
        output = segment.output_bytes if saving.needs_output else 0
        return gradient + saving.saved_bytes + output

    def _solve(self, first: int, last: int) -> None:
        for hold, way in product(self.holds, (*self.detachable[last], -1)):
            stretch = _Stretch(first, last, hold, way)
            key = self._key(stretch)
            if key not in self.known:
                self.known[key] = _merge([self._curve(o) for o in self._options(stretch)])

    def _options(self, stretch: _Stretch) -> list[_Option]:
        """Every first decision of a stretch, in a fixed order."""
        if stretch.first == stretch.last and stretch.way >= 0:
            return [self._finish(stretch)]
        ways = range(len(self.segments[stretch.first].savings))
        return [self._save(stretch, way) for way in ways] + self._cuts(stretch)

    def _finish(self, stretch: _Stretch) -> _Option:
        """The backward alone: the segment is saved and its input is there again."""
        segment = self.segments[stretch.last]
        held = segment.input_bytes + self._waiting(stretch)
        peak = held + segment.savings[stretch.way].backward_peak_bytes
        return _Option(peak, 0, 0, None, None, stretch.way)

    def _save(self, stretch: _Stretch, way: int) -> _Option:
        first, last, hold, _ = stretch
        segment = self.segments[first]
        saving = segment.savings[way]
        kept_input = segment.input_bytes if saving.needs_input or hold else 0
        kept_output = segment.output_bytes if saving.needs_output else 0
        gradient = 0 if first == self.whole.last else segment.gradient_bytes
        held = kept_input + saving.saved_bytes
        forward = segment.input_bytes + saving.forward_peak_bytes + self._waiting(stretch)
        backward = held + kept_output + gradient + saving.backward_peak_bytes
        inner = stretch._replace(first=first + 1, hold=saving.needs_output)
        peak = max(forward, backward)
        return _Option(peak, saving.extra_cost, held, inner if first < last else None, None, way)

    def _cuts(self, stretch: _Stretch) -> list[_Option]:
        """Run up to each cut unsaved; go on from there, or save one more without its input."""
        first, last, hold, _ = stretch
        segments, waiting = self.segments, self._waiting(stretch)
        held = segments[first].input_bytes
        highest, cost = segments[first].forward_peak_bytes, 0
        ways = self.detachable
        found: list[_Option] = []
        for cut in range(first + 1, last + 1):
            cost += segments[cut - 1].forward_cost
            if cut - 1 > first:
                highest = max(highest, segments[cut - 1].dropping_peak_bytes)
            least = held + highest + waiting
            inner, again = _Stretch(cut, last, False, stretch.way), _Stretch(first, cut - 1, hold)
            found.append(_Option(least, cost, held, inner, again, -1))
            if cut < last or stretch.way < 0:
                found.extend(self._detach(stretch, cut, way, least, cost) for way in ways[cut])
        return found

    def _detach(self, stretch: _Stretch, cut: int, way: int, least: int, cost: int) -> _Option:
        """Save the segment after a cut, drop its input and make that again for its backward."""
        first, last, hold, _ = stretch
        segment, saving = self.segments[cut], self.segments[cut].savings[way]
        held = self.segments[first].input_bytes
        peak = held + segment.input_bytes + saving.forward_peak_bytes + self._waiting(stretch)
        inner = stretch._replace(first=cut + 1, hold=saving.needs_output) if cut < last else None
        again = _Stretch(first, cut, hold, way)
        work, above = cost + saving.extra_cost, held + saving.saved_bytes
        return _Option(max(least, peak), work, above, inner, again, way)

    def _curve(self, option: _Option) -> tuple[Ints, Ints]:
        """Peaks and costs of all points that one option can reach (some of them dominated)."""
        fronts = []
        if option.inner:
            fronts.append((self.front(option.inner), option.above))
        if option.again:
            fronts.append((self.front(option.again), 0))
        if not fronts:
            return np.array([option.least_bytes]), np.array([option.cost])
        floor = max(option.least_bytes, *(int(f.peaks[0]) + above for f, above in fronts))
        if len(fronts) == 1:  # one of the two stretches
            front, above = fronts[0]
            first = int(front.peaks.searchsorted(floor - above, side="right")) - 1
            return np.maximum(front.peaks[first:] + above, floor), front.costs[first:] + option.cost
        (one, above), (two, _) = fronts
        peaks = np.concatenate((one.peaks + above, two.peaks))
        peaks.sort(kind="stable")
        first = max(int(peaks.searchsorted(floor, side="right")) - 1, 0)
        peaks = np.maximum(peaks[first:], floor)
        return peaks, one.cost_at(peaks - above) + two.cost_at(peaks) + option.cost

    def _expand(self, stretch: _Stretch, budget: int) -> list[Action | tuple[_Stretch, int]]:
        """The first decision of a stretch under a budget: actions and the stretches within."""
        front = self.front(stretch)
        at = int(front.peaks.searchsorted(budget, side="right")) - 1
        assert at >= 0, f"{stretch} does not fit {budget} bytes"
        option = self._options(stretch)[int(front.options[at])]
        inner = [(option.inner, budget - option.above)] if option.inner else []
        if option.again:
            return [*self._sweep(stretch.first, option), *inner, (option.again, budget)]
        first = stretch.first
        saving = self.segments[first].savings[option.way]
        keep = saving.needs_input or stretch.hold
        late: tuple[int, ...] = (first,) if keep and not stretch.hold else ()
        late += (first + 1,) if saving.needs_output else ()
        backward = Action("backward", first, late, option.way)
        if first == stretch.last and stretch.way >= 0:
            return [backward]
        early: tuple[int, ...] = () if keep else (first,)
        if not inner and not saving.needs_output:
            early = (*early, first + 1)
        return [Action("forward_save", first, early, option.way), *inner, backward]

    def _sweep(self, first: int, option: _Option) -> list[Action]:
        """The forwards of a cut: unsaved, the input of the first of them held."""
        assert option.again
        saves = option.way >= 0
        end = option.again.last + (not saves)
        sweep = [Action("forward", s, () if s == first else (s,)) for s in range(first, end)]
        if not saves:
            return sweep
        ends = option.inner is None and not self.segments[end].savings[option.way].needs_output
        drops = (end, end + 1) if ends else (end,)
        return [*sweep, Action("forward_save", end, drops, option.way)]


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
    for before, after in pairwise(segments):
        assert before.output_bytes == after.input_bytes, f"{before.name} | {after.name}: bytes"
    work = sum(s.forward_cost + max(o.extra_cost for o in s.savings) for s in segments)
    assert work * (len(segments) + 1) < 2**62, "costs overflow 64 bits"


__all__ = ["Action", "ChainPlan", "Saving", "Segment", "best_under", "pareto"]
