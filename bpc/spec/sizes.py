"""Sizes in bytes as people write them: `64MiB` is 64 * 2**20, `64MB` is 64 * 10**6."""

from __future__ import annotations

import re
from fractions import Fraction

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s{0,4}([A-Za-z]{0,8})")
_LARGEST_BYTES = 2**63 - 1
EXAMPLES = "write bytes, or a number with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB"


class SizeFault(ValueError):
    """The text is no size; the message says why, `help` what would be right."""

    def __init__(self, message: str, help: str = EXAMPLES):
        super().__init__(message)
        self.help = help


def parse_size(value: object) -> int:
    """The number of bytes that `value`, an int or text such as `1.5GiB`, stands for.

    Raises:
        SizeFault: no number, an unknown unit, a part of a byte, zero, or 2**63 and more.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SizeFault("it has no number of bytes")
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise SizeFault("it has no number of bytes")
    count = Fraction(match[1]) * _read_unit(match[1], match[2])
    if count.denominator != 1:
        raise SizeFault("a size is a whole number of bytes")
    if not 0 < count <= _LARGEST_BYTES:
        raise SizeFault("a size is at least 1 and less than 2^63 bytes")
    return int(count)


def _read_unit(number: str, unit: str) -> int:
    lower = unit.lower()
    if lower in ("", "b"):
        return 1
    power = _POWERS.get(lower[0])
    if power is not None and unit[1:] == "iB":
        return int(1024**power)
    if power is not None and unit[1:] == "B":
        return int(1000**power)
    if power is not None and lower[1:] in ("", "i", "ib", "b"):
        big = lower[0].upper()
        raise SizeFault(
            f"the unit '{unit}' is ambiguous",
            f"write {number}{big}iB (1024^{power} bytes) or {number}{big}B (1000^{power} bytes)",
        )
    raise SizeFault(f"'{unit}' is not a unit of size")
