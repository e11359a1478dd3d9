"""`bpc init`, `bpc doctor env` and `bpc completion`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bpc import api
from bpc.cli.init_command import FIRST, read_templates, template_path
from bpc.cli.main import cli
from bpc.diagnose import environment
from bpc.diagnose.environment import check_environment, working_devices
from bpc.resources import template_root

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = list(read_templates())


def facts(outcome: tuple[int, str, str]) -> Any:
    code, out, err = outcome
    assert (code, err) == (0, "")
    return json.loads(out)


# -- init -----------------------------------------------------------------------------------------


def test_templates_are_listed_with_what_they_show(run: Any) -> None:
    assert TEMPLATES[0] == FIRST and len(TEMPLATES) > 4
    listed = facts(run("init", "--list", "--json"))["templates"]
    assert [item["name"] for item in listed] == TEMPLATES
    assert all(item["about"].endswith(".") for item in listed)
    code, out, _ = run("init", "--list")
    assert code == 0 and all(item["about"] in out for item in listed)
    assert run("init", "--list", "--quiet")[1].split() == TEMPLATES


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_trains_and_has_nothing_to_warn_of(
    name: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = facts(run("init", "new/here", "--template", name, "--json"))
    assert written["file"] == f"new/here/{name}.yaml"
    net = api.compile(written["file"], device="reference")
    assert net.lint() == [] and net.spec.name == name
    before = net.evaluate()["test_loss"]
    result = net.train(steps=12, run_dir="run")
    assert result["steps"] == 12 and result["final"]["test_loss"] < before


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_explains_itself(name: str) -> None:
    first, *lines = template_path(name).read_text().splitlines()
    assert first.partition(":")[0].removeprefix("# ").lower().replace(" ", "-") == name
    commands = [line.removeprefix("#   bpc ").split() for line in lines if line[:6] == "#   bp"]
    assert commands
    for words in commands:
        assert words[0] in cli.commands
        assert any(f"{name}.yaml" in word or f"runs/{name}-1" in word for word in words)
    body = [line for line in lines if line.strip() and not line.startswith("#")]
    assert sum("#" in line for line in body) >= 4, "the spec says what its lines mean"
    assert max(map(len, lines)) <= 100


def test_nothing_is_overwritten(run: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert run("init", folder)[0] == 0
    path = tmp_path / f"{FIRST}.yaml"
    assert path.read_text() == template_path(FIRST).read_text()
    path.write_text("mine")
    code, out, err = run("init", folder)
    assert (code, out) == (2, "") and "is there already, and nothing is overwritten" in err
    assert path.read_text() == "mine"
    code, _, err = run("init", folder, "--template", "cnn")
    assert code == 2 and "there is no template 'cnn'; known are classes," in err
    code, _, err = run("init", str(path))
    assert (code, err) == (1, f"bpc: {path}: File exists\n")
    code, out, _ = run("init", str(tmp_path / "quiet"), "--quiet")
    assert (code, out) == (0, f"{tmp_path}/quiet/{FIRST}.yaml\n")


def test_a_wheel_has_the_templates() -> None:
    """setup.py takes all files of the folder of templates along."""
    assert (template_root() / "init" / f"{FIRST}.yaml").is_file()
    assert '"bpc._templates": ["**/*"]' in (ROOT / "setup.py").read_text()


# -- doctor ---------------------------------------------------------------------------------------


def test_what_is_here_is_found(run: Any) -> None:
    found = facts(run("doctor", "env", "--json"))
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["python"]["found"].startswith(sys.version.split()[0])
    assert sys.executable in parts["python"]["found"]
    if shutil.which("g++") and "CXX" not in os.environ:
        assert shutil.which("g++") in parts["compiler"]["found"]
        assert "cpu" in found["devices"]
    assert "reference" in found["devices"]
    for part in parts.values():
        assert part["use"] and (part["found"] is not None or part["install"])


def test_what_is_missing_says_what_to_do(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine without compiler, CUDA, packages, and with a cache that cannot be."""
    from bpc.runtime.cpu import toolchain
    from bpc.runtime.sim import nvrtc

    def no_spec(name: str) -> None:
        assert name == "nvidia"

    for module in (environment, nvrtc, sys.modules["bpc.diagnose.assembly"]):
        monkeypatch.setattr(module, "find_spec", no_spec)
    monkeypatch.setattr(environment, "_version_of", lambda *names: None)
    monkeypatch.setattr(environment, "_cuda_files", lambda end: iter(()))
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(()))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BPC_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    toolchain.find_toolchain.cache_clear()
    try:
        checks = check_environment()
        code, out, err = run("doctor", "env")
        quiet = run("doctor", "env", "--quiet")
    finally:
        monkeypatch.undo()
        toolchain.find_toolchain.cache_clear()
    missing = {check.name: check.install for check in checks if check.found is None}
    assert {"compiler", "cache", "nvrtc", "cuda-headers", "sim", "nvdisasm", "cuobjdump"} <= set(
        missing
    )
    assert {"ptxas", "cupy", "nvmath", "mlxtend", "graphviz"} <= set(missing)
    assert all(missing.values())
    assert "install g++ or clang++" in str(missing["compiler"])
    assert "BPC_CACHE" in str(missing["cache"])
    assert working_devices(checks) == ["reference"]
    assert (code, err) == (0, "") and 'pip install "bpc[sim]"' in out
    assert out.endswith("devices that have what they need: reference\n")
    assert quiet[0] == 0 and "numpy" not in quiet[1] and "cupy" in quiet[1]


class FakeDriver:
    """The four calls of the driver's library."""

    def __init__(self, version: int, names: list[str], broken: bool = False):
        self.version, self.names, self.broken = version, names, broken

    def cuDriverGetVersion(self, at: Any) -> int:
        at._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:
        return 999 if self.broken else 0

    def cuDeviceGetCount(self, at: Any) -> int:
        at._obj.value = len(self.names)
        return 0

    def cuDeviceGetName(self, buffer: Any, size: int, device: int) -> int:
        buffer.value = self.names[device].encode()
        return 0


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (FakeDriver(13000, ["GPU A", "GPU B"]), ("for CUDA 13.0", "GPU A and 1 more")),
        (FakeDriver(12080, ["GPU A"]), ("for CUDA 12.8", "GPU A")),
        (FakeDriver(13000, []), ("for CUDA 13.0", None)),
        (FakeDriver(13000, ["GPU A"], broken=True), ("for CUDA 13.0", None)),
    ],
)
def test_a_driver_is_asked(
    driver: FakeDriver, told: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: driver)
    checks = {check.name: check.found for check in check_environment()}
    assert (checks["driver"], checks["gpu"]) == told


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from bpc.cli.main import main; main(['doctor', 'env', '--json']);"
        "heavy = {'cupy', 'torch', 'sklearn', 'pandas', 'mlxtend', 'nvmath', 'jax'};"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_that_shell(shell: str, run: Any, tmp_path: Path) -> None:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "") and f"_BPC_COMPLETE={shell}_complete" in out
    assert facts(run("completion", shell, "--json"))["script"].strip() == out.strip()
    if shutil.which(shell):
        (tmp_path / "script").write_text(out)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def complete(words: str) -> set[str]:
    """What bash is told for a line whose last word is not finished."""
    environment = {
        **os.environ,
        **{"PYTHONPATH": str(ROOT), "_BPC_COMPLETE": "bash_complete"},
        **{"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)},
    }
    script = "import sys; sys.argv[0] = 'bpc'; from bpc.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return {line.split(",", 1)[1] for line in done.stdout.splitlines()}


def test_words_are_completed() -> None:
    assert complete("bpc p") == {"plan-memory", "predict"}
    assert complete("bpc train --de") == {"--device"}
    assert complete("bpc train --device c") == {"cpu", "cuda"}
    assert complete("bpc doctor e") == {"env"}
    assert complete("bpc completion ") == {"bash", "zsh", "fish"}
