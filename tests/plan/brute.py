"""Naive searches over the states of a chain, written apart from the planner's recursion.

A state is: which values are held, which segments are saved and in which way, which backward comes
next, and where a running sweep stands. Both searches settle labels (cost, peak) in lexicographic
order, so the goal's labels are the whole Pareto front.

`sweeps` enumerates the planner's class: before the backward of segment k, unless k is saved and its
input, if read, is there, one sweep from the last held value at or before k. It saves k, or ends at
value k if k is saved; each segment of a sweep saves in any way or not. An input that the sweep made
from an unsaved segment is held on or dropped as the sweep leaves it; any other input may be dropped
only if the sweep saves the segment it enters in a way that does not read it; nothing else is
dropped before its segment's backward (an input that it read may be held on for the next).
`anything` enumerates every sequence of forward (input held or dropped),
forward_save, backward, and drops of any value or saved set at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bpc.plan.model import Segment


class State(NamedTuple):
    held: frozenset[int]
    saved: tuple[int | None, ...]  # by segment: the way it is saved in
    following: int  # segment whose backward comes next; -1 when all are done
    head: int | None = None  # value at which a sweep stands
    loose: bool = False  # that value was made by this sweep from a segment that it did not save


Move = tuple[State, int, int]  # the next state, cost, bytes at the peak of the move
Moves = Callable[[Sequence[Segment], State], Iterator[Move]]


def bytes_of(segments: Sequence[Segment], state: State) -> int:
    n = len(segments)
    sizes = [s.input_bytes for s in segments] + [segments[-1].output_bytes]
    total = sum(sizes[v] for v in state.held)
    total += sum(
        segments[s].savings[way].saved_bytes for s, way in enumerate(state.saved) if way is not None
    )
    return total + (segments[state.following].gradient_bytes if 0 <= state.following < n - 1 else 0)


def front(segments: Sequence[Segment], moves: Moves) -> list[tuple[int, int]]:
    """The Pareto front of (peak, extra cost) in ascending order of peak."""
    n = len(segments)
    start = State(frozenset({0}), (None,) * n, n - 1)
    queue: list[tuple[int, int, int, State]] = [(0, bytes_of(segments, start), 0, start)]
    least: dict[State, int] = {}
    found: list[tuple[int, int]] = []
    count = 0
    unavoidable = sum(s.forward_cost for s in segments)
    while queue:
        cost, peak, _, state = heapq.heappop(queue)
        if (found and peak >= found[-1][0]) or peak >= least.get(state, peak + 1):
            continue
        least[state] = peak
        if state.following < 0:
            found.append((peak, cost - unavoidable))
            continue
        for after, more, high in moves(segments, state):
            count += 1
            heapq.heappush(queue, (cost + more, max(peak, high), count, after))
    return found[::-1]


def run_forward(segments: Sequence[Segment], state: State, s: int) -> Iterator[Move]:
    """Segment s from its held input: unsaved or in any way, its input held on or dropped."""
    segment = segments[s]
    base = bytes_of(segments, state)
    kept = state.held | {s + 1}
    lost = kept - {s}
    yield state._replace(held=kept), segment.forward_cost, base + segment.forward_peak_bytes
    high = base - segment.input_bytes + segment.dropping_peak_bytes
    yield state._replace(held=lost), segment.forward_cost, high
    for way, saving in enumerate(segment.savings):
        saved = (*state.saved[:s], way, *state.saved[s + 1 :])
        cost, high = segment.forward_cost + saving.extra_cost, base + saving.forward_peak_bytes
        yield state._replace(held=kept, saved=saved), cost, high
        yield state._replace(held=lost, saved=saved), cost, high


def run_backward(segments: Sequence[Segment], state: State) -> Iterator[Move]:
    k = state.following
    way = state.saved[k]
    if way is None:
        return
    saving = segments[k].savings[way]
    if saving.needs_input and k not in state.held:
        return
    if saving.needs_output and k + 1 not in state.held:
        return
    high = bytes_of(segments, state) + saving.backward_peak_bytes
    saved = (*state.saved[:k], None, *state.saved[k + 1 :])
    held = frozenset(v for v in state.held if v <= k)
    for left in {held, held - {k}}:
        yield State(left, saved, k - 1), 0, high


def sweeps(segments: Sequence[Segment], state: State) -> Iterator[Move]:
    """Moves of the planner's class."""
    k, head = state.following, state.head
    if head is None:
        yield from run_backward(segments, state)
        way = state.saved[k]
        if way is None or (segments[k].savings[way].needs_input and k not in state.held):
            start = max((value for value in state.held if value <= k), default=None)
            if start is not None:
                yield state._replace(head=start), 0, 0
        return
    if head == k and state.saved[k] is not None:
        yield state._replace(head=None, loose=False), 0, 0
        return
    for after, cost, high in run_forward(segments, state, head):
        saves = after.saved != state.saved
        if (saves and state.saved[head] is not None) or (head == k and not saves):
            continue
        way = after.saved[head]
        frees = saves and way is not None and not segments[head].savings[way].needs_input
        if head not in after.held and not (state.loose or frees):
            continue
        if head < k:
            yield after._replace(head=head + 1, loose=not saves), cost, high
        else:
            yield after._replace(head=None, loose=False), cost, high
            lost = after.held - {k + 1}
            yield after._replace(head=None, loose=False, held=lost), cost, high


def anything(segments: Sequence[Segment], state: State) -> Iterator[Move]:
    """Moves of any schedule at all."""
    for value in state.held:
        yield state._replace(held=state.held - {value}), 0, 0
        if value < len(segments):
            for after, cost, high in run_forward(segments, state, value):
                if state.saved[value] is None or after.saved == state.saved:
                    yield after, cost, high
    for s, way in enumerate(state.saved):
        if way is not None:
            yield state._replace(saved=(*state.saved[:s], None, *state.saved[s + 1 :])), 0, 0
    yield from run_backward(segments, state)
