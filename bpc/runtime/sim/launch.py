"""How a kernel is run: options, and arguments in the kernel's own types."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpc.errors import UsageError
from bpc.runtime.sim.buffers import GuardedBuffer

BAD_ARGUMENT = "BPC0625"

ORDERS = ("in-order", "reverse", "random")

Argument = int | float | bool | bytes | np.generic | GuardedBuffer | None
Extent = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """In which order things run, and when a launch is given up.

    Args:
        order: of blocks, warps and lanes: "in-order", "reverse" or "random".
        seed: of the random order, of preemption and of adversarial values.
        preempt: probability that a thread is interrupted at a memory access (checked builds).
        adversarial: 1 moves each result of an approximate function by up to its stated error;
            0 leaves it at the nearest value (checked builds).
        max_accesses: memory accesses after which a checked launch ends with BUDGET; 0: no limit.
        seconds: processor time after which any launch ends with BUDGET; 0: no limit.
        max_reports: distinct reports that are kept.
    """

    order: str = "in-order"
    seed: int = 1
    preempt: float = 0.0
    adversarial: float = 0.0
    max_accesses: int = 2_000_000_000
    seconds: float = 60.0
    max_reports: int = 50


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel's parameter. Kinds: p pointer, i and u integers, f float, ? bool, s struct."""

    kind: str
    nbytes: int


def read_signature(text: str) -> tuple[Parameter, ...]:
    """`p8 f4 i4` as parameters."""
    return tuple(Parameter(item[0], int(item[1:])) for item in text.split())


def extents(of: Extent) -> tuple[int, int, int]:
    """Up to three extents, the missing ones 1."""
    given = (of,) if isinstance(of, int) else tuple(of)
    assert 1 <= len(given) <= 3
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def pack(
    kernel: str, parameters: Sequence[Parameter], arguments: Sequence[Argument]
) -> tuple[bytes, ...]:
    """The arguments' bytes as the kernel takes them.

    Raises:
        UsageError: too many or too few, of another type, or out of range.
    """
    if len(parameters) != len(arguments):
        raise UsageError.at(
            BAD_ARGUMENT,
            f"{kernel} takes {len(parameters)} arguments, {len(arguments)} given",
            None,
        )
    packed = []
    for index, (parameter, value) in enumerate(zip(parameters, arguments, strict=True)):
        data = _pack_one(parameter, value)
        if data is None:
            given = f"{type(value).__name__} {value!r:.60}"
            raise UsageError.at(
                BAD_ARGUMENT,
                f"{kernel}: argument {index} must be {_describe(parameter)}, not {given}",
                None,
            )
        packed.append(data)
    return tuple(packed)


def _describe(parameter: Parameter) -> str:
    names = {"p": "a buffer or an address", "?": "a bool", "s": "bytes of a struct"}
    names |= {"i": "a signed integer", "u": "an unsigned integer", "f": "a float"}
    return f"{names[parameter.kind]} of {parameter.nbytes} bytes"


def _pack_one(parameter: Parameter, value: Argument) -> bytes | None:
    kind, size = parameter.kind, parameter.nbytes
    if isinstance(value, GuardedBuffer) or value is None:
        address = value.pointer if value else 0
        return address.to_bytes(8, "little") if kind in "pui" and size == 8 else None
    if kind == "s":
        return value if isinstance(value, bytes) and len(value) == size else None
    if kind == "f":
        return _pack_float(size, value)
    if isinstance(value, bool | np.bool_):
        return bytes([int(value)]) if kind == "?" or size == 1 else None
    return _pack_integer(kind, size, value)


def _pack_float(size: int, value: object) -> bytes | None:
    wanted = np.dtype(f"f{size}")
    if isinstance(value, np.generic):
        return value.tobytes() if value.dtype == wanted else None
    return wanted.type(value).tobytes() if type(value) is float else None


def _pack_integer(kind: str, size: int, value: object) -> bytes | None:
    if isinstance(value, np.integer):
        # A number of another width is more likely a mistake than a wish.
        if kind != "p" and value.dtype.itemsize != size:
            return None
        value = int(value)
    if type(value) is not int:
        return None
    low, high = -(1 << (8 * size - 1)), 1 << (8 * size)
    if kind == "i":
        high >>= 1
    if kind == "p":
        low = 0
    return (value % (1 << (8 * size))).to_bytes(size, "little") if low <= value < high else None


def argument_array(packed: Sequence[bytes]) -> tuple[c.Array[c.c_void_p], list[object]]:
    """Pointers to the values, and what must be kept alive for them."""
    kept: list[object] = [c.create_string_buffer(data, max(len(data), 16)) for data in packed]
    pointers = (c.c_void_p * max(len(kept), 1))()
    for index, value in enumerate(kept):
        pointers[index] = c.addressof(value)  # type: ignore[arg-type]
    return pointers, [*kept, pointers]
