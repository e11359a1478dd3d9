"""Exact search for arena offsets: can these blocks be packed below a given height?

Slide all blocks of a packing down as far as they go: each then rests on the bottom or on another
block, so the packing can be built in order of offset, every block placed at its lowest possible
offset. The search builds packings in that order and cuts a branch when, at some time, the lowest
offset that an unplaced block can still get plus all that is unplaced exceeds the height. When the
unplaced blocks fall apart in time, each part is searched alone, and a part that fails takes back
the placement that split it off. Source: the canonical order, the floors and the decomposition of
MiniMalloc (Moffitt, ASPLOS 2023), on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_FAR = np.int64(2**62)
HALVINGS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """`size` units from launch `first` to `last`; `index` is the caller's."""

    index: int
    size: int
    first: int
    last: int

    @property
    def span(self) -> int:
        """Number of launches."""
        return self.last - self.first + 1


def search_offsets(blocks: Sequence[Block], goal: int, height: int, nodes: int) -> list[int] | None:
    """Look for a packing lower than `height`: first at the goal, then by halving the distance.

    Args:
        blocks: of positive sizes.
        goal: a height that would do, at least the largest live sum; reaching it ends the search.
        height: of a packing that is known.
        nodes: placements tried in all; three quarters of them at the goal.

    Returns:
        Offsets in the order of `blocks`, of the lowest packing found; None if none is lower.
    """
    problem = _Problem(blocks)
    by_width, by_area = problem.orders()
    best = _Search(problem, goal, by_width).run(nodes // 2)
    best = best or _Search(problem, goal, by_area).run(nodes // 4)
    if best:
        return best
    failed = goal
    for _ in range(HALVINGS):
        target = (failed + height) // 2
        if target == failed:
            break
        found = _Search(problem, target, by_width).run(nodes // 4 // HALVINGS)
        if found:
            best = found
            height = max(o + b.size for o, b in zip(found, blocks, strict=True))
        else:
            failed = target
    return best


class _Problem:
    """Blocks as arrays. Time is cut down to rows: the launches whose live set is maximal."""

    def __init__(self, blocks: Sequence[Block]):
        self.sizes = np.array([b.size for b in blocks], dtype=np.int64)
        self.spans = np.array([b.span for b in blocks], dtype=np.int64)
        first = np.array([b.first for b in blocks], dtype=np.int64)
        last = np.array([b.last for b in blocks], dtype=np.int64)
        times = _maximal_times(first, last)
        self.cover = (first <= times[:, None]) & (last >= times[:, None])
        self.begin = np.searchsorted(times, first)  # rows begin .. end - 1 of each block
        self.end = np.searchsorted(times, last, side="right")
        self.meets = (self.begin[:, None] < self.end) & (self.begin < self.end[:, None])
        self.load: Ints = self.cover @ self.sizes

    def orders(self) -> tuple[Ints, Ints]:
        """Ranks by which equal offsets are tried: the busiest time first, then width or area."""
        busy = np.where(self.cover, self.load[:, None], 0).max(axis=0)
        area = self.sizes * self.spans
        return _ranks(-area, -self.spans, -busy), _ranks(-self.spans, -area, -busy)


def _maximal_times(first: Ints, last: Ints) -> Ints:
    """Of each run of begins before an end, the last: every live set is within one of these."""
    begins, ends = np.unique(first), np.unique(last)
    next_end = np.searchsorted(ends, begins)
    chosen: Ints = begins[np.append(next_end[1:] != next_end[:-1], True)]
    return chosen


def _ranks(*keys: Ints) -> Ints:
    """Position of each block in the order by the last key, then the one before, ..."""
    ranks = np.empty(len(keys[0]), dtype=np.int64)
    ranks[np.lexsort(keys)] = np.arange(len(ranks))
    return ranks


@dataclass(frozen=True, slots=True)
class _Part:
    """Unplaced blocks connected in time, on rows begin .. begin + len(load) - 1."""

    blocks: Ints
    lowest: Ints  # offset of each block above the placed ones
    load: Ints  # unplaced units in each row
    begin: int
    level: int  # no block may start lower
    rank: int  # of the block placed last: equal offsets are taken in ascending rank
    choices: list[int]  # positions in `blocks`, the most promising last
    parent: int  # frame whose placement split it off


_Pending = tuple[_Part, "_Pending"] | None  # parts still to be solved, a linked list


@dataclass(slots=True)
class _Frame:
    """A part being searched: what is left to try, and what is tried now."""

    part: _Part
    left: list[int]
    pending: _Pending
    block: int = -1
    offset: int = 0


class _Search:
    """Depth first over placements, with an explicit stack."""

    def __init__(self, problem: _Problem, height: int, ranks: Ints):
        self.problem, self.height, self.ranks = problem, height, ranks

    def run(self, nodes: int) -> list[int] | None:
        """Offsets within the height; None if there are none or `nodes` placements did not do."""
        problem = self.problem
        every = np.arange(len(problem.sizes))
        root = self._open(every, np.zeros_like(every), problem.load, 0, 0, -1, -1)
        if root is None:
            return None
        stack = [_Frame(root, list(root.choices), None)]
        for _ in range(nodes):
            while stack and not stack[-1].left:
                del stack[stack[-1].part.parent + 1 :]
            if not stack:
                return None
            opened = self._place(stack[-1], len(stack) - 1)
            if opened is None:
                continue
            pending = stack[-1].pending
            for part in opened:  # the smallest ends up in front
                pending = (part, pending)
            if pending is None:
                return self._read(stack)
            part, rest = pending
            stack.append(_Frame(part, list(part.choices), rest))
        return None

    def _read(self, stack: list[_Frame]) -> list[int]:
        offsets = [0] * len(self.problem.sizes)
        for frame in stack:
            offsets[frame.block] = frame.offset
        return offsets

    def _place(self, frame: _Frame, at: int) -> list[_Part] | None:
        """Place the frame's next choice; the parts it leaves, largest first, or None: dead end."""
        problem, part = self.problem, frame.part
        chosen = frame.left.pop()
        block, offset = int(part.blocks[chosen]), int(part.lowest[chosen])
        frame.block, frame.offset = block, offset
        lowest, load = part.lowest.copy(), part.load.copy()
        top = offset + int(problem.sizes[block])
        np.maximum(lowest, top, out=lowest, where=problem.meets[block, part.blocks])
        begin, end = problem.begin[block] - part.begin, problem.end[block] - part.begin
        load[begin:end] -= problem.sizes[block]
        opened: list[_Part] = []
        for group in self._split(np.delete(np.arange(len(lowest)), chosen), part.blocks):
            blocks = part.blocks[group]
            low, high = int(problem.begin[blocks].min()), int(problem.end[blocks].max())
            rows = load[low - part.begin : high - part.begin]
            rank = int(self.ranks[block])
            found = self._open(blocks, lowest[group], rows, low, offset, rank, at)
            if found is None:
                return None
            opened.append(found)
        return sorted(opened, key=lambda p: -len(p.blocks))

    def _split(self, positions: Ints, blocks: Ints) -> list[Ints]:
        """Groups of positions whose blocks share no row with another group's."""
        if not len(positions):
            return []
        begin = self.problem.begin[blocks[positions]]
        order = np.argsort(begin, kind="stable")
        reach = np.maximum.accumulate(self.problem.end[blocks[positions]][order])
        cuts = np.flatnonzero(begin[order][1:] >= reach[:-1]) + 1
        return np.split(positions[order], cuts)

    def _open(
        self, blocks: Ints, lowest: Ints, load: Ints, begin: int, level: int, rank: int, parent: int
    ) -> _Part | None:
        """The part with its choices, or None if it cannot fit."""
        problem = self.problem
        floors = np.maximum(lowest, level)
        tops = floors + problem.sizes[blocks]
        if tops.max() > self.height:
            return None
        cover = problem.cover[begin : begin + len(load), blocks]
        row_floor = np.where(cover, floors, _FAR).min(axis=1)
        if ((row_floor + load > self.height) & (load > 0)).any():
            return None
        fits = (lowest >= level) & (lowest < tops.min())  # a block that fits below goes first
        fits &= (lowest > level) | (self.ranks[blocks] > rank)
        choices = np.flatnonzero(fits)
        order = np.lexsort((self.ranks[blocks[choices]], lowest[choices]))[::-1]
        ranked = choices[order].tolist()
        return _Part(blocks, lowest, load, begin, level, rank, ranked, parent) if ranked else None
