"""`bpc evaluate` and `bpc predict` on runs that were trained for this."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import api, trained
from bpc.data.arrayfile import read_arrays
from bpc.errors import DataError, Interrupted

SPEC = """\
bpc: 1
name: small
data: {source: synthetic, shape: [2, 3], classes: 7, rows: 64, test_rows: 21, batch: 8}
model: [flatten, linear: 12, relu, dropout: 0.5, linear: 7]
loss: cross_entropy
train: {steps: 24, eval_every: 8, optimizer: {adam: {lr: 0.05}}, checkpoint: {every: 8}}
"""
TWO_INPUTS = """\
bpc: 1
name: two
data: {source: synthetic, inputs: {a: [2], b: [3]}, rows: 20, test_rows: 9, batch: 4}
model:
  - {linear: {name: l, out: 4}, from: a}
  - {linear: {name: r, out: 4}, from: b}
  - {add: , from: [l, r]}
  - linear: 1
loss: mse
train: {steps: 5, optimizer: {sgd: {lr: 0.05}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, one that was stopped, one that died at once, and one with two inputs."""
    folder = tmp_path_factory.mktemp("runs")
    for name, text in (("net", SPEC), ("two", TWO_INPUTS)):
        (folder / f"{name}.yaml").write_text(text)
    api.compile(folder / "net.yaml", device="reference").train(run_dir=folder / "run")
    with pytest.raises(Interrupted):
        stopped = api.compile(folder / "net.yaml", device="reference")
        stopped.train(run_dir=folder / "stopped", stop_after=11)
    api.compile(folder / "two.yaml", device="reference").train(run_dir=folder / "two")
    shutil.copytree(folder / "run", folder / "dead")
    for name in ("model.safetensors", "best.safetensors", "result.json"):
        (folder / "dead" / name).unlink()
    shutil.rmtree(folder / "dead" / "checkpoints")
    return folder


@pytest.fixture
def bpc(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    return lambda *words: run(*words, *(["--device", "reference"]))


def facts(outcome: tuple[int, str, str]) -> Any:
    code, out, err = outcome
    assert (code, err) == (0, ""), (out, err)
    return json.loads(out)


def write_inputs(folder: Path, rows: int, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    x = np.random.default_rng(rows).standard_normal((rows, *shape)).astype(np.float32)
    np.save(folder / "in.npy", x)
    np.savez(folder / "in.npz", x=x, target=np.zeros(rows))
    with (folder / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([f"{value}" for value in row] for row in x.reshape(rows, -1))
    return x


# -- evaluate -------------------------------------------------------------------------------------


def test_a_run_is_evaluated_with_the_weights_of_its_end(bpc: Any, folder: Path) -> None:
    result = json.loads((folder / "run" / "result.json").read_text())
    found = facts(bpc("evaluate", "run", "--json"))
    assert found["weights"] == "run/model.safetensors"
    assert found["test_loss"] == result["final"]["test_loss"]
    assert found["metrics"]["accuracy"] == found["test_accuracy"]
    assert found["test_accuracy"] == result["final"]["test_accuracy"]
    assert found["test_accuracy"] <= found["metrics"]["top5"] <= 1
    code, out, _ = bpc("evaluate", "run")
    assert code == 0 and out.startswith(f"loss {found['test_loss']:.6g}, accuracy ")
    assert out.endswith("on 21 held-out rows; weights: run/model.safetensors\n")


def test_the_best_weights_are_those_of_the_least_loss(bpc: Any, folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    losses = [row["test_loss"] for row in rows if row.get("test_loss") is not None]
    assert len(losses) == 3
    found = facts(bpc("evaluate", "run", "--best", "--json"))
    assert (found["weights"], found["test_loss"]) == ("run/best.safetensors", min(losses))


def test_a_checkpoint_and_a_run_that_has_not_ended(bpc: Any, folder: Path) -> None:
    one = facts(bpc("evaluate", "run/checkpoints/step-000016", "--json"))
    two = facts(bpc("evaluate", "stopped", "--json"))
    (folder / "stopped" / "model.safetensors").rename(folder / "kept")
    three = facts(bpc("evaluate", "stopped", "--json"))
    (folder / "kept").rename(folder / "stopped" / "model.safetensors")
    assert one["weights"] == "run/checkpoints/step-000016/model.safetensors"
    assert three["weights"] == "stopped/checkpoints/step-000011/model.safetensors"
    assert two["test_loss"] == three["test_loss"] != one["test_loss"]


def test_a_spec_is_evaluated_with_its_initial_weights(bpc: Any) -> None:
    found = facts(bpc("evaluate", "net.yaml", "--json"))
    net = api.compile("net.yaml", device="reference")
    assert found["weights"] is None and found["test_loss"] == net.evaluate()["test_loss"]
    assert facts(bpc("evaluate", "net.yaml", "--seed", "4", "--json")) != found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("evaluate", "nothing"), "nothing: there is no such run"),
        (("evaluate", "nothing.yaml"), "there is no file 'nothing.yaml'"),
        (("evaluate", "dead"), "dead has no weights: the run neither ended nor wrote a checkpoint"),
        (("evaluate", "dead", "--best"), "dead has no best model"),
        (("evaluate", "."), "is not the folder of a run: it has no spec.resolved.yaml"),
        (("evaluate", "net.yaml", "--best"), "net.yaml is a file; a run is a folder"),
        (("predict", "net.yaml", "in.npy", "-o", "x.npy"), "net.yaml is a file; a run is a folder"),
        (("predict", "nothing", "in.npy", "-o", "x.npy"), "nothing: there is no such run"),
        (("predict", "run", "none.npy", "-o", "x.npy"), "none.npy: No such file or directory"),
        (("predict", "run", "folder.npy", "-o", "x.npy"), "folder.npy: Is a directory"),
    ],
)
def test_what_is_not_there(words: tuple[str, ...], told: str, bpc: Any, folder: Path) -> None:
    write_inputs(folder, 2)
    (folder / "folder.npy").mkdir(exist_ok=True)
    code, out, err = bpc(*words)
    assert (code, out) == (1, "") and told in err and "Traceback" not in err
    code, out, err = bpc(*words, "--json")
    assert (code, err) == (1, "") and json.loads(out)["ok"] is False


# -- predict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 8, 21])
def test_every_form_gives_the_same_rows_in_order(bpc: Any, folder: Path, rows: int) -> None:
    x = write_inputs(folder, rows)
    wanted = trained.open_run(folder / "run", device="reference").net.predict(x)
    for given in ("in.npy", "in.npz", "in.csv"):
        found = facts(bpc("predict", "run", given, "-o", "out.npy", "--json"))
        assert (found["rows"], found["shape"], found["file"]) == (rows, [7], "out.npy")
        np.testing.assert_array_equal(np.load("out.npy"), wanted)
    facts(bpc("predict", "run", "in.npy", "-o", "out.npz", "--json"))
    with np.load("out.npz") as saved:
        np.testing.assert_array_equal(saved["prediction"], wanted)
        np.testing.assert_array_equal(saved["class"], wanted.argmax(axis=1))
    facts(bpc("predict", "run", "in.npy", "-o", "out.csv", "--json"))
    with open("out.csv", newline="") as file:
        header, *lines = list(csv.reader(file))
    assert header == ["class", *(f"prediction.{k}" for k in range(7))]
    assert [int(line[0]) for line in lines] == wanted.argmax(axis=1).tolist()
    np.testing.assert_array_equal(np.array(lines)[:, 1:].astype(np.float32), wanted)


def test_no_rows_give_no_rows(bpc: Any, folder: Path) -> None:
    np.save(folder / "empty.npy", np.zeros((0, 2, 3), np.float32))
    assert facts(bpc("predict", "run", "empty.npy", "-o", "out.npy", "--json"))["rows"] == 0
    assert np.load(folder / "out.npy").shape == (0, 7)


def test_several_inputs_and_a_header(bpc: Any, folder: Path) -> None:
    draw = np.random.default_rng(3)
    a, b = draw.standard_normal((6, 2)), draw.standard_normal((6, 3))
    np.savez(folder / "both.npz", b=b, a=a)
    lines = [",".join(map(repr, row)) for row in np.hstack([a, b]).tolist()]
    (folder / "both.csv").write_text("\ufeffa0,a1,b0,b1,b2\r\n" + "\r\n".join(lines) + "\r\n\r\n")
    found = []
    for name in ("both.npz", "both.csv"):
        facts(bpc("predict", "two", name, "-o", "two.csv", "--json"))
        found.append((folder / "two.csv").read_text().splitlines())
    assert found[0] == found[1] and found[0][0] == "prediction" and len(found[0]) == 7
    wanted = trained.open_run("two", device="reference").net.predict({"a": a, "b": b})
    np.testing.assert_array_equal(np.array(found[0][1:], np.float32), wanted[:, 0])
    np.save(folder / "one.npy", a)
    code, _, err = bpc("predict", "two", "one.npy", "-o", "two.csv")
    assert code == 1 and "one.npy: the model has 2 inputs, found one array" in err


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("1,2,3,4,5,6\n1,2,3\n", "bad.csv:2:1", "3 columns, where the model takes 6 numbers a row"),
        ("a,b,c,d,e,f\n1,2,3,4,5,x\n", "bad.csv:2:11", "column 6: 'x' is no finite number"),
        ("1,2,3,4,5,nan\n", "bad.csv:1:11", "column 6: 'nan' is no finite number\n"),
        (f"{'1,2,3,4,5,x;' * 3}".replace(";", "\n"), "bad.csv:1:11", "(and 2 more rows)"),
        ('"1",2,"y",4,5,6\n1,2\n', "bad.csv:1:7", "'y' is no finite number (and 1 more row)"),
        ("1,2,3,4,5,1_0\n", "bad.csv:1:11", "column 6: '1_0' is no finite number"),
        ("1;2;3;4;5;6\n1;2;3;4;5;6\n", "bad.csv:2:1", "commas, not by semicolons"),
        ('1,2,3,4,5,6\n"1,2\n', "bad.csv:2:1", "unexpected end of data"),
    ],
)
def test_a_bad_row_is_shown(text: str, place: str, told: str, bpc: Any, folder: Path) -> None:
    (folder / "bad.csv").write_text(text)
    (folder / "old.csv").write_text("as it was")
    code, out, err = bpc("predict", "run", "bad.csv", "-o", "old.csv")
    assert (code, out) == (1, "") and told in err and err.startswith(place)
    assert (folder / "old.csv").read_text() == "as it was"


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"y": np.zeros((2, 2, 3))}, "there is no input called 'y'"),
        ({}, "x is missing"),
        ({"x": np.zeros((2, 6))}, "x has shape [2, 6], needed is [rows, 2, 3]"),
        ({"x": np.zeros((2, 3))}, "add a leading axis for a single row"),
        ({"x": np.full((2, 2, 3), "a")}, "x holds <U1, not numbers"),
        ({"x": np.full((2, 2, 3), np.inf)}, "x, row 0 (from 0) holds inf or NaN"),
    ],
)
def test_names_and_shapes_are_checked(
    arrays: dict[str, Any], told: str, bpc: Any, folder: Path
) -> None:
    np.savez(folder / "bad.npz", **arrays)
    code, out, err = bpc("predict", "run", "bad.npz", "-o", "x.npy")
    assert (code, out) == (1, "") and "bad.npz: " in err and told in err and "help: " in err


def test_damaged_files(bpc: Any, folder: Path) -> None:
    write_inputs(folder, 4)
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    whole, packed = (folder / "in.npy").read_bytes(), (folder / "in.npz").read_bytes()
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 2, 3)}"
    spoilt = {
        "cut.npy": whole[:-5],
        "empty.npy": b"",
        "text.npy": b"1,2,3\n",
        "huge.npy": header + huge.ljust(117) + b"\n",
        "cut.npz": packed[: len(packed) // 2],
        "swapped.npz": whole,
        "flipped.npz": packed[:60] + bytes([packed[60] ^ 255]) + packed[61:],
        "latin.csv": "ä,ö\n".encode("latin-1"),
        "nul.csv": b"1,2,3,4,5,\x006\n",
    }
    for name, content in spoilt.items():
        (folder / name).write_bytes(content)
    for name in (*spoilt, "objects.npy"):
        code, out, err = bpc("predict", "run", name, "-o", "x.npy")
        assert (code, out) == (1, "") and name in err, (name, err)
        assert "Traceback" not in err and not (folder / "x.npy").exists()


def test_changed_bytes_are_never_a_traceback(tmp_path: Path) -> None:
    draw = random.Random(1)
    array = np.arange(120.0).reshape(20, 6)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", x=array)
    refused = 0
    for path in (tmp_path / "a.npy", tmp_path / "a.npz"):
        whole = path.read_bytes()
        for _ in range(400):
            spoilt = bytearray(whole)
            for _ in range(draw.randint(1, 4)):
                end = 140 if draw.random() < 0.7 else len(whole)
                spoilt[draw.randrange(end)] = draw.getrandbits(8)
            path.write_bytes(spoilt)
            try:
                read_arrays(path, {"x": (6,)})
            except (DataError, OSError):
                refused += 1
    assert refused > 400


@pytest.mark.parametrize(
    ("source", "out", "told"),
    [
        ("in.npy", "x.txt", "'x.txt' ends in none of .npy, .npz, .csv"),
        ("in.txt", "x.npy", "'in.txt' ends in none of"),
        ("in.npy", "in.npy", "OUT would replace INPUT"),
        ("in.npy", "in.npy/x.npy", "'in.npy' is no folder"),
        ("in.npy", "folder.npy", "'folder.npy' is a folder"),
    ],
)
def test_what_cannot_be_written_is_known_before(
    source: str, out: str, told: str, bpc: Any, folder: Path
) -> None:
    write_inputs(folder, 3)
    (folder / "folder.npy").mkdir(exist_ok=True)
    code, shown, err = bpc("predict", "run", source, "-o", out)
    assert (code, shown) == (2, "") and told in err


def test_the_folder_of_the_result_is_made(bpc: Any, folder: Path) -> None:
    write_inputs(folder, 3)
    out = folder / "new" / "deep" / "x.npy"
    assert facts(bpc("predict", "run", "in.npy", "-o", str(out), "--json"))["rows"] == 3
    assert np.load(out).shape == (3, 7)


def test_no_folder_is_made_for_a_file_that_does_not_fit(bpc: Any, folder: Path) -> None:
    np.save(folder / "bad.npy", np.zeros((3, 5)))
    code, out, err = bpc("predict", "run", "bad.npy", "-o", "unmade/x.npy")
    assert (code, out) == (1, "") and not (folder / "unmade").exists()
    assert "bad.npy: x has shape [3, 5], needed is [rows, 2, 3]" in err
    assert "help: the run takes x [rows, 2, 3], the first axis counts rows" in err
