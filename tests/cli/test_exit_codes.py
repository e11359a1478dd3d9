from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bpc.errors import (
    BpcError,
    BudgetError,
    DataError,
    Diagnostic,
    Interrupted,
    LiveTensor,
    NonFiniteError,
    Span,
    SpecError,
    UsageError,
)

ROOT = Path(__file__).resolve().parents[2]
FAULT = Diagnostic("BPC0999", "something is wrong", Span("net.yaml", 3, 5))
FAULTS: dict[int, list[BpcError]] = {
    1: [SpecError([FAULT]), DataError([FAULT])],
    2: [UsageError([FAULT])],
    3: [BudgetError([FAULT], 1024, 2048, [LiveTensor("fc1.w", 512, "parameters")])],
    4: [NonFiniteError([FAULT], "fc1.y", 7, (3, 1), float("nan"))],
    130: [Interrupted([FAULT])],
}
CASES = [(code, fault) for code, faults in FAULTS.items() for fault in faults]


@pytest.mark.parametrize(("code", "fault"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_text_on_stderr(code: int, fault: BpcError, net: Any, run: Any) -> None:
    net.fault = fault
    found, out, err = run("plan-memory", "net.yaml")
    assert (found, out) == (code, "")
    assert "net.yaml:3:5" in err and "BPC0999" in err and "something is wrong" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("code", "fault"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_object_with_json(code: int, fault: BpcError, net: Any, run: Any) -> None:
    net.fault = fault
    found, out, err = run("plan-memory", "net.yaml", "--json")
    answer = json.loads(out)
    assert (found, err) == (code, "")
    assert (answer["command"], answer["ok"]) == ("plan-memory", False)
    assert answer["errors"][0]["place"]["line"] == 3


def test_an_impossible_budget_says_what_would_be_possible(net: Any, run: Any) -> None:
    (net.fault,) = FAULTS[3]
    answer = json.loads(run("plan-memory", "net.yaml", "--json")[1])
    assert (answer["budget_bytes"], answer["least_feasible_bytes"]) == (1024, 2048)
    assert answer["alive"] == [{"name": "fc1.w", "bytes": 512, "kind": "parameters"}]


def test_a_non_finite_value_says_where(net: Any, run: Any) -> None:
    (net.fault,) = FAULTS[4]
    answer = json.loads(run("train", "net.yaml", "--json")[1])
    assert [answer[key] for key in ("node", "step", "element", "value")] == [
        "fc1.y",
        7,
        [3, 1],
        "nan",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["trian", "net.yaml"],
        ["train"],
        ["train", "net.yaml", "--steps", "0"],
        ["train", "net.yaml", "--set", "lr"],
        ["train", "net.yaml", "--device", "tpu"],
        ["plan-memory", "net.yaml", "--nothing"],
        [],
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], net: Any, run: Any) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "Usage: bpc" in err


def test_wrong_usage_with_json_is_an_object_too(net: Any, run: Any) -> None:
    code, out, _ = run("train", "net.yaml", "--threads", "0", "--json")
    assert code == 2 and json.loads(out)["ok"] is False


def test_ctrl_c_ends_with_130(net: Any, run: Any) -> None:
    net.fault = KeyboardInterrupt()
    code, out, err = run("train", "net.yaml", "--quiet")
    assert (code, out, err.strip()) == (130, "", "bpc: interrupted")
    code, out, _ = run("train", "net.yaml", "--json")
    assert code == 130 and json.loads(out)["ok"] is False


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_the_system_says_no_in_one_line(number: int, net: Any, run: Any) -> None:
    net.fault = OSError(number, "the system's reason", "runs/x/metrics.jsonl")
    message = "runs/x/metrics.jsonl: the system's reason"
    assert run("train", "net.yaml", "--quiet") == (1, "", f"bpc: {message}\n")
    net.fault = OSError(number, "the system's reason")  # as a failing write raises it
    assert run("train", "net.yaml", "--quiet") == (1, "", "bpc: the system's reason\n")
    code, out, _ = run("train", "net.yaml", "--json")
    assert code == 1 and json.loads(out)["errors"][0]["message"] == "the system's reason"


def test_a_reader_that_stops_early_is_no_fault_to_speak_of() -> None:
    script = "import sys; from bpc.cli.main import main; sys.exit(main(['--help']))"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    noise = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), noise) == (1, b"")


@pytest.mark.parametrize("words", [["--help"], ["train", "--json"]])
def test_a_full_disk_under_stdout_is_said(words: list[str]) -> None:
    script = f"import sys; from bpc.cli.main import main; sys.exit(main({words}))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "bpc: No space left on device\n")
