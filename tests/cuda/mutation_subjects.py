"""Small networks with tails and unequal sides, and what each of their launches finds in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bpc.api import compile as compile_net
from bpc.codegen import cuda
from bpc.codegen.amalgamate import single_file
from bpc.codegen.cuda import CudaFunction, CudaSource
from bpc.diagnose.kernels import (
    Item,
    KernelCheck,
    Run,
    check_launch,
    list_calls,
    storage_bytes,
    take_launch,
)
from bpc.diagnose.session import Preparer, row_counts
from bpc.diagnose.twin import Twin
from bpc.entries import build_entries
from bpc.resources import template_root
from bpc.runtime.cpu.build import plan
from bpc.runtime.host_arena import HostArena
from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import Mode, SimModule, load_cuda

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "mutated"
LIMITS = LaunchOptions(seconds=4.0, max_accesses=20_000_000)
FIRST_RUNS = (Run("source", LIMITS), Run("source", replace(LIMITS, order="reverse"), tight=True))
HEADER = (template_root() / "cuda" / "include" / "bpc_cuda.h").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Case:
    """A launch as the checker runs it; `work` is a rough measure of how long that takes."""

    item: Item
    work: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A network's CUDA text, and for each global function the launches that it is checked with."""

    name: str
    source: CudaSource
    cases: Mapping[str, tuple[Case, ...]] = field(repr=False)

    def callers(self, function: str) -> list[str]:
        """The launched functions that are or call this one."""
        return [
            item.name
            for item in self.source.functions
            if item.is_global and (item.name == function or function in item.calls)
        ]

    def text(self, launched: str, changed: Mapping[str, str] | None = None) -> str:
        """A launched function with what it calls and nothing else; `changed` texts by name."""
        changed = changed or {}
        wanted = (launched, *self.source.function(launched).calls)
        start, include, _ = self.source.text.partition('#include "bpc_cuda.h"\n')
        typedef = re.findall(r"^typedef .*$", start, re.M)
        parts = [f"{line}\n" for line in typedef] + [include]
        parts += [
            changed.get(item.name, item.text)
            for item in self.source.functions
            if item.name in wanted
        ]
        return "\n".join(parts)

    def function(self, name: str) -> CudaFunction:
        """A function of the text."""
        return self.source.function(name)


def complete(text: str, header: str = HEADER) -> str:
    """A text with its headers in it, one of them as given."""
    folders = [template_root() / target / "include" for target in ("cuda", "cpu")]
    whole = single_file(text, "network.cu", folders)
    body = HEADER.partition('#include "bpc_storage.h"\n')[2]
    assert body in whole
    return whole.replace(body, header.partition('#include "bpc_storage.h"\n')[2])


def load(text: str, mode: str) -> SimModule:
    """A checked module of a complete text."""
    kind: Mode = "source" if mode == "source" else "ptx"
    return load_cuda(text, kind, checked=True, name="network.cu")


def read_subjects(names: Sequence[str] = (), checked: bool = True) -> list[Subject]:
    """The networks of the folder, or those named."""
    paths = [path for path in sorted(FOLDER.glob("*.yaml")) if not names or path.stem in names]
    return [read_subject(path, checked) for path in paths]


def read_subject(path: Path, checked: bool = True) -> Subject:
    """One network: its text on unbroken lines, and all launches of its entry points.

    Args:
        path: of the spec.
        checked: whether each launch is run unchanged first, since a network with a finding is no
            subject. Otherwise what it leaves is taken from the C++ kernels.
    """
    net = compile_net(str(path), device="reference")
    rows = net.spec.data.batch
    entries = build_entries(net.spec, net.description)
    program = plan(entries).program
    source = generate_unbroken(net.spec.name, program)
    device, twin = HostArena(program), Twin(program)
    prepare = Preparer(net.spec, entries, net.data)
    subject = Subject(path.stem, source, {})
    cases: dict[str, list[Case]] = {}
    for call in list_calls(program, source, row_counts(rows)):
        prepare(device, call)
        for launch in call.launches:
            item = take_launch(device, program.entries[call.entry], launch, call.rows, twin)
            if checked:
                _check_unchanged(subject, item)
            work = launch.grid * launch.threads + sum(map(len, item.before.values()))
            cases.setdefault(launch.function, []).append(Case(item, work))
            for home, raw in item.twin.items():
                storage_bytes(device.arena, item.entry, home)[...] = raw
    return replace(subject, cases={name: tuple(found) for name, found in cases.items()})


def _check_unchanged(subject: Subject, item: Item) -> None:
    name = item.launch.function
    checks: dict[str, KernelCheck] = {}
    modules = {"source": load(complete(subject.text(name)), "source")}
    check_launch(item, modules, [Run("source", LaunchOptions())], checks)
    assert checks[name].ok, f"{subject.name}: {checks[name].findings[0]}"


def generate_unbroken(title: str, program: Any) -> CudaSource:
    """The CUDA text before long lines are broken, so that lines are those of the templates."""
    wrap = cuda.wrap_code
    cuda.wrap_code = str  # type: ignore[assignment]
    try:
        return cuda.generate(title, program)
    finally:
        cuda.wrap_code = wrap


# -- who uses what --------------------------------------------------------------------------------


def header_names(header: str) -> list[tuple[int, str]]:
    """Where each function, structure and constant of the header begins."""
    found = []
    for match in re.finditer(
        r"^(?:template [^\n]*\n)?(?:template <[^\n]*> )?(?:BPC_DEVICE [^\n]*?\b(bpc_\w+)\("
        r"|(?:template <[^\n]*> )?struct [^\n]*?\b(bpc_\w+) \{|constexpr \w+ (bpc_\w+) =)",
        header,
        re.M,
    ):
        found.append((match.start(), next(name for name in match.groups() if name)))
    return found


def header_uses(header: str) -> dict[str, set[str]]:
    """For each name of the header, the names whose text mentions it, however many steps away."""
    starts = header_names(header)
    ends = [start for start, _ in starts[1:]] + [len(header)]
    texts = {name: header[start:end] for (start, name), end in zip(starts, ends, strict=True)}
    for match in re.finditer(r"^constexpr \w+ ([^;]*);", header, re.M):
        for name in re.findall(r"(bpc_\w+) = ", match[1]):
            texts.setdefault(name, match[0])
    uses = {
        name: {other for other, text in texts.items() if re.search(rf"\b{name}\b", text)}
        for name in texts
    }
    changed = True
    while changed:
        changed = False
        for found in uses.values():
            more = set().union(*(uses[name] for name in found)) - found
            found.update(more)
            changed = changed or bool(more)
    return uses
