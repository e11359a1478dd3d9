"""The order in which rows are read: a keyed permutation with random access.

Any position of any epoch is reached at once, without drawing what comes before it.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15


def row_at(seed: int, epoch: int, n: int, position: int, shuffle: bool = True) -> int:
    """The row that is read at `position` (0 <= position < n) of an epoch."""
    return int(rows_at(seed, epoch, n, position, 1, shuffle)[0])


def rows_at(
    seed: int, epoch: int, n: int, start: int, count: int, shuffle: bool = True
) -> NDArray[np.int64]:
    """The rows read at positions start .. start + count - 1 of an epoch, int64 [count].

    For a given (seed, epoch) the n rows are a permutation of 0 .. n - 1; `shuffle` False is the
    identity.

    Source: a Feistel network over unequal halves, Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains", with cycle walking for the few values of a * b that are not below n.
    """
    assert start >= 0 and start + count <= n, f"positions {start}+{count} of {n} rows"
    positions = np.arange(start, start + count, dtype=np.uint64)
    if not shuffle or n == 1:
        return positions.astype(np.int64)
    low = isqrt(n - 1) + 1
    high = -(-n // low)
    keys = _round_keys(seed, epoch)
    rows = _permute(positions, low, high, keys)
    # A walk ends because it follows a cycle of a permutation that started below n.
    while (outside := rows >= n).any():
        rows[outside] = _permute(rows[outside], low, high, keys)
    return rows.astype(np.int64)


def _permute(
    values: NDArray[np.uint64], low: int, high: int, keys: tuple[int, ...]
) -> NDArray[np.uint64]:
    """A permutation of 0 .. low * high - 1: each round adds a hash of one half to the other."""
    right, left = np.divmod(values, np.uint64(low))
    for index, key in enumerate(keys):
        if index % 2 == 0:
            left = (left + _hash(right, key) % np.uint64(low)) % np.uint64(low)
        else:
            right = (right + _hash(left, key) % np.uint64(high)) % np.uint64(high)
    return right * np.uint64(low) + left


def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    start = _mix(_mix(seed & _MASK) ^ (epoch & _MASK))
    return tuple(_mix((start + _GOLDEN * (index + 1)) & _MASK) for index in range(_ROUNDS))


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) on a Python integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _hash(values: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The same finaliser for many values; arrays of uint64 wrap around silently."""
    mixed = values + np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def uniform(seed: int, stream: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1), 53 bits each, the same on every machine and NumPy version."""
    counters = np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)
    bits = _hash(_hash(counters, _mix(seed & _MASK)), _mix(stream & _MASK))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
