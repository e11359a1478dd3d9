"""What can go wrong around a command: never a traceback, always what and where."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from bpc import api
from bpc.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
bpc: 1
data: {source: inline, batch: 2, x: [[2], [1]], y: [[1], [0]]}
model: [linear: 1]
loss: mse
train: {steps: 2, optimizer: {sgd: {lr: 0.1}}}
"""
# What a command needs beside its first argument.
MORE: dict[str, list[str]] = {
    "graph": ["-o", "net.dot"],
    "verify-resume": ["--at", "1"],
    "export": ["-o", "net.safetensors"],
    "predict": ["in.csv", "-o", "out.csv"],
}
OF_RUNS = ("export", "predict")
ALONE = ("init", "schema", "doctor", "completion")
OF_SPECS = sorted(set(cli.commands) - {*OF_RUNS, *ALONE})
DEVICE = ["--device", "reference"]


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name, command in cli.commands.items():
        if isinstance(command, click.Group):
            for inner, leaf in command.commands.items():
                yield f"{name} {inner}", leaf
        else:
            yield name, command


COMMANDS = dict(every_command())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(SPEC)
    Path("in.csv").write_text("1\n2\n")
    Path("file").write_text("")
    Path("folder").mkdir()
    return tmp_path


def fails(run: Any, *words: str) -> str:
    """The message of a command that must fail in the way of people and in that of programs."""
    code, out, err = run(*words)
    assert code in (1, 2) and out == "" and err, (words, out)
    assert "Traceback" not in err and len(err) < 5000
    code, out, shown = run(*words, "--json")
    found = json.loads(out)
    assert code in (1, 2) and shown == "" and found["ok"] is False and found["errors"], words
    return str(err)


# -- one manner -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_in_one_manner(name: str, run: Any) -> None:
    command = COMMANDS[name]
    assert command.help and command.help.rstrip().endswith((".", "bpc.fish", "schema.json"))
    assert command.short_help and command.short_help.endswith(".") and len(command.short_help) < 46
    options = {flag: o for o in command.params if isinstance(o, click.Option) for flag in o.opts}
    assert {"--json", "--quiet"} <= set(options)
    for flag, option in options.items():
        text = (option.help or "").split("  [")[0]
        assert text[:1].isupper() or text.startswith("auto"), flag
        assert text.endswith(".") or "[default" in str(option.help), flag
        assert option.is_flag or option.metavar or isinstance(option.type, click.Choice), flag
    code, out, err = run(*name.split(), "-h")
    assert (code, err) == (0, "") and out.startswith(f"Usage: bpc {name}")
    assert max(map(len, out.splitlines())) <= 100


def test_options_of_one_name_mean_one_thing() -> None:
    seen: dict[str, set[tuple[str, bool]]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option):
                for flag in option.opts:
                    seen.setdefault(flag, set()).add((type(option.type).__name__, option.multiple))
    assert not {flag: found for flag, found in seen.items() if len(found) > 1}


# -- what is given --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*OF_SPECS, *OF_RUNS])
def test_what_is_not_there_or_something_else(command: str, run: Any) -> None:
    more = MORE.get(command, [])
    assert "nothing" in fails(run, command, "nothing", *more)
    assert "folder" in fails(run, command, "folder", *more)
    assert "file" in fails(run, command, "file", *more)
    odd = "na\u00efve \u2603\n\x1b[31m'\"" + os.fsdecode(b"\xff")
    assert "na" in fails(run, command, odd, *more)
    assert "x" * 50 in fails(run, command, "x" * 300, *more)
    assert fails(run, command, "", *more)


@pytest.mark.parametrize("command", OF_SPECS)
def test_a_spec_that_is_no_text(command: str, run: Any) -> None:
    more = MORE.get(command, [])
    for content in (b"\xff\xfe\x00", b"\x00" * 100, bytes(range(256)), b"[" * 5000):
        Path("bad.yaml").write_bytes(content)
        assert "bad.yaml" in fails(run, command, "bad.yaml", *more)


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file that cannot be read")
@pytest.mark.parametrize("command", [*OF_SPECS, *OF_RUNS])
def test_a_file_that_cannot_be_read(command: str, run: Any) -> None:
    assert "/proc/self/mem" in fails(run, command, "/proc/self/mem", *MORE.get(command, []))


def test_names_that_are_no_text_work(run: Any) -> None:
    name = os.fsdecode("m\u00fc\u2603 ".encode() + b"\xff.yaml")
    Path(name).write_text(SPEC)
    for command in sorted(set(OF_SPECS) - {"verify-resume"}):
        code, out, err = run(command, name, *MORE.get(command, []), *DEVICE)
        assert code == 0, (command, err)
        code, out, err = run(command, name, *MORE.get(command, []), *DEVICE, "--json")
        assert (code, err) == (0, "") and json.loads(out)["ok"], (command, err)


def test_output_that_lacks_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without bars and umlauts shows their codes."""
    from bpc.cli.main import main

    Path("\u2603.yaml").write_text(SPEC)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["config", "\u2603.yaml"]) == 0
    stream.flush()
    assert b"\\u2603.yaml:2:" in stream.buffer.getvalue()  # type: ignore[attr-defined]


# -- what is written ------------------------------------------------------------------------------

WRITERS = {
    "train": ["train", "net.yaml", *DEVICE, "--run-dir"],
    "compile": ["compile", "net.yaml", "--out"],
    "dump": ["compile", "net.yaml", "--out", "generated", "--dump"],
    "plan-memory": ["plan-memory", "net.yaml", "--svg"],
    "graph": ["graph", "net.yaml", "-o"],
    "schema": ["schema", "-o"],
    "init": ["init"],
    "explain": ["explain", "net.yaml", "--tex"],
    "export": ["export", "run", "-o"],
    "predict": ["predict", "run", "in.csv", *DEVICE, "-o"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_places_that_nothing_can_be_written_to(name: str, run: Any) -> None:
    api.compile("net.yaml", device="reference").train(run_dir="run")
    ending = {"graph": ".dot", "predict": ".npy", "export": ".safetensors"}.get(name, "")
    places = [f"file/below{ending}"]
    if os.path.isdir("/proc/self"):
        places.append(f"/proc/none/x{ending}")
    for place in places:
        assert place.split("/")[0] in fails(run, *WRITERS[name], place) or "proc" in place
    assert Path("file").read_text() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk at hand")
def test_a_disk_that_is_full(run: Any) -> None:
    api.compile("net.yaml", device="reference").train(run_dir="run")
    for words in (["config", "net.yaml"], ["schema"], ["init", "--list"], ["evaluate", "run"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "bpc", *words, *(DEVICE if "run" in words else [])],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert (done.returncode, done.stderr) == (1, "bpc: No space left on device\n"), words


@pytest.mark.parametrize(
    "words",
    [
        ["config", "net.yaml", "--resolved"],
        ["schema"],
        ["init", "--list"],
        ["doctor", "env"],
        ["completion", "bash"],
        ["evaluate", "net.yaml", *DEVICE],
        ["evaluate", "net.yaml", *DEVICE, "--json"],
        ["train", "net.yaml", *DEVICE],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_a_reader_that_has_gone(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bpc", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    noise = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), noise) == (1, b"")


# -- more memory than there is --------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_program_that_no_memory_holds_is_refused(device: str, command: str, run: Any) -> None:
    Path("net.yaml").write_text(SPEC.replace("[linear: 1]", "[linear: 2000000000000, linear: 1]"))
    err = fails(run, command, "net.yaml", "--device", device)
    assert "the program takes" in err and "of memory, and the machine has" in err
    assert "bpc plan-memory" in err


def test_memory_that_runs_out_elsewhere_is_said(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def starve(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 4 EiB")

    monkeypatch.setattr(api, "compile", starve)
    assert fails(run, "lint", "net.yaml") == "bpc: out of memory: Unable to allocate 4 EiB\n"


# -- names and numbers ----------------------------------------------------------------------------


def test_an_unknown_kernel_says_that_there_are_more_than_it_names() -> None:
    from bpc.report.inspect import no_kernel

    (few,) = no_kernel(["gemm", "adam"], "zzz").diagnostics
    assert few.help == "there are gemm, adam"
    (many,) = no_kernel([f"kernel{n}" for n in range(12)], "zzz").diagnostics
    assert many.help.endswith("kernel7 and 4 more; `bpc inspect SPEC` lists them")


def test_a_check_counts_in_words_that_fit() -> None:
    from bpc.cli import check_command

    kernels = {"rows": [1, 17, 20], "kernels": [], "findings": [], "spilling": []}
    assert check_command.format_results(kernels, True) == [
        "0 kernels on batches of 1, 17 and 20 rows: all sound"
    ]


def test_a_file_that_cannot_be_written_is_named_as_the_user_named_it(run: Any) -> None:
    err = fails(run, "schema", "-o", "/proc/net.json")
    assert err.startswith("bpc: /proc/net.json: ")
