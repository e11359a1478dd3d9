from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bpc import resources

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("bpc", "templates", "specs", "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that the checkout stays clean."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", out, source], check=True)
    (built,) = out.glob("bpc-*.whl")
    return built


def test_a_checkout_has_its_resources() -> None:
    assert resources.template_root() == ROOT / "templates"
    assert resources.spec_root() == ROOT / "specs"
    assert resources.asset("digits.npz").is_file()


def files_below(folder: Path, pattern: str = "*") -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern) if path.is_file()}


def test_a_wheel_carries_everything_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"bpc/_templates/{name}" for name in files_below(ROOT / "templates")} <= names
    assert {f"bpc/_specs/{name}" for name in files_below(ROOT / "specs", "*.yaml")} <= names
    assert {f"bpc/{name}" for name in files_below(ROOT / "bpc", "*.py")} <= names
    assert {
        "bpc/py.typed",
        "bpc/data/assets/digits.npz",
        "bpc/data/assets/ATTRIBUTION.txt",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "templates/", "specs/"))]


def test_an_installed_wheel_finds_its_resources(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = (
        "from bpc.resources import asset, spec_root, template_root\n"
        "print(template_root(), spec_root(), asset('digits.npz'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = [Path(word) for word in done.stdout.split()]
    assert found[:2] == [tmp_path / "bpc" / "_templates", tmp_path / "bpc" / "_specs"]
    assert found[2].is_file()


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BPC_CACHE", str(tmp_path / "own"))
    assert resources.cache_root() == tmp_path / "own"
    monkeypatch.delenv("BPC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert resources.cache_root() == tmp_path / "bpc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert resources.cache_root() == Path.home() / ".cache" / "bpc"
