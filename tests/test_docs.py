"""The documentation says what is so: tables are fresh, samples run, links and names exist.

In a Markdown file, a comment before a block of code says what is done with it:

    <!-- file: NAME -->       the block is written to NAME for the blocks below it
    <!-- run -->              a console block's commands (`$ ...`) must exit with 0 and print what
                              stands below them; a python block must run and print the `text`
                              block behind it
    <!-- run: exit 3 -->      the last command must exit with 3
    <!-- run: x86 -->         only on x86 processors

Numbers may differ, other words may not; a line `...` stands for any lines. All blocks of a file
share one folder. `--update-golden` writes samples and tables anew.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)

FENCE = re.compile(
    r"^(?:<!-- (?P<mark>(?:run|file)[^>]*?) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code: what is to be done with it, and where its body stands in the page."""

    mark: str
    kind: str
    body: str
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    return [
        Block(m["mark"] or "", m["kind"], m["body"], m.start("body"), m.end("body"))
        for m in FENCE.finditer(text)
    ]


# -- samples --------------------------------------------------------------------------------------


@pages
def test_samples_are_what_the_code_prints(page: Path, tmp_path: Path, update_golden: bool) -> None:
    text = page.read_text(encoding="utf-8")
    changes = list(run_blocks(text, make_sandbox(tmp_path)))
    if update_golden:
        for start, end, found in reversed(changes):
            text = text[:start] + found + text[end:]
        page.write_text(text, encoding="utf-8")
        return
    for start, end, found in changes:
        assert plain(found) == plain(text[start:end]), "\n" + found


def make_sandbox(folder: Path) -> Path:
    """A folder with the specs, and `bpc` on the path."""
    (folder / "bin").mkdir()
    shutil.copytree(ROOT / "specs", folder / "specs")
    command = folder / "bin" / "bpc"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bpc.cli.main "$@"\n')
    command.chmod(0o755)
    return folder


def run_blocks(text: str, folder: Path) -> Iterator[tuple[int, int, str]]:
    """(start, end, what should stand there) for each sample of a page."""
    found = blocks(text)
    for at, block in enumerate(found):
        if block.mark.startswith("file: "):
            (folder / block.mark.removeprefix("file: ")).write_text(block.body)
        if not block.mark.startswith("run") or skipped(block.mark):
            continue
        if block.kind == "python":
            after = found[at + 1]
            assert after.kind == "text", "a python block is followed by what it prints"
            code, printed = execute([sys.executable, "-c", block.body], folder)
            assert code == 0, printed
            yield after.start, after.end, fit(printed, after.body)
        else:
            yield block.start, block.end, run_console(block, folder)


def skipped(mark: str) -> bool:
    return "x86" in mark and platform.machine() not in ("x86_64", "AMD64")


def run_console(block: Block, folder: Path) -> str:
    """The block with what its commands print."""
    parts = re.split(r"^(\$ .*)\n", block.body, flags=re.MULTILINE)[1:]
    written, code = "", 0
    for command, sample in zip(parts[::2], parts[1::2], strict=True):
        code, printed = execute(["bash", "-c", command[2:]], folder)
        written += f"{command}\n{fit(printed, sample)}"
    wanted = re.search(r"exit (\d+)", block.mark)
    assert code == (int(wanted[1]) if wanted else 0), written
    return written


def execute(words: list[str], folder: Path) -> tuple[int, str]:
    """The exit code, and everything that was printed."""
    environment = dict(os.environ)
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


def fit(printed: str, sample: str) -> str:
    """What was printed, cut as the sample is: `...` for lines in the middle."""
    lines, shown = printed.splitlines(), sample.splitlines()
    if "..." in shown:
        at = shown.index("...")
        behind = len(shown) - at - 1
        assert len(lines) >= at + behind, printed
        lines = [*lines[:at], "...", *lines[len(lines) - behind :]]
    return "".join(f"{line}\n" for line in lines)


def plain(text: str) -> list[str]:
    """The lines without numbers, bars, and what names the machine."""
    text = re.sub(r"\(\d+ threads?, [\w-]+\)", "(threads)", text)
    text = re.sub(r"[█▏▎▍▌▋▊▉]+", "", text)
    text = re.sub(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_sample_that_says_something_else_is_found() -> None:
    assert plain("done: 97.8% in 1.2 s ███") == plain("done: 98% in 13 s █▎")
    assert plain("peak 1 MiB, as planned") != plain("peak 1 MiB, planned 2 MiB")
    assert fit("a\nb\nc\nd\n", "x\n...\ny\n") == "a\n...\nd\n"


# -- tables ---------------------------------------------------------------------------------------


@cache
def table_maker() -> ModuleType:
    place = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    assert place is not None and place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_tables_of_the_spec_page_are_fresh(update_golden: bool) -> None:
    page = ROOT / "docs" / "spec.md"
    text = page.read_text(encoding="utf-8")
    made = table_maker().embed(text)
    if update_golden:
        page.write_text(made, encoding="utf-8")
    assert made == text, "run python docs/make_tables.py"


def test_every_table_is_shown() -> None:
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- table: ([a-z ]+) -->", text)
    assert sorted(shown) == sorted(table_maker().make_tables())


KEYS = re.compile(r"<!-- keys: ([a-z-]+) -->\n(.*?)\n\n", re.DOTALL)
COMMON = {"schema_version", "command", "ok"}


def documented_keys() -> dict[str, set[str]]:
    """What docs/conventions.md says that the object of each command has."""
    text = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
    found = {}
    for command, table in KEYS.findall(text):
        cells = [line.split("|")[1] for line in table.splitlines()[2:]]
        found[command] = {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
    return found


MORE_WORDS = {"verify-resume": ["--at", "1"], "graph": ["-o", "net.svg"]}
OF_RUNS = {"export"}  # they take no spec


@pytest.mark.parametrize("command", sorted(set(documented_keys()) - OF_RUNS))
def test_json_has_the_documented_keys(command: str, tmp_path: Path) -> None:
    more = MORE_WORDS.get(command, [])
    words = ["bpc", command, "specs/worked/neuron.yaml", "--json", *more]
    code, printed = execute(words, make_sandbox(tmp_path))
    assert code == 0, printed
    assert set(json.loads(printed)) - COMMON == documented_keys()[command]


# -- links and names ------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    text = without_code(page.read_text(encoding="utf-8"))
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        known = file.suffix != ".md" or not anchor or (file.exists() and anchor in anchors(file))
        if not file.exists() or not known:
            wrong.append(target)
    assert not wrong


PLACE = re.compile(
    r"`((?:bpc|templates|tests|specs|docs|benchmarks|generated)/[\w./-]+)(?::([\w.]+))?`"
)


@pages
def test_named_files_and_functions_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = []
    for name, member in PLACE.findall(text):
        path = ROOT / name
        if not path.exists() or (member and not defines(path, member)):
            wrong.append(f"{name}:{member}")
    assert not wrong


def defines(path: Path, member: str) -> bool:
    """Whether a file defines a function, class, method or constant of that name."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.search(rf"\b{re.escape(member)}\b", text) is not None
    scope: list[ast.stmt] = ast.parse(text).body
    for part in member.split("."):
        found = next((node for node in scope if part in names_of(node)), None)
        if found is None:
            return False
        scope = getattr(found, "body", [])
    return True


def names_of(node: ast.stmt) -> set[str]:
    """The names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_finder_of_names_finds_and_misses() -> None:
    here = Path(__file__)
    assert defines(here, "names_of") and defines(here, "Block") and defines(here, "ROOT")
    assert not defines(here, "nothing_of_this_name") and not defines(here, "Block.missing")
    assert defines(ROOT / "bpc" / "spec" / "names.py", "Names.make")


TEXTS = ("bpc/**/*", "docs/*", "specs/**/*", "templates/**/*", "generated/**/*", "README.md")
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|mnt|Users)/\w|\.\./shared")


def test_nothing_names_a_place_on_a_machine() -> None:
    files = [path for glob in TEXTS for path in ROOT.glob(glob) if path.is_file()]
    readable = [path for path in files if path.suffix not in (".pyc", ".npz", ".so")]
    wrong = [path for path in readable if MACHINE.search(path.read_text(encoding="utf-8"))]
    assert readable and not wrong
