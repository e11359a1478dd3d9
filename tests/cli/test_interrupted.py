"""Ctrl-C and SIGTERM at any moment: exit code 130, one line or one object, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from bpc.cli.interrupting import terminated_as_interrupted
from bpc.cli.main import main
from bpc.resources import spec_root

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
SIGNALS = [signal.SIGINT, signal.SIGTERM]


def run_struck(where: str, number: int, words: list[str]) -> subprocess.CompletedProcess[str]:
    """`python -m bpc`, which a signal strikes as soon as the module `where` is imported."""
    program = f"""
        import os, runpy, sys

        class Strike:
            def find_spec(self, name, path=None, target=None):
                if name == {where!r}:
                    sys.meta_path.remove(self)
                    os.kill(os.getpid(), {int(number)})

        sys.meta_path.insert(0, Strike())
        sys.argv = ["bpc", *{words!r}]
        runpy.run_module("bpc", run_name="__main__", alter_sys=True)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("where", ["click", "bpc.cli.train_command", "bpc.api", "numpy"])
def test_a_signal_while_modules_are_imported(where: str, number: int) -> None:
    words = ["plan-memory", str(spec_root() / "digits_mlp.yaml")]
    done = run_struck(where, number, words)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "bpc: interrupted")
    done = run_struck(where, number, [*words, "--json"])
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr.strip()) == (130, "")
    assert (found["command"], found["ok"]) == ("plan-memory", False)
    assert found["errors"][0]["message"] == "interrupted"


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["check", "plan-memory", "train"])
def test_a_signal_while_a_command_works(
    command: str, number: int, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bpc import api

    def strike(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(api, "compile", strike)
    before = signal.getsignal(number)
    code, out, err = run(command, "net.yaml")
    assert (code, out, err.strip()) == (130, "", "bpc: interrupted")
    code, out, _ = run(command, "net.yaml", "--json")
    assert code == 130 and json.loads(out)["errors"][0]["message"] == "interrupted"
    assert signal.getsignal(number) is before


def test_python_ends_with_the_code_though_it_was_struck_in_code_made_from_text() -> None:
    """Where a dataclass is made, `python -m` would else end as if SIGINT had killed it."""
    program = f"""
        import os, signal, sys
        from bpc.cli.main import report_interruption

        try:
            exec("os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(1000)]")
        except KeyboardInterrupt:
            sys.exit(report_interruption({["lint"]!r}))
    """
    Path("struck.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "-m", "struck"], env=ENVIRONMENT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"bpc: interrupted\n")


def test_after_the_training_loop_a_signal_still_interrupts(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bpc.train.loop import _Run

    finish = _Run._finish

    def struck(self: _Run, status: str, **more: Any) -> Any:
        found = finish(self, status, **more)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(_Run, "_finish", struck)
    spec = str(spec_root() / "digits_mlp.yaml")
    words = ("train", spec, "--device", "reference", "--steps", "2", "--quiet")
    code, out, err = run(*words, "--run-dir", "there")
    assert (code, out, err.strip()) == (130, "", "bpc: interrupted")
    assert Path("there/model.safetensors").exists()


def test_what_the_caller_does_with_sigterm_stays() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminated_as_interrupted():
            os.kill(os.getpid(), signal.SIGTERM)
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_commands_run_outside_the_main_thread() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
