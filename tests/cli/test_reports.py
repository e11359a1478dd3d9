"""The reporting commands as a user runs them: keys, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bpc.cli.plan_command import MOST_ROWS, format_results, keep_largest

ROOT = Path(__file__).resolve().parents[2]
SPEC = "specs/digits_mlp.yaml"
PLAN_KEYS = {
    *("planned_peak_bytes", "budget_bytes", "least_feasible_bytes", "forward_flops"),
    *("recompute_flops", "overhead_ratio", "classes", "tensors"),
}
TENSOR_KEYS = {"name", "bytes", "first", "last", "offset", "decision", "why", "type", "kind"}


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def answer(run: Any, *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(*words, "--json")
    return code, json.loads(out)


def test_plan_memory_has_the_promised_keys(run: Any) -> None:
    code, found = answer(run, "plan-memory", SPEC)
    assert (code, found["ok"], found["command"]) == (0, True, "plan-memory")
    assert set(found) >= PLAN_KEYS
    assert set(found["classes"]) == {
        "parameters",
        "gradients",
        "optimizer",
        "saved",
        "workspace",
    }
    for tensor in found["tensors"]:
        assert set(tensor) >= TENSOR_KEYS
        assert tensor["decision"] in {"kept", "repeated", "state", "input", "temporary"}
        assert tensor["why"] and "\n" not in tensor["why"]


def test_plan_memory_as_text_is_aligned_and_short(run: Any) -> None:
    code, out, err = run("plan-memory", SPEC)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("peak ") and " at launch " in lines[0]
    assert len(lines) == 4 + MOST_ROWS + 1
    assert "smaller ones" in lines[-1] and "--json" in lines[-1]
    row = next(line for line in lines if line.startswith("  relu1 "))
    assert row.endswith("linear2 weight gradient and relu1 gradient read it")
    assert len({line.index("kept") for line in lines[4:] if "  kept  " in line}) == 1


def test_a_long_list_keeps_its_order_and_its_bytes() -> None:
    rows = [
        {
            "name": f"t{size}",
            "bytes": size,
            "decision": "kept",
            "why": "",
            "first": 0,
            "last": 1,
            "offset": 0,
        }
        for size in range(MOST_ROWS + 5)
    ]
    assert [row["bytes"] for row in keep_largest(rows)] == list(range(5, MOST_ROWS + 5))
    facts = {"planned_peak_bytes": 1, "overhead_ratio": 0, "least_feasible_bytes": 1}
    lines = format_results({**facts, "classes": {}, "tensors": rows}, quiet=False)
    assert lines[-1] == "  and 5 smaller ones, 10 B together; --json lists all"


def test_the_picture_shows_the_arena_of_the_step(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "arena.svg"
    _, found = answer(run, "plan-memory", SPEC, "--svg", str(file))
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<svg") or "<svg" in text[:200]
    for name in ("relu1", "linear2.weight", "m.linear2.weight"):
        assert name in text
    assert found["planned_peak_bytes"] > 0
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("command", ["plan-memory", "train", "compile", "inspect"])
def test_a_budget_that_nothing_fits_ends_with_3(command: str, run: Any, tmp_path: Path) -> None:
    out = {"train": ("--device", "cpu"), "compile": ("--out", str(tmp_path))}.get(command, ())
    code, found = answer(run, command, SPEC, "--memory", "600KiB", *out)
    assert (code, found["ok"], found["budget_bytes"]) == (3, False, 600 * 1024)
    assert found["least_feasible_bytes"] > found["budget_bytes"]
    names = {tensor["name"] for tensor in found["alive"]}
    assert {"linear2.weight", "m.linear2.weight", "relu1"} <= names
    assert sum(tensor["bytes"] for tensor in found["alive"]) <= found["least_feasible_bytes"]
    assert not list(tmp_path.iterdir())


def test_the_least_feasible_budget_fits_and_one_byte_less_does_not(run: Any) -> None:
    spec = "specs/synthetic_mlp12.yaml"
    _, free = answer(run, "plan-memory", spec)
    least = free["least_feasible_bytes"]
    assert least < free["planned_peak_bytes"]
    code, tight = answer(run, "plan-memory", spec, "--memory", f"{least}B")
    assert (code, tight["planned_peak_bytes"]) == (0, least)
    assert tight["recompute_flops"] > 0 and tight["overhead_ratio"] > 0
    assert any(tensor["decision"] == "repeated" for tensor in tight["tensors"])
    code, _ = answer(run, "plan-memory", spec, "--memory", f"{least - 1}B")
    assert code == 3


def test_what_helps_is_planned_and_true(run: Any) -> None:
    code, _, err = run("plan-memory", SPEC, "--memory", "600KiB")
    assert code == 3
    assert err.startswith("--memory: error BPC0510: no plan fits 600.00 KiB")
    assert "alive at that peak, launch " in err
    help_lines = [line for line in err.splitlines() if "helps:" in line]
    assert any("sgd" in line for line in help_lines)
    small = answer(
        run,
        *("plan-memory", SPEC, "--set", "train.optimizer=sgd"),
        *("--set", "train.lr=1e-3"),
    )[1]
    figure = f"{small['least_feasible_bytes'] / 1024:.2f} KiB)"
    assert any(line.endswith(figure) for line in help_lines if "sgd" in line)


def test_a_budget_in_the_file_is_quoted(run: Any, tmp_path: Path) -> None:
    text = (ROOT / SPEC).read_text(encoding="utf-8")
    spec = tmp_path / "tight.yaml"
    spec.write_text(text.rstrip("\n") + "\n  memory: 600KiB\n", encoding="utf-8")
    code, _, err = run("plan-memory", str(spec))
    assert code == 3
    line = len(spec.read_text(encoding="utf-8").splitlines())
    assert err.startswith(f"{spec}:{line}:11: error BPC0510")
    assert "^^^^^^" in err


def test_inspect_adds_up(run: Any) -> None:
    _, found = answer(run, "inspect", SPEC)
    kernels = [kernel for kernel in found["kernels"] if kernel["launches"]]
    assert sum(kernel["launches"] for kernel in kernels) == found["launches_per_step"]
    moved = sum(kernel["bytes_read"] + kernel["bytes_written"] for kernel in kernels)
    assert moved == found["bytes_moved"] > found["least_bytes_moved"] > 0
    code, out, _ = run("inspect", SPEC)
    assert code == 0
    for kernel in kernels:
        assert kernel["name"] in out and ":" in kernel["from"]
    assert " x the least possible" in out


def test_inspect_shows_one_kernel_with_formulas_and_source(run: Any) -> None:
    code, out, _ = run("inspect", SPEC, "relu1_linear2_input_gradient")
    assert code == 0
    assert out.startswith("// relu1_linear2_input_gradient\n")
    assert "//   d_relu1 = acc\n//   d_linear1 = " in out
    _, found = answer(run, "inspect", SPEC, "adam_linear1_weight")
    assert found["name"] == "adam" and len(found["launches"]) == 6
    assert found["formulas"] and found["source"] in run("inspect", SPEC, "adam")[1]


def test_an_unknown_kernel_is_wrong_usage(run: Any) -> None:
    code, out, err = run("inspect", SPEC, "adan")
    assert (code, out) == (2, "")
    assert "did you mean 'adam'?" in err


def test_compile_says_what_it_wrote(run: Any, tmp_path: Path) -> None:
    code, found = answer(run, "compile", SPEC, "--out", str(tmp_path / "a"))
    assert code == 0
    assert {Path(file).name for file in found["files"]} == {
        path.name for path in (tmp_path / "a").iterdir()
    }
    assert found["launches_per_step"] == answer(run, "inspect", SPEC)[1]["launches_per_step"]
    code, out, _ = run("compile", SPEC, "--out", str(tmp_path / "b"), "--quiet")
    assert [Path(line).name for line in out.splitlines()] == [
        Path(file).name for file in found["files"]
    ]
