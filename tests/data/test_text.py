"""Text by characters or bytes: windows, vocabulary, and what is held out."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bpc import api
from bpc.data import read_files
from bpc.data.dataset import Dataset

Load = Callable[..., Dataset]
TEXT = "the cat sat on the mat.\nthe rat sät too…\n" * 6
FLAT = "\n  - flatten"


def spell(data: Dataset, part: str = "train") -> list[tuple[str, str]]:
    """Each window with what comes next, as text."""
    names = np.array(data.facts.classes)
    found = data.train if part == "train" else data.test
    x, target = np.asarray(found["x"]), np.asarray(found["target"])
    assert (x.sum(axis=-1) == 1).all() and set(np.unique(x)) == {0, 1}
    windows = ["".join(names[row.argmax(axis=-1)]) for row in x]
    return list(zip(windows, ["".join(np.atleast_1d(names[row])) for row in target], strict=True))


@pytest.mark.parametrize("held", [read_files.MOST_HELD, 0])
@pytest.mark.parametrize("stride", [1, 3])
def test_windows_are_those_of_the_text(
    work: Path, load: Load, monkeypatch: pytest.MonkeyPatch, held: int, stride: int
) -> None:
    monkeypatch.setattr(read_files, "MOST_HELD", held)
    (work / "t.txt").write_text(TEXT, encoding="utf-8")
    data = load(f"{{source: text, file: t.txt, context: 5, stride: {stride}}}", before=FLAT)
    assert data.facts.classes == tuple(sorted(set(TEXT)))
    cut = len(TEXT) - round(0.2 * len(TEXT))
    for part, text in (("train", TEXT[:cut]), ("test", TEXT[cut:])):
        wanted = [(text[at : at + 5], text[at + 5]) for at in range(0, len(text) - 5, stride)]
        assert spell(data, part) == wanted


def test_every_place_can_have_a_target(work: Path, load: Load) -> None:
    (work / "t.txt").write_text(TEXT, encoding="utf-8")
    data = load("{source: text, file: t.txt, context: 4, predict: each, split: 0}")
    wanted = [(TEXT[at : at + 4], TEXT[at + 1 : at + 5]) for at in range(len(TEXT) - 4)]
    assert spell(data) == wanted


def test_bytes_are_symbols(work: Path, load: Load) -> None:
    raw = TEXT.encode()
    (work / "t.bin").write_bytes(raw)
    (work / "t.bin.gz").write_bytes(gzip.compress(raw))
    found = [
        load(f"{{source: text, file: {name}, unit: bytes, context: 3, split: 0}}", before=FLAT)
        for name in ("t.bin", "t.bin.gz")
    ]
    assert found[0].facts.classes == tuple(f"0x{byte:02x}" for byte in sorted(set(raw)))
    for name in ("x", "target"):
        assert (found[0].train[name] == found[1].train[name]).all()
    known = np.array(sorted(set(raw)), np.uint8)
    assert bytes(known[found[0].train["target"]]) == raw[3:]


def test_ranges_keep_windows_apart(work: Path, load: Load) -> None:
    (work / "t.txt").write_text("abcdefghij" * 4)
    data = load("{source: text, file: t.txt, context: 3, split: {rows: [[10, 20]]}}", before=FLAT)
    test = [window + target for window, target in spell(data, "test")]
    assert test == [("abcdefghij" * 4)[at : at + 4] for at in range(10, 17)]
    assert len(spell(data)) == 7 + 17


def test_the_vocabulary_is_that_of_the_part_trained_on(work: Path, load: Load) -> None:
    """Held-out symbols that are not in it leave their windows out, or are listed by the user."""
    (work / "t.txt").write_text("abab" * 20 + "abzab")
    split = "split: {rows: [[80, 85]]}"
    skip = load(f"{{source: text, file: t.txt, context: 1, {split}, on_bad: skip}}", before=FLAT)
    assert skip.facts.classes == ("a", "b") and skip.left_out == 2
    assert spell(skip, "test") == [("a", "b"), ("a", "b")]
    assert "'z'" in skip.notes[0].text
    told = load(f"{{source: text, file: t.txt, context: 1, {split}, vocabulary: zba}}", before=FLAT)
    assert told.facts.classes == ("z", "b", "a")
    assert spell(told, "test") == [("a", "b"), ("b", "z"), ("z", "a"), ("a", "b")]


def test_another_text_is_held_out(work: Path, load: Load) -> None:
    (work / "t.txt").write_text("abc" * 20)
    (work / "v.txt").write_text("cab")
    data = load("{source: text, file: t.txt, test: v.txt, context: 2}", before=FLAT)
    assert len(data.train["x"]) == 58 and spell(data, "test") == [("ca", "b")]


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("predict", ["next", "each"])
def test_a_text_is_learnt(
    work: Path, make: Callable[..., api.Net], device: str, predict: str
) -> None:
    (work / "t.txt").write_text("one two three four five " * 40)
    data = f"{{source: text, file: t.txt, context: 6, predict: {predict}}}"
    before = FLAT if predict == "next" else ""
    net = make(data, out=12, device=device, before=before, train__epochs=6)
    assert net.description.target.classes == 12
    final = net.train()["final"]
    assert final["test_accuracy"] > (0.9 if predict == "next" else 0.5)
