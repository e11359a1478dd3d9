"""`bpc inspect` and `bpc compile` for CUDA as a user runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bpc.diagnose import assembly
from bpc.diagnose.occupancy import LIMITS
from bpc.errors import ToolError
from bpc.runtime.sim import nvrtc

ROOT = Path(__file__).resolve().parents[2]
SPEC = "specs/digits_mlp.yaml"
needs_nvrtc = pytest.mark.skipif(
    not any(path.is_file() for path in nvrtc.candidates()), reason="NVRTC is not installed"
)
TAKEN = {"registers", "spill_bytes", "shared_bytes", "stack_bytes", "occupancy", "block"}


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def answer(run: Any, *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(*words, "--json")
    return code, json.loads(out)


@needs_nvrtc
def test_the_list_says_what_kernels_take(run: Any) -> None:
    code, found = answer(run, "inspect", SPEC, "--target", "cuda")
    assert (code, found["ok"], found["target"], found["arch"]) == (0, True, "cuda", "sm_90")
    assert sum(kernel["launches"] for kernel in found["kernels"]) == found["launches_per_step"]
    for kernel in found["kernels"]:
        assert set(kernel) >= TAKEN
        assert kernel["spill_bytes"] == 0 and 8 <= kernel["registers"] <= 255
        assert 0 < kernel["occupancy"]["share"] <= 1
    out = run("inspect", SPEC, "--target", "cuda")[1]
    header, *rows = out.splitlines()
    assert header.split()[-4:] == ["regs", "spill", "shared", "occupancy"]
    assert "norm_and_control" in out and "CUDA C++ Programming Guide" in out
    assert all(row.rstrip().endswith("%") for row in rows[: found["launches_per_step"]])


@needs_nvrtc
def test_both_targets_move_the_same_bytes(run: Any) -> None:
    cpu, cuda = (answer(run, "inspect", SPEC, "--target", name)[1] for name in ("cpu", "cuda"))
    for key in ("bytes_moved", "flops", "least_bytes_moved"):
        assert cpu[key] == cuda[key]
    assert cuda["launches_per_step"] <= cpu["launches_per_step"]


@needs_nvrtc
def test_one_kernel_shows_spec_formula_and_cuda_beside_each_other(run: Any) -> None:
    _, found = answer(run, "inspect", SPEC, "linear1_relu1", "--target", "cuda")
    spec = (ROOT / SPEC).read_text("utf-8").splitlines()
    made = [row["formula"].split(" = ")[0] for row in found["lines"]]
    assert made == ["acc[r, c]", "linear1", "relu1"]
    product, *rest = found["lines"]
    assert product["cuda"].startswith("bpc_gemm<float>(block, x_in, 64, 1, ")
    for row in found["lines"]:
        assert spec[row["place"]["line"] - 1].strip().startswith(row["spec"])
        assert "#" not in row["spec"]
    assert all(row["cuda"].startswith("const float ") for row in rest)
    code, out, _ = run("inspect", SPEC, "linear1_relu1", "--target", "cuda", "--source")
    row = next(line for line in out.splitlines() if "linear1 = acc" in line)
    places = [row.index(word) for word in ("- linear", "linear1 = acc", "const float linear1 =")]
    assert code == 0 and places == sorted(places)
    assert found["source"].rstrip("\n") in out
    assert "limited by registers" in out


@needs_nvrtc
def test_a_part_of_a_launch_is_found_by_its_kernel(run: Any) -> None:
    _, found = answer(run, "inspect", SPEC, "norm_linear2_weight", "--target", "cuda")
    assert (found["name"], found["launched_as"]) == ("norm_chunks", "norm_and_control")
    _, whole = answer(run, "inspect", SPEC, "norm_and_control", "--target", "cuda")
    assert whole["calls"] == ["norm_chunks", "update_control"]
    assert found["registers"] == whole["registers"]
    assert set(found["formulas"]) < set(whole["formulas"])
    code, _, err = run("inspect", SPEC, "norm", "--target", "cuda")
    assert code == 2 and "did you mean 'norm_chunks'?" in err


@needs_nvrtc
def test_ptx_stands_between_the_lines_of_its_source(run: Any) -> None:
    code, found = answer(run, "inspect", SPEC, "linear3_bias_gradient", "--ptx")
    ptx = found["ptx"]
    assert code == 0 and ".entry linear3_bias_gradient(" in ptx and ptx.rstrip().endswith("}")
    assert len(re.findall(r"\.entry", ptx)) == 1
    marked = re.findall(r"^// (network\.cu|bpc_\w+\.h):(\d+)  (.+)$", ptx, re.MULTILINE)
    assert len(marked) > 10
    assert any("__syncthreads();" in text for _, _, text in marked)
    before_barrier = ptx[: ptx.index("bar.sync")].splitlines()
    last = next(line for line in reversed(before_barrier) if line.startswith("// "))
    assert last.endswith("__syncthreads();")


@needs_nvrtc
def test_ptx_stands_beside_the_line_that_it_came_from(run: Any) -> None:
    """Found by what only one line can need; what the loops around need is nobody's."""
    whole = 0
    for kernel, line, instruction in (
        ("linear1_relu1", "acc[r, c]", "fma.rn"),
        ("linear1_relu1", "linear1", "add.rn"),
        ("linear1_relu1", "relu1", "setp."),
        ("loss_cross_entropy", "loss_exp", "fma.rn"),
        ("linear3_bias_gradient", "d_linear3_bias_cols[c]", "add.rn"),
        ("adam", "next_parameter", "sqrt.rn"),
        ("norm_and_control", "grad_norm_linear1_weight", "sqrt.rn"),
    ):
        _, found = answer(run, "inspect", SPEC, kernel, "--ptx")
        rows = {row["formula"].split(" = ")[0]: row["ptx"] for row in found["lines"]}
        where = [made for made, code in rows.items() if any(instruction in one for one in code)]
        assert line in where, (kernel, rows.keys(), where)
        whole += sum(map(len, rows.values()))
        lines = [" ".join(text.split()).rstrip(";") for text in found["ptx"].splitlines()]
        assert all(one in lines for code in rows.values() for one in code)
    assert whole > 500
    out = run("inspect", SPEC, "linear1_relu1", "--ptx")[1].splitlines()
    row = next(text for text in out if "relu1 = 0 if" in text)
    assert "setp.le" in row.split(";")[-1] and "and 56 more, below" in "\n".join(out)


@needs_nvrtc
def test_sass_likewise_or_what_to_install(run: Any) -> None:
    try:
        assembly.find_disassembler()
    except ToolError:
        code, _, err = run("inspect", SPEC, "adam", "--sass")
        assert code == 1 and 'pip install "bpc[sass]"' in err
        return
    code, found = answer(run, "inspect", SPEC, "adam", "--sass")
    assert code == 0 and re.search(r"/\*0000\*/ .*;", found["sass"])
    assert "EXIT" in found["sass"] and "// network.cu:" in found["sass"]


@needs_nvrtc
def test_a_missing_disassembler_says_what_to_install(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "_candidates", lambda: iter(()))
    code, out, err = run("inspect", SPEC, "adam", "--sass")
    assert (code, out) == (1, "")
    assert "nvdisasm" in err and 'pip install "bpc[sass]"' in err


def test_missing_nvrtc_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(()))
    code, out, err = run("inspect", SPEC, "--target", "cuda")
    assert (code, out) == (1, "")
    assert 'pip install "bpc[sim]"' in err


@pytest.mark.parametrize("option", ["--ptx", "--sass", "--source"])
def test_text_of_all_kernels_at_once_is_wrong_usage(option: str, run: Any) -> None:
    code, _, err = run("inspect", SPEC, option)
    assert code == 2 and f"{option} shows one kernel" in err


def test_every_architecture_on_offer_has_limits() -> None:
    from bpc.cli.inspect_command import ARCHITECTURES

    assert set(ARCHITECTURES) == set(LIMITS)


@pytest.mark.parametrize(
    ("target", "sources"), [("cuda", {".cu"}), ("cpu", {".cpp"}), ("all", {".cu", ".cpp"})]
)
def test_compile_writes_the_targets_asked_for(
    target: str, sources: set[str], run: Any, tmp_path: Path
) -> None:
    words = ("compile", SPEC, "--target", target, "--out", str(tmp_path))
    code, found = answer(run, *words, "--debug-lines")
    files = {Path(file) for file in found["files"]}
    assert code == 0 and found["target"] == target
    assert {file.name for file in files} == {path.name for path in tmp_path.iterdir()}
    assert {file.suffix for file in files} & {".cu", ".cpp"} == sources
    assert (tmp_path / "launch.json").exists() == (target != "cpu")
    for file in files:
        if file.suffix in sources:
            assert f'#line 16 "{SPEC}"' in file.read_text("utf-8")
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert found["launches_per_step"] == manifest["launches_per_step"]
