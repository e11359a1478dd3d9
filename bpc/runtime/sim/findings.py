"""Turns the runtime's raw findings into reports: addresses into lines, offsets into names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bpc.runtime.sim.buffers import buffer_in_slot
from bpc.runtime.sim.native import RawReport
from bpc.runtime.sim.reports import Kind, Party, Place, Report, Target
from bpc.runtime.sim.symbols import AddressMap, PlacedArray

KINDS = (*Kind, Kind.DIVERGENT_BARRIER)  # in the order of the runtime's enumeration, from 1
_TWO_ADDRESSES = len(Kind) + 1
ACCESSES = ("read", "write", "atomic")
NO_REGION, SHARED_REGION = -1, -2
_NOBODY = 0xFFFFFFFF
_ABOUT_MEMORY = {
    Kind.RACE,
    Kind.OUT_OF_BOUNDS,
    Kind.UNINITIALISED,
    Kind.MISALIGNED,
    Kind.READ_ONLY,
}


@dataclass(frozen=True, slots=True)
class Launched:
    """What was launched: where its findings get their names from."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    addresses: AddressMap
    shared: tuple[PlacedArray, ...]


def describe(found: Sequence[RawReport], launch: Launched) -> tuple[Report, ...]:
    """The reports of one launch."""
    addresses = [pc for raw in found for pc in raw.pc]
    chains = launch.addresses.chains(addresses)
    return tuple(_report(raw, launch, chains) for raw in found if not _is_one_barrier(raw, chains))


def _is_one_barrier(raw: RawReport, chains: Mapping[int, tuple[Place, ...]]) -> bool:
    """Whether two addresses are copies that the compiler made of one barrier of the source.

    Both have the same line. Copies come from the same callers; a copy may have lost its callers.
    """
    if raw.kind != _TWO_ADDRESSES:
        return False
    one, other = (chains[address] for address in raw.pc)
    return one == other or not (one and other)


def _report(raw: RawReport, launch: Launched, chains: Mapping[int, tuple[Place, ...]]) -> Report:
    kind = KINDS[raw.kind - 1]
    about_memory = kind in _ABOUT_MEMORY
    return Report(
        kind,
        raw.message.decode(),
        launch.kernel,
        _party(raw, 0, launch, chains, about_memory),
        _party(raw, 1, launch, chains, about_memory) if raw.thread[1] != _NOBODY else None,
        _target(raw, launch) if about_memory else None,
        raw.bytes if about_memory else 0,
        raw.count,
    )


def _party(
    raw: RawReport,
    index: int,
    launch: Launched,
    chains: Mapping[int, tuple[Place, ...]],
    about_memory: bool,
) -> Party:
    chain = chains.get(raw.pc[index], ())
    return Party(
        _unflatten(raw.thread[index], launch.block),
        _unflatten(raw.block[index], launch.grid),
        chain[0] if chain else None,
        chain[1:],
        ACCESSES[raw.access[index]] if about_memory else "",
    )


def _unflatten(index: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = size
    return index % x, index // x % y, index // (x * y)


def _target(raw: RawReport, launch: Launched) -> Target:
    offset = raw.offset - (1 << 64) if raw.offset >> 63 else raw.offset
    if raw.region == SHARED_REGION:
        return _shared_target(offset, launch)
    if raw.region == NO_REGION:
        return Target("none", "", raw.offset)
    buffer = buffer_in_slot(raw.region) if raw.region >= 0 else None
    if buffer is None:
        return Target("constant", "data of the module", offset)
    return Target("global", buffer.name, offset, offset // buffer.dtype.itemsize, buffer.nbytes)


def _shared_target(offset: int, launch: Launched) -> Target:
    """The array at or before this offset."""
    before = [item for item in launch.shared if item.offset <= offset]
    if not before:
        return Target("shared", "", offset)
    return Target("shared", before[-1].array.name, offset - before[-1].offset)
