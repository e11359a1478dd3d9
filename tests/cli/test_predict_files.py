"""`bpc predict` for runs that were trained from files: columns, scales, fills and class names."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import trained
from bpc.data.sources.faults import Where
from bpc.data.sources.splits import split_rows
from bpc.errors import Span

CSV = """\
bpc: 1
name: flowers
data:
  {source: csv, file: flowers.csv, target: kind, inputs: [length, width, weight],
   batch: 8, missing: mean, normalise: standard}
model: [linear: 6, relu, dropout: 0.5, linear: 3]
loss: cross_entropy
train: {steps: 20, lr: 0.05}
"""
WHERE = Where(Span("net.yaml", 1, 1))
KINDS = ("daisy", "lily, white", "rose")


def write_flowers(folder: Path) -> list[list[str]]:
    draw = np.random.default_rng(5)
    rows = []
    for at in range(40):
        numbers = [repr(float(x)) for x in draw.normal(3 + at % 3, 1.0, 3)]
        if at % 7 == 3:
            numbers[1] = "NA"
        rows.append([f"id{at}", *numbers, KINDS[at % 3]])
    write_rows(folder / "flowers.csv", ["id", "length", "width", "weight", "kind"], rows)
    return rows


def write_rows(path: Path, header: list[str] | None, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows] if header else rows)


@pytest.fixture
def flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> list[list[str]]:
    """A run in `run`, trained from `flowers.csv`, whose rows are given."""
    monkeypatch.chdir(tmp_path)
    rows = write_flowers(tmp_path)
    Path("net.yaml").write_text(CSV)
    code, _, err = run("train", "net.yaml", "--device", "reference", "--run-dir", "run", "--quiet")
    assert code == 0, err
    return rows


def predict(run: Any, source: str, out: str = "out.csv", name: str = "run") -> Any:
    code, told, err = run("predict", name, source, "-o", out, "--device", "reference", "--json")
    assert (code, err) == (0, ""), told
    return json.loads(told)


def scores_of(path: str) -> tuple[list[str], np.ndarray]:
    with open(path, newline="") as file:
        header, *lines = csv.reader(file)
    assert header[0] == "class"
    return [line[0] for line in lines], np.array([line[1:] for line in lines], np.float32)


def test_the_rows_of_training_give_what_the_net_gives(flowers: Any, run: Any) -> None:
    facts = predict(run, "flowers.csv")
    found = trained.open_run("run", device="reference")
    data = found.net.data
    wanted = np.empty((40, 3), np.float32)
    for rows, part in zip(split_rows(40, None, WHERE), (data.train, data.test), strict=True):
        wanted[rows] = found.net.predict(part["x"])
    classes, scores = scores_of("out.csv")
    np.testing.assert_array_equal(scores, wanted)
    names = data.facts.classes
    assert names is not None and sorted(names) == sorted(KINDS) == sorted(facts["classes"])
    assert classes == [names[k] for k in wanted.argmax(axis=1)]
    predict(run, "flowers.csv", "out.npz")
    with np.load("out.npz") as saved:
        assert saved["class"].tolist() == classes
        np.testing.assert_array_equal(saved["prediction"], wanted)


def test_columns_go_by_name(flowers: list[list[str]], run: Any) -> None:
    predict(run, "flowers.csv")
    wanted = scores_of("out.csv")
    moved = [[row[3], "?", row[1], row[2]] for row in flowers]
    write_rows(Path("moved.csv"), ["weight", "note", "length", "width"], moved)
    bare = [row[1:4] for row in flowers]
    write_rows(Path("bare.csv"), None, bare)
    for name in ("moved.csv", "bare.csv"):
        predict(run, name)
        found = scores_of("out.csv")
        assert found[0] == wanted[0]
        np.testing.assert_array_equal(found[1], wanted[1])
    raw = [[float("nan") if cell == "NA" else float(cell) for cell in row] for row in bare]
    np.save("raw.npy", np.array(raw))
    predict(run, "raw.npy")
    np.testing.assert_array_equal(scores_of("out.csv")[1], wanted[1])


@pytest.mark.parametrize(
    ("header", "row", "place", "told"),
    [
        ("lenght,width,weight", "1,2,3", "bad.csv:1:1", "no column 'length', which the net takes"),
        ("lenght,width,weight", "1,2,3", "bad.csv:1:1", "did you mean 'lenght'?"),
        ("length,width,width", "1,2,3", "bad.csv:1:1", "no column 'weight'"),
        ("length,width,weight", "1,2,x", "bad.csv:2:5", "column 'weight' holds 'x', not a finite"),
        ("length,width,weight", "1, y ,3\n1,2\n,,z", "bad.csv:2:4", "number (and 2 more rows)"),
        ("length,width,weight,k", '1,2,z,"a,\nb"', "bad.csv:3:1", "column 'weight' holds 'z'"),
        ("length,width,weight", '1,z,3\n1,2,"3', "bad.csv:2:3", "column 'width' holds 'z'"),
        ("length,width,weight", "1,2", "bad.csv:2:1", "the row has 2 cells, 3 are needed"),
        ("1,2,3,4", "1,2,3,4", "bad.csv:1:1", "either the 3 of the inputs, or all 5"),
    ],
)
def test_what_does_not_fit_is_named(
    header: str, row: str, place: str, told: str, flowers: Any, run: Any
) -> None:
    Path("bad.csv").write_text(f"{header}\n{row}\n")
    code, out, err = run("predict", "run", "bad.csv", "-o", "out.csv", "--device", "reference")
    assert (code, out) == (1, "") and told in err and err.startswith(place)
    assert not Path("out.csv").exists()


def test_all_missing_columns_at_once(flowers: Any, run: Any) -> None:
    Path("bad.csv").write_text("length\n1\n")
    words = ("predict", "run", "bad.csv", "-o", "out.csv", "--device", "reference", "--json")
    errors = json.loads(run(*words)[1])["errors"]
    assert [error["message"].split("'")[3] for error in errors] == ["width", "weight"]


def test_gaps_without_a_fill(flowers: Any, run: Any) -> None:
    text = CSV.replace("missing: mean, ", "on_bad: skip, ")
    Path("strict.yaml").write_text(text)
    run("train", "strict.yaml", "--device", "reference", "--run-dir", "strict", "--quiet")
    words = ("predict", "strict", "flowers.csv", "-o", "out.csv", "--device", "reference")
    code, out, err = run(*words)
    assert (code, out) == (1, "") and "flowers.csv:5:23" in err and "'width' holds nothing" in err


@pytest.mark.parametrize("names", ["images", "x"])
def test_arrays_are_scaled_as_in_training(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 256, (30, 12), np.uint8), draw.integers(0, 3, 30)
    np.savez("train.npz", images=x, labels=y, other=y)
    Path("net.yaml").write_text(
        "bpc: 1\ndata: {source: npz, file: train.npz, inputs: {x: images}, target: labels,"
        " shape: [3, 4], normalise: minmax}\nmodel: [flatten, linear: 3]\nloss: cross_entropy\n"
        "train: {steps: 5, lr: 0.1}\n"
    )
    run("train", "net.yaml", "--device", "reference", "--run-dir", "run", "--quiet")
    np.savez("new.npz", **{names: x}, labels=y)
    facts = predict(run, "new.npz", "out.npy")
    net = trained.open_run("run", device="reference").net
    held = split_rows(30, None, WHERE)[1]
    np.testing.assert_array_equal(np.load("out.npy")[held], net.predict(net.data.test["x"]))
    assert facts["classes"] is None and facts["rows"] == 30


def test_a_damaged_data_json(flowers: Any, run: Any) -> None:
    for text in ("{", "[]", '{"normalise": {}}', '{"normalise": 3, "missing": {}, "rows": [1, 2]}'):
        (Path("run") / "data.json").write_text(text)
        code, out, err = run("predict", "run", "flowers.csv", "-o", "out.csv")
        assert (code, out) == (1, "") and "run/data.json" in err and "Traceback" not in err


def test_text_and_shapes_are_faults_of_the_file(flowers: Any, run: Any) -> None:
    for array, told in (
        (np.array([["a", "b", "c"]]), "bad.npy: x holds <U1, not numbers"),
        (np.zeros((4, 2)), "bad.npy: x has shape [4, 2], needed is [rows, 3]"),
    ):
        np.save("bad.npy", array)
        words = ("predict", "run", "bad.npy", "-o", "out.csv", "--device", "reference")
        code, out, err = run(*words)
        assert (code, out) == (1, "") and told in err and "help: the run takes x [rows, 3]" in err
