"""What a run's folder has stays there until another run of it really goes on; its spec may move."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import SMALL, FailingFiles, compile_small, write_spec

from bpc import api, continued
from bpc.train.faults import CheckpointError
from bpc.train.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that came to its end."""
    monkeypatch.chdir(tmp_path)
    net = compile_small(write_spec(Path()), {"train.checkpoint": "{every: 4, keep: 2}"})
    net.train(steps=10, run_dir="a run")
    return Path("a run")


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# -- checkpoints are no runs ----------------------------------------------------------------------


def test_a_checkpoint_is_not_trained_into(run: Path, bpc: Any, monkeypatch: Any) -> None:
    before = files_of(run)
    code, out, err = bpc("train", "--resume", str(run / "checkpoints/step-000008"))
    assert (code, out) == (1, "")
    assert "a run/checkpoints/step-000008 is a checkpoint; a run goes on in its own folder" in err
    assert "help: bpc train --resume 'a run'\n" in err
    whole = str(run.absolute())
    monkeypatch.chdir(run / "checkpoints/step-000008")
    code, _, err = bpc("train", "--resume", ".")
    assert code == 1 and f"help: bpc train --resume '{whole}'\n" in err
    assert files_of(Path(whole)) == before


def test_a_checkpoint_without_its_run_is_not_trained_into(run: Path, bpc: Any) -> None:
    shutil.copytree(run / "checkpoints/step-000008", "alone")
    before = files_of(Path("alone"))
    code, _, err = bpc("train", "--resume", "alone")
    assert code == 1 and "copy it into the folder checkpoints/ of a run" in err
    assert files_of(Path("alone")) == before


def test_a_checkpoint_can_be_used_all_the_same(run: Path, bpc: Any) -> None:
    before, place = files_of(run), str(run / "checkpoints/step-000008")
    code, out, err = bpc("evaluate", place, "--device", "reference")
    assert code == 0 and "step-000008/model.safetensors" in out, err
    np.save("x.npy", np.zeros((2, 5), np.float32))
    assert bpc("predict", place, "x.npy", "--device", "reference", "-o", "y.npy")[0] == 0
    assert bpc("export", place, "-o", "net.safetensors")[0] == 0
    assert files_of(run) == before


# -- a run that cannot go on ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "model.fc1.out=7", "--allow", "model"), "nothing was loaded"),
        (("--steps", "12", "--allow", "steps", "--tensorboard", "file/below"), "file/below"),
        (("--steps", "12"), "1 value of the spec changed"),
        (("--memory", "64"), "no plan fits 64 B"),
    ],
    ids=["other weights", "no events", "not allowed", "no plan"],
)
def test_what_cannot_go_on_changes_nothing(
    run: Path, bpc: Any, words: tuple[str, ...], said: str
) -> None:
    Path("file").touch()
    before = files_of(run)
    device = ("--device", "cpu" if "--memory" in words else "reference")
    code, _, err = bpc("train", "--resume", str(run), *words, *device)
    assert code != 0 and said in err
    assert files_of(run) == before


def test_weights_stay_until_the_new_spec_is_kept(run: Path) -> None:
    """The disk is full in the first or any later call that writes a copy of the spec."""
    before, net = files_of(run), compile_small(Path("net.yaml"))
    counted = FailingFiles()
    folder = RunFolder(run, counted)
    folder.begin(net.spec, {"more": "text"})
    folder.release()
    assert (run / "more").read_text() == "text" and len(counted.calls) > 12
    for name in ("model.safetensors", "result.json"):
        assert not (run / name).exists()
        (run / name).write_bytes(before[name])
    for number in range(len(counted.calls)):
        folder = RunFolder(run, FailingFiles(number))
        with pytest.raises(OSError, match="planted"):
            folder.begin(net.spec, {"more": "text"})
        folder.release()
        for name in ("model.safetensors", "result.json"):
            assert (run / name).read_bytes() == before[name], (number, counted.calls[number])


# -- a spec that moved ----------------------------------------------------------------------------


def train_unnamed(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    rows = (f"{a:.3f},{b:.3f},{'pqr'[k % 3]}" for k, (a, b) in enumerate(draw.normal(size=(20, 2))))
    (folder / "rows.csv").write_text("\n".join(["a,b,kind", *rows, ""]))
    text = SMALL.replace("name: small\n", "").partition("data:")[0] + (
        "data: {source: csv, file: rows.csv, target: kind, batch: 4}\n"
        "model: [linear: 3]\nloss: cross_entropy\ntrain: {steps: 9, checkpoint: {every: 3}}\n"
    )
    (folder / "gone.yaml").write_text(text)
    net = api.compile(folder / "gone.yaml", device="reference", set={"train.lr": 0.03})
    net.train(steps=6, run_dir="run")


def go_on_to(step: int, run: str = "run", **more: Any) -> dict[str, Any]:
    result = continued.resume(run, steps=step, allow=["steps"], **more)
    state = Path(run) / f"checkpoints/step-{step:06d}/state.json"
    values = json.loads(state.read_text())["values"]
    assert (values["name"], values["train.lr"]) == ('"gone"', "0.03")
    return result


def test_a_run_without_its_spec_goes_on_as_itself(tmp_path: Path, monkeypatch: Any) -> None:
    """Name and settings are those of the start, and data lies where it lay."""
    monkeypatch.chdir(tmp_path)
    train_unnamed(Path("specs"))
    shutil.copytree("run", "straight")
    straight = go_on_to(8, "straight")
    Path("specs/gone.yaml").unlink()
    assert continued.resume("run")["steps"] == 6
    assert go_on_to(7)["steps"] == 7
    assert go_on_to(8)["final"] == straight["final"]
    assert "name: gone\n" in Path("run/spec.resolved.yaml").read_text()
    assert "name" not in Path("run/spec.yaml").read_text()


def test_a_run_says_that_it_goes_on_with_its_own_spec(
    tmp_path: Path, monkeypatch: Any, bpc: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    train_unnamed(Path("specs"))
    assert bpc("train", "--resume", "run")[2] == ""
    Path("specs/gone.yaml").unlink()
    code, _, err = bpc("train", "--resume", "run")
    assert code == 0
    assert err == "note: the run goes on with its own copy of the spec: run/spec.resolved.yaml\n"


def test_a_spec_without_a_name_may_get_another_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    train_unnamed(Path("specs"))
    Path("specs/gone.yaml").rename("specs/found.yaml")
    go_on_to(7, spec="specs/found.yaml")
    go_on_to(8)  # it is remembered with the file
    text = Path("specs/found.yaml").read_text()
    Path("specs/found.yaml").write_text("name: other\n" + text)
    with pytest.raises(CheckpointError) as caught:
        continued.resume("run", set={"name": "other"})
    (note,) = caught.value.diagnostics[0].notes
    assert note.text == 'name: "gone" -> "other"'


def test_data_is_the_same_from_wherever_it_is_seen(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    train_unnamed(Path("specs"))
    monkeypatch.chdir(tmp_path / "specs")
    go_on_to(7, "../run")
    go_on_to(8, "../run", spec="gone.yaml")
    shutil.copy("rows.csv", "other.csv")
    with pytest.raises(CheckpointError) as caught:
        continued.resume("../run", set={"data.file": "other.csv"})
    (note,) = caught.value.diagnostics[0].notes
    assert note.text.startswith("data.file: ") and note.text.endswith('-> "other.csv"')
