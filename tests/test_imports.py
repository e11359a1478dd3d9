"""Imports go one way: the table of places in the design, held for every module of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent

LEAVES = {"errors", "types"}
SCALARS = {*LEAVES, "leaf", "expr"}
GRAPH = {*SCALARS, "ir", "kernel", "ops", "derivation"}
CODE = {*GRAPH, "spec", "plan", "codegen"}
LOOP = {*CODE, "runtime", "loop"}

# place: (the modules in it by prefix, the places that they may import beside their own)
PLACES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "package": (("bpc.__init__",), set()),
    "errors": (("bpc.errors",), set()),
    "types": (("bpc.types",), set()),
    "leaf": (("bpc.resources", "bpc.philox"), LEAVES),
    "expr": (("bpc.expr",), {*LEAVES, "leaf"}),
    "ir": (("bpc.ir",), {*LEAVES, "expr"}),
    "kernel": (("bpc.kernel",), {*LEAVES, "expr", "ir"}),
    "ops": (("bpc.ops",), {*SCALARS, "ir", "kernel"}),
    "sources": (("bpc.data.sources", "bpc.data.order"), LEAVES),
    "spec": (("bpc.spec", "bpc.data.__init__", "bpc.data.describe"), {*LEAVES, "sources"}),
    "derivation": (
        (
            *("bpc.lower", "bpc.lossfit", "bpc.autodiff", "bpc.optimizer", "bpc.update"),
            *("bpc.optimizer_rules", "bpc.update_builder", "bpc.parameter_groups", "bpc.widen"),
            *("bpc.learning_rate", "bpc.clipping"),
            *("bpc.passes", "bpc.entries", "bpc.gradients"),
        ),
        {*SCALARS, "ir", "kernel", "ops", "spec"},
    ),
    "plan": (("bpc.plan",), GRAPH),
    "codegen": (("bpc.codegen",), {*GRAPH, "plan"}),
    "runtime": (("bpc.runtime",), CODE),
    "loop": (
        ("bpc.train", "bpc.data", "bpc.diagnose", "bpc.report"),
        {*CODE, "runtime", "package", "sources"},
    ),
    "api": (
        (
            *("bpc.api", "bpc.arrays", "bpc.continued"),
            *("bpc.predicting", "bpc.trained", "bpc.verify"),
        ),
        {*LOOP, "sources"},
    ),
    "cli": (("bpc.cli", "bpc.__main__"), {*LOOP, "api", "package"}),
}

# Imports inside a function that the table does not allow, each with its reason.
LAZY = {
    ("bpc.__init__", "bpc.api"): "bpc.compile is looked up when it is first used",
}

HEAVY = ("cupy", "highspy", "jinja2", "matplotlib", "networkx", "numpy", "onnx", "pydantic")
HEAVY += ("rich", "scipy", "sympy", "torch")


def find_modules(root: Path) -> dict[str, Path]:
    """Dotted name of each module below `root`; a package's own module ends in `__init__`."""
    found = {}
    for path in sorted((root / "bpc").rglob("*.py")):
        found[".".join(path.relative_to(root).with_suffix("").parts)] = path
    return found


MODULES = find_modules(ROOT)


def imports(name: str, tree: ast.AST, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of bpc that a module imports anywhere, function bodies included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from resolve(alias.name, modules)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(name, node)
            for alias in node.names:
                yield from resolve(f"{base}.{alias.name}", modules) or resolve(base, modules)


def absolute(name: str, node: ast.ImportFrom) -> str:
    """The module that a `from` names, relative dots worked out."""
    if not node.level:
        return node.module or ""
    parts = name.split(".")[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def resolve(target: str, modules: dict[str, Path]) -> list[str]:
    """The module of bpc with this dotted name, if there is one."""
    return [name for name in (target, f"{target}.__init__") if name in modules]


def place_of(name: str) -> str | None:
    """The place with the longest prefix that fits."""
    fits = [
        (len(prefix), place)
        for place, (prefixes, _) in PLACES.items()
        for prefix in prefixes
        if name == prefix or name.startswith(prefix + ".")
    ]
    return max(fits)[1] if fits else None


def edges(modules: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Every import between modules of bpc that no entry of LAZY excuses."""
    for name, path in modules.items():
        for target in imports(name, ast.parse(path.read_text()), modules):
            if target != name and (name, target) not in LAZY:
                yield name, target


EDGES = sorted(set(edges(MODULES)))


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_place(name: str) -> None:
    assert place_of(name), f"{name}: add it to PLACES"


@pytest.mark.parametrize("name", MODULES)
def test_imports_follow_the_arrows(name: str) -> None:
    place = place_of(name)
    allowed = PLACES[place][1] | {place}
    wrong = [
        target for source, target in EDGES if source == name and place_of(target) not in allowed
    ]
    assert not wrong, f"{name} ({place}) may import {sorted(allowed)}, not {wrong}"


def test_no_module_imports_itself_in_a_circle() -> None:
    assert list(nx.simple_cycles(nx.DiGraph(EDGES))) == []


def test_lazy_imports_are_used() -> None:
    for name, target in LAZY:
        assert target in set(imports(name, ast.parse(MODULES[name].read_text()), MODULES))


def test_the_reader_of_imports_sees_every_form(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "import bpc.errors",
            "from bpc import types",
            "from bpc.data import read as r",
            "from .order import rows_at",
            "from . import mnist",
            "from bpc.data.describe import describe",
            "import numpy",
            "def f():",
            "    from bpc.cli.main import main",
        ]
    )
    found = set(imports("bpc.data.batches", ast.parse(text), MODULES))
    data = {f"bpc.data.{name}" for name in ("read", "order", "mnist", "describe")}
    assert found == {"bpc.errors", "bpc.types", "bpc.cli.main", *data}


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from bpc.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "assert main(['train', '--help']) == 0\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "Usage: bpc" in done.stdout
