"""What `bpc compile --target cuda` writes: reproducible, true, enough to launch from."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bpc
from bpc.codegen.cuda import generate
from bpc.diagnose.occupancy import LIMITS, bound_occupancy
from bpc.resources import spec_root
from bpc.runtime.cpu.build import plan
from bpc.runtime.launching import pack_launches
from bpc.runtime.sim.nvrtc import candidates, compile_nvrtc

ROOT = Path(__file__).resolve().parents[2]
needs_nvrtc = pytest.mark.skipif(
    not any(path.is_file() for path in candidates()), reason="NVRTC is not installed"
)


@pytest.fixture(scope="module", params=["digits_mlp", "small_conv", "worked/neuron"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    bpc.compile(spec_root() / f"{request.param}.yaml").write(target="cuda", out=folder)
    (folder / "spec").write_text(str(spec_root() / f"{request.param}.yaml"))
    return folder


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_the_folder_has_what_the_page_says(written: Path) -> None:
    (source,) = written.glob("*.cu")
    names = {path.name for path in written.iterdir()} - {"spec"}
    headers = {name for name in names if name.endswith(".h")}
    plain = {source.name, "launch.json", "plan.json", "manifest.json", "README.md"}
    assert names == headers | plain and "bpc_cuda.h" in headers
    page = (written / "README.md").read_text("utf-8")
    for name in plain - {"README.md"}:
        assert f"`{name}`" in page
    assert "nvcc " in page and "RawModule" in page and "g++" not in page


def test_offsets_are_those_of_the_plan(written: Path) -> None:
    launches, arena = read(written, "launch.json"), read(written, "plan.json")
    assert launches["arena_bytes"] == arena["arena_bytes"]
    for name, found in launches["entries"].items():
        places = {t["name"]: t["offset"] for t in arena["persistent"]}
        planned = {
            tensor: offset
            for launch in arena["entries"][name]["launches"]
            for tensor, offset in zip(launch["tensors"], launch["offsets"], strict=True)
        }
        assert found
        for launch in found:
            tensors = [(a["tensor"], a["offset"]) for a in launch["arguments"] if "tensor" in a]
            for row in launch.get("table", []):
                tensors += zip(row["tensors"], row["offsets"], strict=True)
            assert tensors
            for tensor, offset in tensors:
                assert planned[tensor] == offset
                assert places.get(tensor, offset) == offset


def test_launches_are_those_of_the_runtime(written: Path) -> None:
    net = bpc.compile((written / "spec").read_text())
    program = plan(net.entries).program
    packed = pack_launches(program, generate(net.spec.name, program), 1 << 40, 1 << 41)
    described = read(written, "launch.json")
    assert described["launch_block"]["bytes"] == packed.block.nbytes
    for name, launches in packed.launches.items():
        for one, other in zip(launches, described["entries"][name], strict=True):
            assert (one.function, one.grid, one.threads) == (
                other["function"],
                other["grid"],
                other["block"],
            )
            values = [
                a["int32"]
                if "int32" in a
                else (1 << 40) + a["offset"]
                if "tensor" in a
                else (1 << 41) + a["launch_block"]
                for a in other["arguments"]
            ]
            assert values == list(one.arguments)
            assert other["shared_bytes"] == 0


def test_arguments_are_the_parameters_of_the_text(written: Path) -> None:
    (source,) = written.glob("*.cu")
    text = source.read_text("utf-8")
    for launches in read(written, "launch.json")["entries"].values():
        for launch in launches:
            head = re.search(rf"__global__ .* void {launch['function']}\(([^)]*)\) {{", text)
            assert head is not None
            names = [part.split()[-1].lstrip("*") for part in head[1].split(",")]
            assert names == [argument["parameter"] for argument in launch["arguments"]]


def test_the_manifest_knows_causes(written: Path) -> None:
    cuda = read(written, "manifest.json")["cuda"]
    launched = {item["name"] for item in cuda["functions"] if item["launched"]}
    assert launched == {name for names in cuda["entries"].values() for name in names}
    for item in cuda["functions"]:
        assert item["spans"] and bool(item["launches"]) == item["launched"]
        assert bool(item["calls"]) != bool(item.get("formulas"))
        for span in item["spans"]:
            assert Path(span["file"]).read_text("utf-8").splitlines()[span["line"] - 1].strip()


SCRIPT = """
import sys, bpc
net = bpc.compile("net.yaml", threads=int(sys.argv[2]))
net.write(out=sys.argv[1], target="all", debug_lines=sys.argv[2] == "2")
net.write(out=sys.argv[1] + "/plain", target="all")
"""


def test_bytes_do_not_depend_on_folder_hash_seed_or_threads(tmp_path: Path) -> None:
    found = []
    for name, seed, threads in (("one", "1", "1"), ("a/longer/path", "77", "2")):
        home = tmp_path / name
        home.mkdir(parents=True)
        shutil.copy(spec_root() / "digits_mlp.yaml", home / "net.yaml")
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", SCRIPT, "out", threads], cwd=home, env=environment, check=True
        )
        files = (path for path in (home / "out/plain").iterdir())
        found.append({path.name: path.read_bytes() for path in files})
        debug = (home / "out/digits_mlp.cu").read_text("utf-8")
        assert ('#line 16 "net.yaml"' in debug) == (threads == "2")
    assert found[0] == found[1] and {"digits_mlp.cu", "digits_mlp.cpp"} <= set(found[0])
    assert not any(str(tmp_path).encode() in data for data in found[0].values())


@needs_nvrtc
def test_the_page_compiles_the_text_from_its_folder_alone(written: Path) -> None:
    (source,) = written.glob("*.cu")
    page = (written / "README.md").read_text("utf-8")
    listed = re.search(r"options = \((.*)\)", page)
    assert listed is not None
    flags = [word.strip().strip('"') for word in listed[1].split(",")]
    options = [f"-I{written}" if flag == "-I." else flag for flag in flags]
    made = compile_nvrtc(source.read_text("utf-8"), "sm_75", options, source.name)
    assert made.cubin and made.ptx
    for item in read(written, "manifest.json")["cuda"]["functions"]:
        assert (f".entry {item['name']}(" in made.ptx) == item["launched"]


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limit"),
    [
        ("sm_90", 128, 32, 0, 16, "registers"),  # 65536 / (32 * 32) = 64 warps, as many as fit
        ("sm_90", 128, 79, 8192, 6, "registers"),  # 79 -> 2560 a warp, 25 -> 24 warps
        ("sm_90", 256, 42, 0, 5, "registers"),  # 1344 -> 1536 a warp, 42 -> 40 warps
        ("sm_80", 128, 16, 48 << 10, 3, "shared memory"),  # 164 KiB / 49 KiB
        ("sm_75", 128, 16, 20 << 10, 3, "shared memory"),
        ("sm_86", 32, 16, 0, 16, "blocks"),
        ("sm_86", 1024, 16, 0, 1, "warps"),
    ],
)
def test_the_bound_of_the_occupancy(
    arch: str, threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    found = bound_occupancy(arch, threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * threads // 32
    assert found.share == pytest.approx(found.warps / LIMITS[arch].warps)
