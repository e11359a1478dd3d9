"""The replay finds every planted fault and measures what is alive."""

from __future__ import annotations

import random

import pytest

from bpc.plan.liveness import replay
from bpc.plan.model import PlanFault, Step, Storage

CHAIN = [
    Step("load", (), ("x",)),
    Step("double", ("x",), ("y",)),
    Step("sum", ("y", "w"), ("z",)),
]
PLACES = {
    "w": Storage(64, 0, persistent=True),
    "x": Storage(100, 64),
    "y": Storage(100, 192),
    "z": Storage(4, 64),
}


def test_measures_peak_and_the_tensors_alive_there() -> None:
    result = replay(CHAIN, PLACES, arena_bytes=292)
    assert result.peak_bytes == 292
    assert result.live_bytes == 264 and result.peak_step == 1
    assert result.alive_at_peak == ("w", "x", "y")
    assert result.touched_high_water == 292


def test_untouched_persistent_storage_counts_but_is_not_touched() -> None:
    result = replay(CHAIN, PLACES | {"m": Storage(8, 1000, persistent=True)})
    assert result.peak_bytes == 1008
    assert result.touched_high_water == 292


def test_in_place_is_one_storage() -> None:
    steps = [Step("a", (), ("x",)), Step("b", ("x",), ("x",)), Step("c", ("x",), ())]
    result = replay(steps, {"x": Storage(10, 0)})
    assert result.peak_bytes == result.live_bytes == 10


def test_a_second_life_may_lie_around_another_storage() -> None:
    steps = [
        Step("a", (), ("x",)), Step("b", ("x",), ()),
        Step("c", (), ("y",)), Step("d", ("y",), ()),
        Step("e", (), ("x",)), Step("f", ("x",), ()),
    ]  # fmt: skip
    assert replay(steps, {"x": Storage(10, 0), "y": Storage(10, 5)}).peak_bytes == 15


def test_empty_storages_and_programs() -> None:
    assert replay([], {}).peak_bytes == 0
    steps = [Step("a", (), ("x",)), Step("b", ("x",), ())]
    assert replay(steps, {"x": Storage(0, 500)}).peak_bytes == 0


FAULTS = {
    "reads u before any write": ([Step("a", ("u",), ())], {"u": Storage(4, 0)}),
    "no place": ([Step("a", ("u",), ())], {}),
    "both alive": (CHAIN, PLACES | {"y": Storage(100, 163)}),
    "outside the arena": (CHAIN, PLACES | {"z": Storage(4, 292)}),
    "at offset -1": (CHAIN, PLACES | {"z": Storage(4, -1)}),
    "w and x are both alive": ([Step("a", (), ("x",))], {"w": PLACES["w"], "x": Storage(8, 60)}),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults(message: str) -> None:
    steps, places = FAULTS[message]
    with pytest.raises(PlanFault, match=message):
        replay(steps, places, arena_bytes=292)


def test_stale_read_is_found_even_if_its_writer_ran_again_elsewhere() -> None:
    """x dies at step 1, z takes its bytes, and a late reader of x must not be served."""
    steps = [*CHAIN, Step("late", ("x",), ())]
    with pytest.raises(PlanFault):
        replay(steps, PLACES)


def naive_faults(steps: list[Step], places: dict[str, Storage]) -> bool:
    """Byte by byte: every byte remembers its writer, every read must find its own."""
    owner: dict[int, str] = {}
    for name, place in places.items():
        if place.persistent:
            owner.update(dict.fromkeys(range(place.offset, place.offset + place.nbytes), name))
    for step in steps:
        for name in step.reads:
            place = places[name]
            if any(owner.get(b) != name for b in range(place.offset, place.offset + place.nbytes)):
                return True
        for name in step.writes:
            place = places[name]
            owner.update(dict.fromkeys(range(place.offset, place.offset + place.nbytes), name))
    return any(
        owner.get(b) != name
        for name, place in places.items()
        if place.persistent
        for b in range(place.offset, place.offset + place.nbytes)
    )


@pytest.mark.parametrize("seed", range(200))
def test_never_accepts_what_a_byte_map_refuses(seed: int) -> None:
    r = random.Random(seed)
    names = [f"t{i}" for i in range(6)]
    span = r.choice([8, 40, 150])
    places = {n: Storage(r.randrange(8), r.randrange(span), r.random() < 0.2) for n in names}
    steps = []
    for t in range(8):
        reads = tuple(r.sample(names, r.choice([0, 1, 1, 2])))
        steps.append(Step(f"s{t}", reads, tuple(r.sample(names, r.choice([1, 1, 2])))))
    try:
        result = replay(steps, places)
    except PlanFault:
        return
    assert not naive_faults(steps, places)
    assert result.peak_bytes >= result.live_bytes
    assert result.touched_high_water <= result.peak_bytes
