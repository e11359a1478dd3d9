"""Replay of a program on its arena, byte range by byte range.

It knows only which storages each step reads and writes and where they lie. Lifetimes, overlaps and
the peak are found here anew, so that a mistake of whatever chose the offsets shows up as a fault.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bpc.plan.model import PlanFault, Replay, Step, Storage


@dataclass(slots=True)
class _Owners:
    """Who wrote each byte last: disjoint intervals in ascending order."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def claim(self, name: str, start: int, end: int) -> None:
        """Bytes `start` .. `end` now hold what `name` wrote; others keep what is left of theirs."""
        low, high = bisect_right(self.ends, start), bisect_left(self.starts, end)
        kept: list[tuple[int, int, str]] = []
        if low < high and self.starts[low] < start:
            kept.append((self.starts[low], start, self.names[low]))
        kept.append((start, end, name))
        if low < high and self.ends[high - 1] > end:
            kept.append((end, self.ends[high - 1], self.names[high - 1]))
        self.starts[low:high] = [item[0] for item in kept]
        self.ends[low:high] = [item[1] for item in kept]
        self.names[low:high] = [item[2] for item in kept]

    def intruder(self, name: str, start: int, end: int) -> str | None:
        """A storage other than `name` that owns one of these bytes, or None if all are its own."""
        if start == end:
            return None
        low, high = bisect_right(self.ends, start), bisect_left(self.starts, end)
        reached = start
        for i in range(low, high):
            if self.names[i] != name:
                return self.names[i]
            if self.starts[i] > reached:
                return "nobody"
            reached = self.ends[i]
        return None if reached >= end else "nobody"


def replay(
    steps: Sequence[Step], storages: Mapping[str, Storage], arena_bytes: int | None = None
) -> Replay:
    """Run the reads and writes of a program in order and check every byte's owner.

    A storage is alive from a write to the last read before its next write that does not read it,
    from before the first step and to after the last one if it is persistent, and at least during
    the step that writes it. A step may read and write the same storage.

    Args:
        steps: in execution order.
        storages: every storage that a step names, and persistent ones that none does.
        arena_bytes: size that the arena was declared to have; None to accept any.

    Raises:
        PlanFault: a read before any write, a read of bytes that another storage wrote since, two
            live storages on one byte, or a byte outside the arena.
    """
    _check_inside(storages, arena_bytes)
    lives = _find_lives(steps, storages)
    _check_overlaps(lives, storages)
    touched = _check_owners(steps, storages)
    return _measure(lives, storages, len(steps), touched)


def _check_inside(storages: Mapping[str, Storage], arena_bytes: int | None) -> None:
    for name, place in storages.items():
        if place.nbytes < 0 or place.offset < 0:
            raise PlanFault(f"{name}: {place.nbytes} bytes at offset {place.offset}")
        if arena_bytes is not None and place.offset + place.nbytes > arena_bytes:
            end = place.offset + place.nbytes
            raise PlanFault(f"{name} ends at {end}, outside the arena of {arena_bytes} bytes")


def _find_lives(
    steps: Sequence[Step], storages: Mapping[str, Storage]
) -> list[tuple[int, int, str]]:
    """(first step, last step, storage) of each stretch in which the storage's bytes matter.

    Persistent storages live from -1 (before the program) to len(steps) (after it).
    """
    done: list[tuple[int, int, str]] = []
    current: dict[str, tuple[int, int]] = {}
    for name, place in storages.items():
        if place.persistent:
            done.append((-1, len(steps), name))
    for t, step in enumerate(steps):
        for name in dict.fromkeys((*step.reads, *step.writes)):
            if name not in storages:
                raise PlanFault(f"step {t} ({step.name}) names {name}, which has no place")
            if storages[name].persistent:
                continue
            if name in step.reads:
                if name not in current:
                    raise PlanFault(f"step {t} ({step.name}) reads {name} before any write")
                current[name] = (current[name][0], t)
            else:
                if name in current:
                    done.append((*current[name], name))
                current[name] = (t, t)
    done.extend((first, last, name) for name, (first, last) in current.items())
    return done


def _check_overlaps(lives: Sequence[tuple[int, int, str]], storages: Mapping[str, Storage]) -> None:
    """Sweep over time with the live storages in order of offset; neighbours must not overlap."""
    begins: dict[int, list[str]] = {}
    ends: dict[int, list[str]] = {}
    for first, last, name in lives:
        if storages[name].nbytes:
            begins.setdefault(first, []).append(name)
            ends.setdefault(last + 1, []).append(name)
    live: list[tuple[int, int, str]] = []
    for t in sorted({*begins, *ends}):
        for name in ends.get(t, ()):
            live.remove((storages[name].offset, storages[name].nbytes, name))
        for name in begins.get(t, ()):
            _admit(live, name, storages[name], t)


def _admit(live: list[tuple[int, int, str]], name: str, place: Storage, t: int) -> None:
    """Insert a storage among the live ones, which are disjoint and in ascending order."""
    entry = (place.offset, place.nbytes, name)
    at = bisect_left(live, entry)
    below = live[at - 1] if at else None
    above = live[at] if at < len(live) else None
    if below and below[0] + below[1] > place.offset:
        raise PlanFault(f"{below[2]} and {name} are both alive at step {t} and overlap")
    if above and place.offset + place.nbytes > above[0]:
        raise PlanFault(f"{name} and {above[2]} are both alive at step {t} and overlap")
    live.insert(at, entry)


def _check_owners(steps: Sequence[Step], storages: Mapping[str, Storage]) -> int:
    """Each read must find its own bytes. Returns the highest byte touched by a step, plus one."""
    owners = _Owners()
    touched = 0
    for name, place in storages.items():
        if place.persistent and place.nbytes:
            owners.claim(name, place.offset, place.offset + place.nbytes)
    for t, step in enumerate(steps):
        for name in step.reads:
            place = storages[name]
            intruder = owners.intruder(name, place.offset, place.offset + place.nbytes)
            if intruder is not None:
                raise PlanFault(
                    f"step {t} ({step.name}) reads {name}, whose bytes belong to {intruder}"
                )
        for name in step.writes:
            place = storages[name]
            if place.nbytes:
                owners.claim(name, place.offset, place.offset + place.nbytes)
        for name in (*step.reads, *step.writes):
            if storages[name].nbytes:
                touched = max(touched, storages[name].offset + storages[name].nbytes)
    for name, place in storages.items():
        if place.persistent:
            intruder = owners.intruder(name, place.offset, place.offset + place.nbytes)
            if intruder is not None:
                raise PlanFault(f"{name} is persistent but its bytes end up with {intruder}")
    return touched


def _measure(
    lives: Sequence[tuple[int, int, str]],
    storages: Mapping[str, Storage],
    count: int,
    touched: int,
) -> Replay:
    """The highest end and the largest live sum over all steps."""
    change = [0] * (count + 3)
    for first, last, name in lives:
        change[first + 1] += storages[name].nbytes
        change[last + 2] -= storages[name].nbytes
    total, largest, peak_step = 0, 0, -1
    for slot, delta in enumerate(change):
        total += delta
        if total > largest:
            largest, peak_step = total, slot - 1
    alive = {name for first, last, name in lives if first <= peak_step <= last}
    used = {name for _, _, name in lives if storages[name].nbytes}
    return Replay(
        peak_bytes=max((storages[n].offset + storages[n].nbytes for n in used), default=0),
        live_bytes=largest,
        peak_step=peak_step,
        alive_at_peak=tuple(sorted(alive, key=lambda n: (storages[n].offset, n))),
        touched_high_water=touched,
    )
