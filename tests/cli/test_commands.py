from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from bpc.cli.output import bar, scaled, table
from bpc.cli.progress import StepBar, format_start

COMMANDS = {
    "train": ("steps", "device", "planned_peak_bytes", "arena_bytes", "step_ms_median", "final"),
    "plan-memory": ("planned_peak_bytes", "budget_bytes", "least_feasible_bytes", "tensors"),
    "compile": ("files", "kernels", "launches_per_step"),
    "inspect": ("kernels", "launches_per_step"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_object_on_stdout(command: str, net: Any, run: Any) -> None:
    code, out, err = run(command, "net.yaml", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer)[:3] == ["schema_version", "command", "ok"]
    assert (answer["schema_version"], answer["command"], answer["ok"]) == (1, command, True)
    assert set(COMMANDS[command]) <= set(answer)


def test_json_never_holds_what_json_lacks(net: Any, run: Any) -> None:
    _, out, _ = run("train", "net.yaml", "--json")
    assert json.loads(out)["final"]["test_loss"] == "inf"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_reach_the_compiler(command: str, net: Any, run: Any) -> None:
    options = "--set train.lr=1e-3 --set name=a=b --device reference --memory 2MiB --threads 1"
    code, _, _ = run(command, "net.yaml", *options.split(), "--seed", "3")
    assert code == 0
    assert (
        net.asked
        | {
            "spec": "net.yaml",
            "set": {"train.lr": "1e-3", "name": "a=b"},
            "device": "reference",
            "memory": "2MiB",
            "threads": 1,
            "seed": 3,
        }
        == net.asked
    )


def test_train_prints_a_head_a_row_an_evaluation_and_a_result(net: Any, run: Any) -> None:
    code, out, err = run("train", "net.yaml", "--steps", "46", "--run-dir", "there")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "digits-mlp   17,226 parameters   fp32   cpu (2 threads)   plan 1.43 MiB, budget none"
    )
    assert lines[1].split() == ["epoch", "step", "train", "valid", "acc", "lr", "|g|", "ms"]
    assert lines[2].split() == [
        "2",
        "46",
        "0.0500",
        "0.0900",
        "97.5%",
        "2.0e-03",
        "0.120",
        "███████▊",
    ]
    assert lines[3].split() == ["2", "46", "0.0500", "0.0900", "2.0e-03"]
    assert lines[4] == (
        "done: 97.5% on held-out rows, 46 steps, 0.123 ms a step, 1.43 MiB arena (as planned)"
    )
    assert lines[5] == "run: runs/digits-mlp-1"
    assert (net.asked["steps"], net.asked["run_dir"]) == (46, "there")


def test_columns_stand_under_their_names(net: Any, run: Any) -> None:
    header, row = run("train", "net.yaml")[1].splitlines()[1:3]
    for name, value in (("epoch", "2"), ("step", "46"), ("train", "0.0500"), ("lr", "2.0e-03")):
        assert header.index(name) + len(name) == row.index(value) + len(value)
    assert header.endswith("ms") and row[: len(header)].endswith("0.120")


def test_quiet_keeps_the_result_alone(net: Any, run: Any) -> None:
    assert [line.split()[0] for line in run("train", "n.yaml", "--quiet")[1].splitlines()] == [
        "done:",
        "run:",
    ]
    assert run("plan-memory", "n.yaml", "--quiet")[1].startswith("peak 1.43 MiB")
    assert run("inspect", "n.yaml", "--quiet")[1] == "gemm_fc1\npredict_fc1\n"
    assert run("compile", "n.yaml", "--quiet")[1].splitlines()[0] == "generated/n/n.cpp"


def test_at_most_three_notes_each_with_a_place(net: Any, run: Any) -> None:
    span = {"file": "n.yaml", "line": 9, "column": 5, "width": 2}
    net.notes = [{"text": f"layer {i}", "place": span} for i in range(5)]
    lines = run("train", "n.yaml")[1].splitlines()
    assert [line for line in lines if line.startswith("note")] == [
        f"note: layer {i} (n.yaml:9:5)" for i in range(3)
    ]


def test_plan_prints_peak_classes_and_tensors(net: Any, run: Any) -> None:
    code, out, _ = run("plan-memory", "net.yaml", "--svg", "plan.svg")
    lines = out.splitlines()
    assert code == 0 and net.asked["svg"] == "plan.svg"
    assert lines[0] == (
        "peak 1.43 MiB (1,500,000 B) of 2.00 MiB; +3.1% FLOPs repeated; least possible 683.59 KiB"
    )
    assert lines[1].split("   ")[0].strip() == "parameters 390.62 KiB"
    assert lines[3].split() == ["value", "type", "kept", "as", "bytes", "lives", "offset", "why"]
    assert "32,768   3-14  0x1000  relu reads its sign" in lines[4]
    assert lines[5].split() == ["fc2.y", "repeated", "16,384", "-", "-", "cheap"]


def test_inspect_lists_kernels_or_shows_one(net: Any, run: Any) -> None:
    lines = run("inspect", "net.yaml")[1].splitlines()
    assert lines[1].split() == [
        *("1", "gemm_fc1", "linear", "fc1", ":9"),
        *("2", "2.00", "KiB", "1.00", "KiB", "51.4M"),
    ]
    assert lines[2] == (
        "3 launches a step; 6.00 KiB moved, 1.50 x the least possible; 51.4M FLOPs"
    )
    assert lines[3] == "evaluate and predict also use predict_fc1"
    assert run("inspect", "net.yaml", "gemm_fc1")[1] == "void f() {}\n"


def test_compile_lists_its_files(net: Any, run: Any) -> None:
    lines = run("compile", "net.yaml", "--out", "there", "--dump", "stages")[1].splitlines()
    assert lines == [
        "wrote generated/n/n.cpp",
        "wrote generated/n/plan.json",
        "2 kernels, 9 launches a step",
    ]
    assert (net.asked["out"], net.asked["dump"], net.asked["target"]) == ("there", "stages", "cpu")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_goes_to_stderr_and_only_to_a_terminal(
    net: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    code, out, _ = run("train", "net.yaml")
    assert code == 0 and "97.5%" in out and "\x1b" not in out
    assert "1/46" in terminal.getvalue() and "loss 0.5" in terminal.getvalue()


def test_no_color_takes_the_colour_out_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for no_color in ("", "1"):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("NO_COLOR", no_color)
        steps = StepBar()
        steps.move(3, 10, None)
        steps.hide()
        shown[no_color] = terminal.getvalue()
    assert "\x1b[38;5" in shown[""] and "\x1b[38;5" not in shown["1"]


def test_small_formats() -> None:
    assert [scaled(n) for n in (12, 1234, 51_400_000, 2.5e12)] == ["12", "1.23k", "51.4M", "2.5T"]
    assert [bar(share) for share in (-1, 0, 0.5, 0.93, 1, 2)] == [
        "",
        "",
        "████",
        "███████▌",
        "████████",
        "████████",
    ]
    assert table(("a", "b"), [("xy", "1"), ("z", "22")], left=[0]) == [
        "  a    b",
        "  xy   1",
        "  z   22",
    ]
    facts = {"name": "n", "parameters": 5, "precision": "fp64", "device": "reference"}
    line = format_start({**facts, "planned_peak_bytes": 12, "budget_bytes": 2048})
    assert line == "n   5 parameters   fp64   reference   plan 12 B, budget 2.00 KiB"
