"""Offsets in one arena for buffers with known lifetimes.

The largest sum of buffers alive at one launch bounds every packing from below. Buffers that live
throughout lie at the bottom, which costs nothing; what is left falls apart in time and each part
is packed alone: greedily in several orders, and where that misses the bound by a search whose
effort is counted in nodes, never in seconds, so that the same buffers always get the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from bpc.plan.model import Buffer
from bpc.plan.skyline import Block, search_offsets

SEARCH_NODES = 4000

Order = Callable[[Block], tuple[int, ...]]
ORDERS: tuple[Order, ...] = (
    lambda block: (-block.size, -block.span, block.first),
    lambda block: (-block.span, -block.size, block.first),
    lambda block: (-block.size * block.span, block.first),
    lambda block: (block.first, -block.size),
    lambda block: (-block.last, -block.size),
)


def pack(
    buffers: Sequence[Buffer],
    alignment: int = 64,
    base: int = 0,
    *,
    nodes: int = SEARCH_NODES,
    enough_bytes: int = 0,
) -> dict[str, int]:
    """Give each buffer an offset so that buffers alive at the same launch do not overlap.

    Args:
        buffers: with distinct names; a caller resolves aliases and in-place results first.
        alignment: of every offset, in bytes.
        base: lowest offset, in bytes; rounded up to the alignment.
        nodes: effort of the search in each part where greedy orders miss the bound; 0 for none.
        enough_bytes: a size of the arena that is as good as any smaller one.

    Returns:
        Offset by name, in bytes, in the order of `buffers`. A buffer of no bytes lies at the base.
    """
    assert alignment > 0 and base >= 0, f"alignment {alignment}, base {base}"
    assert len({buffer.name for buffer in buffers}) == len(buffers), "two buffers of one name"
    blocks = [
        Block(index, -(-buffer.nbytes // alignment), buffer.first, buffer.last)
        for index, buffer in enumerate(buffers)
        if buffer.nbytes
    ]
    start = -(-base // alignment)
    found: dict[int, int] = {}
    _pack_parts(blocks, start, enough_bytes // alignment, nodes, found)
    return {
        buffer.name: found.get(index, start) * alignment for index, buffer in enumerate(buffers)
    }


def peak(buffers: Sequence[Buffer], offsets: Mapping[str, int]) -> int:
    """The exact size of the arena in bytes: the highest end of a buffer, not rounded up."""
    return max((offsets[buffer.name] + buffer.nbytes for buffer in buffers), default=0)


def bound_peak(buffers: Sequence[Buffer], alignment: int = 64) -> int:
    """A number of bytes that no packing from offset 0 can go below.

    At any launch the live buffers lie above each other, each in whole units of the alignment,
    except that the topmost may end within its last unit.
    """
    best = 0
    for launch in {buffer.first for buffer in buffers if buffer.nbytes}:
        live = [b.nbytes for b in buffers if b.nbytes and b.first <= launch <= b.last]
        padding = [-size % alignment for size in live]
        best = max(best, sum(live) + sum(padding) - max(padding))
    return best


def _pack_parts(
    blocks: list[Block], floor: int, enough: int, nodes: int, found: dict[int, int]
) -> None:
    """Pack from `floor` (in units) up: parts that never meet one by one, full-length ones first.

    A block as long as its part can be slid to the bottom of any packing without raising its top.
    """
    for part in _split(blocks):
        first, last = min(b.first for b in part), max(b.last for b in part)
        whole = [block for block in part if block.first == first and block.last == last]
        level = floor
        for block in whole:
            found[block.index] = level
            level += block.size
        rest = [block for block in part if block.first != first or block.last != last]
        if whole:
            _pack_parts(rest, level, enough, nodes, found)
        else:
            for index, offset in _pack_part(rest, enough - floor, nodes).items():
                found[index] = floor + offset


def _split(blocks: list[Block]) -> list[list[Block]]:
    """Groups of blocks such that no block of one is alive together with a block of another."""
    parts: list[list[Block]] = []
    end = -1
    for block in sorted(blocks, key=lambda b: (b.first, b.last, b.index)):
        if not parts or block.first > end:
            parts.append([])
            end = block.last
        parts[-1].append(block)
        end = max(end, block.last)
    return parts


def _pack_part(part: list[Block], enough: int, nodes: int) -> dict[int, int]:
    """Offsets in units by block index: the first that meets the goal, else the lowest."""
    goal = max(_bound(part), enough)
    meets = _find_neighbours(part)
    best: list[int] = []
    height = -1
    for best_fit, key in product((True, False), ORDERS):
        offsets = _place(part, _sort(part, key), meets, best_fit)
        top = max(o + b.size for o, b in zip(offsets, part, strict=True))
        if height < 0 or top < height:
            best, height = offsets, top
        if height <= goal:
            break
    else:
        best = (search_offsets(part, goal, height, nodes) if nodes else None) or best
    return {block.index: offset for block, offset in zip(part, best, strict=True)}


def _sort(part: list[Block], key: Order) -> list[int]:
    return sorted(range(len(part)), key=lambda i: (*key(part[i]), part[i].index))


def _bound(part: list[Block]) -> int:
    """The largest sum of sizes alive at one time; it is reached where a block begins."""
    changes: dict[int, int] = {}
    for block in part:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    load = best = 0
    for time in sorted(changes):
        load += changes[time]
        best = max(best, load)
    return best


def _find_neighbours(part: list[Block]) -> list[list[int]]:
    """For each block the positions of those alive at the same time as it."""
    meets: list[list[int]] = [[] for _ in part]
    active: list[int] = []
    for i in sorted(range(len(part)), key=lambda i: part[i].first):
        active = [j for j in active if part[j].last >= part[i].first]
        for j in active:
            meets[i].append(j)
            meets[j].append(i)
        active.append(i)
    return meets


def _place(
    part: list[Block], order: list[int], meets: list[list[int]], best_fit: bool
) -> list[int]:
    """Place in `order`, each into the tightest gap that holds it (or the lowest), else on top."""
    offsets = [-1] * len(part)
    for i in order:
        size = part[i].size
        chosen, tightest, level = -1, 0, 0
        for start, end in sorted((offsets[j], offsets[j] + part[j].size) for j in meets[i]):
            if start < 0:
                continue
            gap = start - level
            if gap >= size and (chosen < 0 or gap < tightest):
                chosen, tightest = level, gap
                if not best_fit:
                    break
            level = max(level, end)
        offsets[i] = chosen if chosen >= 0 else level
    return offsets
