"""What `bpc compile` writes: reproducible, true, and with places that exist."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bpc
from bpc.errors import UsageError
from bpc.plan.naming import LONGEST
from bpc.report.files import to_json, write_text
from bpc.resources import spec_root

ROOT = Path(__file__).resolve().parents[2]
SPECS = ("digits_mlp", "small_conv", "synthetic_mlp12", "worked/neuron", "worked/three_layer")


def write(name: str, folder: Path) -> dict[str, Any]:
    net = bpc.compile(spec_root() / f"{name}.yaml")
    return net.write(out=folder, dump=folder / "stages")


@pytest.fixture(scope="module", params=SPECS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write(request.param, folder)
    return folder


def spans(data: Any) -> Iterator[dict[str, Any]]:
    """Every span of a manifest."""
    if isinstance(data, dict):
        if {"file", "line", "column", "width"} <= set(data):
            yield data
        for item in data.values():
            yield from spans(item)
    elif isinstance(data, list):
        for item in data:
            yield from spans(item)


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_spans_point_at_real_places(written: Path) -> None:
    found = list(spans(read(written, "manifest.json")))
    assert found
    for span in found:
        line = Path(span["file"]).read_text(encoding="utf-8").splitlines()[span["line"] - 1]
        text = line[span["column"] - 1 : span["column"] - 1 + span["width"]]
        assert text.strip(), span


def test_every_node_with_a_kernel_knows_its_layer_and_place(written: Path) -> None:
    manifest = read(written, "manifest.json")
    for kernel in manifest["kernels"]:
        assert kernel["formulas"] and kernel["spans"] and kernel["launches"]
        for launch in kernel["launches"]:
            assert launch["nodes"] and launch["slices"] >= 1
            assert launch["bytes_read"] <= sum(item["bytes"] for item in launch["reads"])
            assert launch["bytes_written"] == sum(item["bytes"] for item in launch["writes"])
            assert any(node["formula"] for node in launch["nodes"])


def test_the_order_of_launches_is_that_of_the_plan(written: Path) -> None:
    manifest, plan = read(written, "manifest.json"), read(written, "plan.json")
    assert set(manifest["entries"]) == set(plan["entries"])
    starts = 0
    for name, launches in manifest["entries"].items():
        tables = plan["entries"][name]["launches"]
        assert [row["name"] for row in launches] == [row["name"] for row in tables]
        assert launches[-1]["barrier_after"] is True
        parts = [row["part"] for row in launches]
        for before, row in pairwise(launches):
            same = before["kernel"] == row["kernel"] and not before["barrier_after"]
            assert row["part"] == same
        if name in ("micro_step", "update"):
            starts += parts.count(False)
    assert manifest["launches_per_step"] == starts


def test_offsets_stay_inside_the_arena(written: Path) -> None:
    plan = read(written, "plan.json")
    for entry in plan["entries"].values():
        sizes = {t["name"]: t["bytes"] for t in (*plan["persistent"], *entry["tensors"])}
        places = {t["name"]: t["offset"] for t in (*plan["persistent"], *entry["tensors"])}
        assert entry["peak_bytes"] <= plan["arena_bytes"]
        for tensor in entry["tensors"]:
            if tensor["offset"] is not None:
                assert tensor["offset"] + tensor["bytes"] <= entry["peak_bytes"]
        known = {places[name] for name in sizes}
        for launch in entry["launches"]:
            assert set(launch["offsets"]) <= known
            assert len(launch["offsets"]) == len(launch["tensors"])


def test_names_are_short_distinct_identifiers(written: Path) -> None:
    manifest = read(written, "manifest.json")
    functions = [kernel["name"] for kernel in manifest["kernels"]]
    assert len(functions) == len(set(functions))
    for launches in manifest["entries"].values():
        names = [row["name"] for row in launches]
        assert len(names) == len(set(names))
        for name in names:
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and len(name) <= LONGEST
            assert not re.search(r"gemm|col_reduce|map", name)


def test_comments_speak_of_layers(written: Path) -> None:
    (source,) = written.glob("*.cpp")
    text = source.read_text(encoding="utf-8")
    statements = [line for line in text.splitlines() if "  // " in line and " = " in line]
    assert statements
    for line in statements:
        comment = line.split("  // ", 1)[1]
        assert re.search(r"\.yaml:\d+$", comment), line
        assert not re.match(r"(gemm|map|row_reduce|col_reduce|combine),", comment), line


def test_names_read_like_the_model(tmp_path: Path) -> None:
    write("digits_mlp", tmp_path)
    entries = read(tmp_path, "manifest.json")["entries"]
    names = [row["name"] for row in entries["micro_step"]]
    assert names[:3] == ["linear1_relu1", "linear2_relu2_dropout1", "linear3"]
    assert {"linear2_weight_gradient", "linear2_bias_gradient"} <= set(names)
    assert {"relu1_linear2_input_gradient", "relu2_dropout1_linear3_input_gradient"} <= set(names)
    assert any(name.startswith("loss_cross_entropy") for name in names)
    assert {row["kernel"] for row in entries["update"]} == {"norm_kernel", "update_control", "adam"}


SCRIPT = """
import sys, bpc
net = bpc.compile("net.yaml", threads=int(sys.argv[2]))
net.write(out=sys.argv[1], dump=sys.argv[1] + "/stages")
"""


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_bytes_do_not_depend_on_folder_hash_seed_or_threads(tmp_path: Path) -> None:
    found = []
    for name, seed, threads in (("one", "1", "1"), ("a/longer/path", "4242", "2")):
        home = tmp_path / name
        home.mkdir(parents=True)
        shutil.copy(spec_root() / "small_conv.yaml", home / "net.yaml")
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", SCRIPT, "out", threads], cwd=home, env=environment, check=True
        )
        found.append(contents(home / "out"))
    assert found[0] == found[1]
    assert len(found[0]) > 15
    assert not any(str(tmp_path).encode() in data for data in found[0].values())
    assert not any(str(ROOT).encode() in data for data in found[0].values())


def test_the_profile_is_recorded(written: Path) -> None:
    for name in ("plan.json", "manifest.json"):
        assert read(written, name)["profile"] == {"target": "cpu", "lanes": 16, "features": []}


def test_the_dump_has_every_stage_with_places(written: Path) -> None:
    names = sorted(path.name for path in (written / "stages").iterdir())
    for start in ("1-spec", "2-forward", "3-joint-micro_step", "3-joint-update"):
        assert f"{start}.txt" in names
    for start in ("4-passes", "5-kernels"):
        assert {f"{start}-{entry}.txt" for entry in ("micro_step", "update", "evaluate")} <= set(
            names
        )
    assert {"6-plan.txt", "7-program.txt"} <= set(names)
    for name in names:
        text = (written / "stages" / name).read_text(encoding="utf-8")
        assert text.endswith("\n") and " at 0x7f" not in text and "object at" not in text
    for name in ("1-spec.txt", "3-joint-micro_step.txt", "5-kernels-micro_step.txt"):
        assert re.search(r"\.yaml:\d+:\d+", (written / "stages" / name).read_text("utf-8"))


def test_an_unknown_target_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    net = bpc.compile(spec_root() / "worked/neuron.yaml")
    with pytest.raises(UsageError) as caught:
        net.write(target="tpu", out=tmp_path / "out")
    assert "there is no target 'tpu'" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_file_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "a.txt"
    write_text(file, "old\n")

    def refuse(old: object, new: object) -> None:
        assert Path(str(old)).read_text() == "new\n", "what takes the name is whole"
        raise OSError(errno.ENOSPC, "planted")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="planted") as caught:
        write_text(file, "new\n")
    assert caught.value.filename == str(file), "not the scratch file, and not nothing"
    assert file.read_text(encoding="utf-8") == "old\n"
    assert list(file.parent.iterdir()) == [file]


def test_bytes_of_a_name_that_are_no_text_are_written_as_codes(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "of \u00fc\udcff.yaml\n")
    assert (tmp_path / "a.txt").read_bytes() == b"of \xc3\xbc\\udcff.yaml\n"


def test_json_text_is_json() -> None:
    data = {"a": [1, 2, {"b": None, "c": []}], "d": {"e": "ü" * 200, "f": [True, 0.5]}, "g": {}}
    assert json.loads(to_json(data)) == data
    assert list(json.loads(to_json(data))) == ["a", "d", "g"]
