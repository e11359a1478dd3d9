"""Tables in terminals that are too narrow for them."""

from __future__ import annotations

import pytest

from bpc.cli import output

HEADER = ("#", "kernel", "from", "bytes")
ROWS = [
    ("1", "loss_cross_entropy_with_gradient", "loss (cross entropy), loss gradient :24", "3 KiB"),
    ("2", "loss_cross_entropy_part1", "loss (cross entropy) :24", "8 B"),
    ("3", "adam", "train.optimizer :30", "1,048,576 B"),
]


@pytest.mark.parametrize("width", [60, 70, 90, 200])
def test_numbers_stay_and_words_are_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "stdout_width", lambda: width)
    lines = output.table(HEADER, ROWS, left=(1, 2))
    assert max(map(len, lines)) <= width
    for line, row in zip(lines[1:], ROWS, strict=True):
        assert line.endswith(row[-1]) and line.split()[0] == row[0]
    names = [line.split()[1] for line in lines[1:]]
    assert len(set(names)) == len(ROWS)
    assert [name[-4:] for name in names] == ["ient", "art1", "adam"]
    if width >= 90:
        assert names == [row[1] for row in ROWS]
