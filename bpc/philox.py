"""Philox4x32-10: random words from a key and a counter, without any state.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox_words(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> list[Words]:
    """Four 32-bit words (held in uint64) for each counter; `counter` broadcasts."""
    a, b, c, d = counter
    for step in range(_ROUNDS):
        low = np.uint64((key[0] + step * _KEY_STEPS[0]) & 0xFFFFFFFF)
        high = np.uint64((key[1] + step * _KEY_STEPS[1]) & 0xFFFFFFFF)
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _HALF) ^ b ^ low,
            second & _LOW,
            (first >> _HALF) ^ d ^ high,
            first & _LOW,
        )
    return [a, b, c, d]


def philox_uniform(
    seed: int, window: int, stream: int, element: NDArray[np.integer[Any]]
) -> NDArray[np.float32]:
    """One number in [0, 1) for each logical element, a multiple of 2^-24.

    The key is `seed` (64 bits), the counter is (element // 4 as 64 bits, window, stream) and the
    element takes word `element % 4`, so a draw depends on nothing but these four numbers.
    """
    index = np.asarray(element).astype(np.uint64)
    group = index >> np.uint64(2)
    third, fourth = (np.full_like(index, int(item) & 0xFFFFFFFF) for item in (window, stream))
    counter = (group & _LOW, group >> _HALF, third, fourth)
    key = (int(seed) & 0xFFFFFFFF, (int(seed) >> 32) & 0xFFFFFFFF)
    words = philox_words(counter, key)
    word = np.choose((index & np.uint64(3)).astype(np.intp), words)
    return np.asarray((word >> np.uint64(8)) * 2.0**-24, dtype=np.float32)
