"""Packing: never an overlap, never below the bound, the bound reached where it is known to be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpc.plan.arena import bound_peak, pack, peak
from bpc.plan.model import Buffer
from bpc.plan.skyline import Block, search_offsets

buffers_strategy = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 20), st.integers(0, 10)), max_size=14
).map(lambda rows: [Buffer(f"b{i}", n, first, first + d) for i, (n, first, d) in enumerate(rows)])


def assert_disjoint(buffers: list[Buffer], offsets: dict[str, int]) -> None:
    for i, a in enumerate(buffers):
        for b in buffers[:i]:
            together = a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes
            if together:
                x, y = offsets[a.name], offsets[b.name]
                assert x + a.nbytes <= y or y + b.nbytes <= x, f"{a} at {x}, {b} at {y}"


def tile(r: random.Random, launches: int, height: int, count: int) -> list[Buffer]:
    """Cut a full rectangle into `count` buffers: their best packing is exactly `height` high."""
    tiles = [(0, launches, height)]
    while len(tiles) < count:
        i = r.choices(range(len(tiles)), [(t[1] - t[0]) * t[2] for t in tiles])[0]
        first, end, size = tiles.pop(i)
        if r.random() < 0.5 and end - first > 1:
            cut = r.randrange(first + 1, end)
            tiles += [(first, cut, size), (cut, end, size)]
        elif size > 1:
            cut = r.randrange(1, size)
            tiles += [(first, end, cut), (first, end, size - cut)]
        else:
            tiles.append((first, end, size))
    r.shuffle(tiles)
    return [Buffer(f"t{i}", n, first, end - 1) for i, (first, end, n) in enumerate(tiles)]


def training_step(layers: int, r: random.Random) -> list[Buffer]:
    """Parameters throughout, activations from forward to backward, gradients, short workspaces."""
    end = 2 * layers + 2
    made = []
    for i in range(layers):
        size, back = r.randrange(1, 4000) * 4, end - 2 - i
        made.append(Buffer(f"w{i}", r.randrange(1, 9000) * 4, 0, end))
        made.append(Buffer(f"x{i}", size, i, back))
        made.append(Buffer(f"tmp{i}", r.randrange(1, 3000) * 4, i, i))
        made.append(Buffer(f"dw{i}", made[-3].nbytes, back, end))
        made.append(Buffer(f"dx{i}", size, back - 1, back))
    return made


@settings(max_examples=200, deadline=None)
@given(buffers_strategy, st.sampled_from([1, 4, 64]), st.integers(0, 200))
def test_offsets_are_aligned_disjoint_and_repeatable(
    buffers: list[Buffer], alignment: int, base: int
) -> None:
    offsets = pack(buffers, alignment, base)
    assert list(offsets) == [buffer.name for buffer in buffers]
    assert all(o % alignment == 0 and o >= base for o in offsets.values())
    assert_disjoint(buffers, offsets)
    assert offsets == pack(buffers, alignment, base)
    if base == 0:
        assert peak(buffers, offsets) >= bound_peak(buffers, alignment)


def smallest_peak(blocks: list[Block]) -> int:
    """Every order, each block at the lowest place left: one of them is the best packing."""

    def extend(placed: list[tuple[Block, int]], left: list[Block]) -> int:
        if not left:
            return max(o + b.size for b, o in placed)
        best = 1 << 30
        for block in left:
            over = [
                (o, o + b.size)
                for b, o in placed
                if b.first <= block.last and block.first <= b.last
            ]
            level = max((end for _, end in over), default=0)
            rest = [b for b in left if b is not block]
            best = min(best, extend([*placed, (block, level)], rest))
        return best

    return extend([], blocks)


@pytest.mark.parametrize("seed", range(60))
def test_search_is_exact_on_small_problems(seed: int) -> None:
    r = random.Random(seed)
    blocks = []
    for i in range(r.randrange(2, 7)):
        first = r.randrange(8)
        blocks.append(Block(i, r.randrange(1, 9), first, first + r.randrange(5)))
    best = smallest_peak(blocks)
    found = search_offsets(blocks, best, best + 1, 4000)
    assert found is not None
    assert max(o + b.size for o, b in zip(found, blocks, strict=True)) == best
    named = [Buffer(str(b.index), b.size, b.first, b.last) for b in blocks]
    assert_disjoint(named, {str(b.index): o for b, o in zip(blocks, found, strict=True)})
    assert search_offsets(blocks, best - 1, best, 4000) is None
    assert peak(named, pack(named, 1)) == best


def test_search_beats_greedy_on_tilings() -> None:
    """Full rectangles leave no slack at all; most of these are missed by every greedy order."""
    greedy = exact = 0
    for seed in range(20):
        buffers = tile(random.Random(seed), 40, 64_000, 26)
        assert bound_peak(buffers, 1) == 64_000
        greedy += peak(buffers, pack(buffers, 1, nodes=0)) == 64_000
        offsets = pack(buffers, 1, nodes=6000)
        assert_disjoint(buffers, offsets)
        exact += peak(buffers, offsets) == 64_000
    assert exact >= 18 and greedy <= 12, (exact, greedy)


@pytest.mark.parametrize("seed", range(5))
def test_training_steps_are_packed_without_loss(seed: int) -> None:
    buffers = training_step(40, random.Random(seed))
    offsets = pack(buffers)
    assert_disjoint(buffers, offsets)
    units = [Buffer(b.name, -(-b.nbytes // 64), b.first, b.last) for b in buffers]
    assert -(-peak(buffers, offsets) // 64) == bound_peak(units, 1)


def test_enough_stops_early_and_empty_buffers_cost_nothing() -> None:
    buffers = tile(random.Random(3), 40, 64_000, 26)
    offsets = pack(buffers, 1, enough_bytes=80_000)
    assert 64_000 <= peak(buffers, offsets) <= 80_000
    nothing = [Buffer("a", 0, 0, 5), Buffer("b", 0, 2, 2)]
    assert pack(nothing, 64, 100) == {"a": 128, "b": 128}
    assert pack([]) == {} and peak([], {}) == 0 and bound_peak([]) == 0


def test_peak_is_exact_and_not_rounded_up() -> None:
    buffers = [Buffer("a", 100, 0, 3), Buffer("b", 7, 2, 4)]
    offsets = pack(buffers)
    assert peak(buffers, offsets) in (135, 164)
    assert bound_peak(buffers) == 135


def test_a_long_part_is_searched_without_deep_recursion() -> None:
    r = random.Random(0)
    buffers = [
        Buffer(f"b{i}", r.randrange(1, 50), i // 3, i // 3 + r.randrange(1, 9)) for i in range(1500)
    ]
    offsets = pack(buffers, 1, nodes=400)
    assert_disjoint(buffers[:300], offsets)
    assert peak(buffers, offsets) >= bound_peak(buffers, 1)
