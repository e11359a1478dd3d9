from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpc.data.order import row_at, rows_at, uniform


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_read_once(shuffle: bool) -> None:
    for n in range(1, 301):
        rows = rows_at(7, 3, n, 0, n, shuffle)
        assert sorted(rows.tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1797, 4096, 65_537, 1_000_003])
def test_every_row_of_a_large_set_is_read_once(n: int) -> None:
    rows = rows_at(1, 2, n, 0, n)
    assert rows.dtype == np.int64
    assert (np.bincount(rows, minlength=n) == 1).all()


@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**31),
    n=st.integers(1, 400),
    data=st.data(),
)
def test_random_access_equals_the_whole_order(
    seed: int, epoch: int, n: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, n - 1))
    count = data.draw(st.integers(0, n - start))
    whole = rows_at(seed, epoch, n, 0, n)
    assert rows_at(seed, epoch, n, start, count).tolist() == whole[start : start + count].tolist()
    assert row_at(seed, epoch, n, start) == whole[start]


def test_far_positions_of_a_huge_set_are_reached_at_once() -> None:
    n = 10**15
    rows = rows_at(5, 0, n, n - 1000, 1000)
    assert len(set(rows.tolist())) == 1000
    assert rows.min() >= 0 and rows.max() < n
    assert rows.max() - rows.min() > n // 2


def test_epochs_and_seeds_differ_and_repeat() -> None:
    orders = [rows_at(seed, epoch, 100, 0, 100) for seed in range(4) for epoch in range(4)]
    assert len({order.tobytes() for order in orders}) == 16
    assert (rows_at(2, 3, 100, 0, 100) == orders[2 * 4 + 3]).all()


def test_without_shuffling_rows_come_as_stored() -> None:
    assert rows_at(1, 5, 10, 3, 4, shuffle=False).tolist() == [3, 4, 5, 6]


def test_order_is_fixed_for_good() -> None:
    """A checkpoint resumes in the same order: the numbers may never change."""
    assert rows_at(0, 0, 12, 0, 12).tolist() == [6, 5, 1, 11, 8, 3, 2, 10, 7, 9, 0, 4]


def test_each_row_is_equally_likely_everywhere() -> None:
    """Chi-square over 10 x 10 cells of (position, row); 99.99 % of fair draws stay below 160."""
    n, draws = 10, 2000
    seen = Counter(
        (position, int(row))
        for epoch in range(draws)
        for position, row in enumerate(rows_at(11, epoch, n, 0, n))
    )
    expected = draws / n
    score = sum((seen[p, r] - expected) ** 2 / expected for p in range(n) for r in range(n))
    assert score < 160


def test_small_permutations_are_equally_likely() -> None:
    """All 6 orders of three rows; 99.99 % of fair draws stay below 25.7 at 5 degrees of freedom."""
    draws = 3000
    seen = Counter(tuple(rows_at(3, epoch, 3, 0, 3).tolist()) for epoch in range(draws))
    assert len(seen) == 6
    assert sum((count - 500) ** 2 / 500 for count in seen.values()) < 25.7


def test_neighbours_do_not_stay_neighbours() -> None:
    n = 10_000
    rows = rows_at(0, 0, n, 0, n)
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(rows, np.arange(n))[0, 1]) < 0.05


def test_uniform_numbers_have_the_moments_of_the_unit_interval() -> None:
    values = uniform(1, 2, 100_000)
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 5 * (1 / 12 / 100_000) ** 0.5
    assert abs(values.var() - 1 / 12) < 0.002
    assert (uniform(1, 2, 10) == values[:10]).all()
    assert (uniform(1, 3, 10) != values[:10]).all()
    assert (uniform(2, 2, 10) != values[:10]).all()
