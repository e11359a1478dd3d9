"""Rows whose target is the loss's `ignore_index`: kept, no class by being there, not counted."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import idx_bytes

from bpc import api
from bpc.errors import BpcError

Make = Callable[..., api.Net]

CSV = "{source: csv, file: d.csv, target: y"
SOURCES = {
    "csv": f"{CSV}, classes: 3",
    "csv names": f"{CSV}, classes: ['0', '1', '2']",
    "csv task": f"{CSV}, task: classes",
    "npz": "{source: npz, file: d.npz",
    "packed npz": "{source: npz, file: packed.npz",
    "npy": "{source: npy, inputs: x.npy, target: y.npy",
    "float npy": "{source: npy, inputs: x.npy, target: f.npy, task: classes",
    "idx": "{source: idx, images: x.idx, labels: y.idx",
    "idx.gz": "{source: idx, images: x.idx, labels: y.idx.gz",
}


def write(folder: Path, ignored: int) -> tuple[np.ndarray, np.ndarray]:
    """The same 30 rows in every format, every fourth one ignored, in both parts."""
    x = np.random.default_rng(5).integers(0, 9, (30, 2)).astype(np.uint8)
    y = np.where(np.arange(30) % 4 == 0, ignored, np.arange(30) % 3).astype(np.int32)
    rows = [f"{a},{b},{label}\n" for (a, b), label in zip(x, y, strict=True)]
    (folder / "d.csv").write_text("a,b,y\n" + "".join(rows))
    np.savez(folder / "d.npz", x=x, y=y)
    np.savez_compressed(folder / "packed.npz", x=x, y=y)
    for name, array in {"x": x, "y": y, "f": y.astype(np.float32)}.items():
        np.save(folder / f"{name}.npy", array)
        (folder / f"{name}.idx").write_bytes(idx_bytes(array))
    (folder / "y.idx.gz").write_bytes(gzip.compress(idx_bytes(y)))
    return x, y


def loss(ignored: int) -> str:
    return f"{{cross_entropy: {{ignore_index: {ignored}}}}}"


@pytest.mark.parametrize("ignored", [-1, -100, 255])
@pytest.mark.parametrize("name", SOURCES)
def test_rows_pass_through_and_are_no_class(
    work: Path, make: Make, name: str, ignored: int
) -> None:
    _, y = write(work, ignored)
    net = make(f"{SOURCES[name]}, split: {{every: 5}}, normalise: standard}}", loss=loss(ignored))
    held = np.arange(30) % 5 == 4
    target = net.description.target
    assert (target.classes, target.names, target.ignored) == (3, ("0", "1", "2"), ignored)
    assert net.data.left_out == 0
    assert net.data.train["target"].tolist() == y[~held].tolist()
    assert net.data.test["target"].tolist() == y[held].tolist()


@pytest.mark.parametrize("name", SOURCES)
def test_ignored_rows_do_not_count(work: Path, make: Make, name: str) -> None:
    """Inputs of ignored rows change neither what is learnt nor what is measured."""
    found = []
    for value in (1, 8):
        x, y = write(work, -100)
        x[y == -100] = value
        rows = [f"{a},{b},{label}\n" for (a, b), label in zip(x, y, strict=True)]
        (work / "d.csv").write_text("a,b,y\n" + "".join(rows))
        np.savez(work / "d.npz", x=x, y=y)
        np.savez_compressed(work / "packed.npz", x=x, y=y)
        np.save(work / "x.npy", x)
        (work / "x.idx").write_bytes(idx_bytes(x))
        net = make(f"{SOURCES[name]}, split: {{every: 5}}}}", loss=loss(-100), data__batch=8)
        final = net.train()["final"]
        found.append((final, {k: v.tobytes() for k, v in net.parameters().items()}))
    assert found[0] == found[1]
    assert found[0][0]["test_loss"] > 0


@pytest.mark.parametrize(
    ("cells", "ignored", "names", "targets"),
    [
        (["cat", "-1", "dog", "cat"], -1, ("cat", "dog"), [0, -1, 1, 0]),
        (["cat", "-1.0", "dog", "-1"], -1, ("cat", "dog"), [0, -1, 1, -1]),
        (["10", "20", "30", "10"], 1, ("10", "20", "30"), [0, 1, 2, 0]),  # the class number 1
        (["0", "1", "2", "1"], 1, ("0", "1", "2"), [0, 1, 2, 1]),
        (["0", "1", "2", "1"], 2, ("0", "1"), [0, 1, 2, 1]),
    ],
)
def test_names_beside_an_ignored_number(
    work: Path, make: Make, cells: list[str], ignored: int, names: tuple[str, ...], targets: Any
) -> None:
    rows = "".join(f"{at},{cell}\n" for at, cell in enumerate(cells))
    (work / "d.csv").write_text("a,y\n" + rows)
    net = make(f"{CSV}, task: classes, split: 0}}", loss=loss(ignored))
    assert net.description.target.names == names
    assert net.data.train["target"].tolist() == targets


def test_told_names_leave_an_ignored_number_its_place(work: Path, make: Make) -> None:
    (work / "d.csv").write_text("a,y\n1,s\n2,-1\n3,t\n4,s\n")
    net = make(f"{CSV}, classes: [t, s], split: 0}}", loss=loss(-1))
    assert net.data.train["target"].tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize("name", ["csv", "npz", "npy", "idx", "csv task"])
def test_a_bad_class_is_told_with_what_is_allowed(work: Path, make: Make, name: str) -> None:
    write(work, -2)
    (work / "t.csv").write_text("a,b,y\n1,2,0\n2,3,-2\n")
    more = ", test: t.csv" if name == "csv task" else ""
    if name == "csv task":  # each different number of the part to train on is a class
        (work / "d.csv").write_text("a,b,y\n1,2,0\n2,3,1\n3,4,-100\n")
    with pytest.raises(BpcError, match=r"-2.*, nor ignore_index -100 \(and|-2'.*nor ignore_index"):
        make(f"{SOURCES[name]}{more}}}", loss=loss(-100))


def test_bad_inline_class_names_the_ignored_one(make: Make) -> None:
    data = "{source: inline, x: [[1], [2], [3]], y: [0, -1, 7], classes: 3}"
    with pytest.raises(BpcError, match=r"class 7 is not in 0..2 nor ignore_index -1"):
        assert make(data, loss=loss(-1)).data
