"""How many blocks of a kernel a multiprocessor can hold: a bound, computed from what it takes.

Source: the limits are those of the CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability"; rounding follows NVIDIA's occupancy calculator (`cuda_occupancy.h`): registers
are given to warps in units of 256, in multiples of four warps; shared memory to blocks in units of
128 or 256 bytes, after 1 KiB that the system keeps per block from sm_80 on.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
_REGISTER_UNIT = 256
_WARP_UNIT = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor of an architecture has."""

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit: int = 128
    reserved_bytes: int = 1024
    registers: int = 65536


LIMITS = {
    "sm_75": Limits(32, 16, 64 << 10, shared_unit=256, reserved_bytes=0),
    "sm_80": Limits(64, 32, 164 << 10),
    "sm_86": Limits(48, 16, 100 << 10),
    "sm_89": Limits(48, 24, 100 << 10),
    "sm_90": Limits(64, 32, 228 << 10),
    "sm_100": Limits(64, 32, 228 << 10),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that fit, as a share of the warps that an architecture can hold.

    `limit` says what is used up first: registers, shared memory, warps or blocks.
    """

    blocks: int
    warps: int
    share: float
    limit: str


def bound_occupancy(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The most blocks that fit into one multiprocessor.

    Args:
        arch: a key of `LIMITS`.
        threads: of a block.
        registers: of 32 bits, of a thread.
        shared_bytes: of a block, static and dynamic.
    """
    limits = LIMITS[arch]
    warps = -(-threads // WARP)
    fits = {
        "registers": _by_registers(limits, warps, registers),
        "shared memory": _by_shared(limits, shared_bytes),
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    limit = min(fits, key=lambda name: fits[name])
    blocks = fits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps, limit)


def _by_registers(limits: Limits, warps: int, registers: int) -> int:
    each = _round_up(max(registers, 1) * WARP, _REGISTER_UNIT)
    held = limits.registers // each // _WARP_UNIT * _WARP_UNIT
    return held // warps


def _by_shared(limits: Limits, shared_bytes: int) -> int:
    each = _round_up(shared_bytes + limits.reserved_bytes, limits.shared_unit)
    return limits.shared_bytes // each if each else limits.blocks


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
