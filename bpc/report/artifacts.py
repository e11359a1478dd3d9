"""What `bpc compile` writes: source with its headers, plan, manifest, and a page about them.

Nothing in these files depends on the machine, the time, the current folder or the number of
threads: equal specs give equal bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpc.codegen.cpu import Source
from bpc.codegen.cuda import CudaSource, generate
from bpc.entries import Entries
from bpc.errors import UsageError
from bpc.plan.choose import Planned
from bpc.plan.naming import identifier
from bpc.plan.program import Program
from bpc.report.cuda_manifest import describe_cuda, describe_cuda_launches
from bpc.report.dump import dump_stages
from bpc.report.files import to_json, write_text
from bpc.report.manifest import count_step, describe_kernels, describe_launches, describe_table
from bpc.report.parameters import describe_parameters
from bpc.report.readme import write_readme
from bpc.report.timeline import Span, list_tensors
from bpc.resources import template_root
from bpc.runtime.cpu.build import write_source
from bpc.spec.model import Spec
from bpc.types import PORTABLE

SCHEMA_VERSION = 1
NO_TARGET = "BPC0604"
TARGETS = ("cpu", "cuda", "all")


@dataclass(frozen=True, slots=True)
class Sources:
    """The generated text of the targets that are wanted."""

    cpu: Source | None
    cuda: CudaSource | None


def write_artifacts(
    spec: Spec,
    entries: Entries,
    planned: Planned,
    target: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    dump: str | os.PathLike[str] | None = None,
    debug_lines: bool = False,
) -> dict[str, Any]:
    """Write everything and say what was written.

    Args:
        target: cpu, cuda or all.
        out: the folder; `generated/<name>` without it.
        dump: a folder for the text of every stage.
        debug_lines: let compilers and debuggers name the spec's line of each statement.

    Raises:
        UsageError: there is no such target.
        OSError: a file cannot be written.
    """
    program, name = planned.program, identifier(spec.name)
    sources = generate_sources(spec, program, target, debug_lines)
    folder = Path("generated") / name if out is None else Path(out)
    manifest = describe_manifest(spec, program, sources)
    texts = _source_texts(name, sources)
    if sources.cuda is not None:
        launches = describe_cuda_launches(program, sources.cuda)
        texts["launch.json"] = to_json({**_head(spec, program), "file": f"{name}.cu", **launches})
    texts["plan.json"] = to_json(describe_plan(spec, planned))
    texts["manifest.json"] = to_json(manifest)
    texts["README.md"] = write_readme(spec, planned, sources.cpu, sources.cuda)
    files = [write_text(folder / file, text) for file, text in texts.items()]
    if dump is not None:
        stages = dump_stages(spec, entries, planned)
        files += [write_text(Path(dump) / file, text) for file, text in stages.items()]
    return {
        "files": [str(file) for file in files],
        "kernels": _kernel_names(manifest),
        "launches_per_step": manifest["launches_per_step"],
        "arena_bytes": program.arena_bytes,
        "profile": PORTABLE.to_json(),
        "target": target,
        "parameters": describe_parameters(spec, entries),
    }


def generate_sources(
    spec: Spec, program: Program, target: str, debug_lines: bool = False
) -> Sources:
    """The text of a target, or of all.

    Raises:
        UsageError: there is no such target.
    """
    if target not in TARGETS:
        help = f"known are {', '.join(TARGETS)}"
        raise UsageError.at(NO_TARGET, f"there is no target '{target}'", None, help=help)
    cpu = write_source(program, spec.name, debug_lines) if target != "cuda" else None
    cuda = generate(spec.name, program, debug_lines) if target != "cpu" else None
    return Sources(cpu, cuda)


def _source_texts(name: str, sources: Sources) -> dict[str, str]:
    """File names to texts: sources, and the headers that they need."""
    texts = {}
    if sources.cpu is not None:
        texts[f"{name}.cpp"] = sources.cpu.text
    if sources.cuda is not None:
        texts[f"{name}.cu"] = sources.cuda.text
    return {**texts, **_headers(list(texts.values()))}


def _headers(texts: list[str]) -> dict[str, str]:
    """The headers that texts include, and those that they include."""
    found: dict[str, str] = {}
    pending = list(texts)
    while pending:
        for line in pending.pop().splitlines():
            name = line.removeprefix('#include "').rstrip('"')
            if line.startswith('#include "') and name not in found:
                found[name] = _find_header(name).read_text(encoding="utf-8")
                pending.append(found[name])
    return dict(sorted(found.items()))


def _find_header(name: str) -> Path:
    folders = [template_root() / target / "include" for target in ("cpu", "cuda")]
    return next(folder / name for folder in folders if (folder / name).is_file())


def _kernel_names(manifest: dict[str, Any]) -> list[str]:
    """The kernels of the CPU, else the functions that CUDA launches."""
    if "kernels" in manifest:
        return [kernel["name"] for kernel in manifest["kernels"]]
    return [item["name"] for item in manifest["cuda"]["functions"] if item["launched"]]


def describe_plan(spec: Spec, planned: Planned) -> dict[str, Any]:
    """`plan.json`: the arena, and for each entry point its tensors and launch table."""
    program = planned.program
    return {
        **_head(spec, program),
        "arena_bytes": program.arena_bytes,
        "budget_bytes": planned.budget_bytes,
        "forward_flops": planned.forward_flops,
        "recompute_flops": planned.recompute_flops,
        "step_flops": planned.step_flops,
        "persistent_bytes": program.persistent_bytes,
        "persistent": [
            tensor.to_json()
            for tensor in list_tensors(planned, _alone(program, next(iter(program.entries))))
            if tensor.name in program.persistent
        ],
        "entries": {name: _describe_entry(planned, name) for name in program.entries},
    }


def _alone(program: Program, entry: str) -> list[Span]:
    return [Span(entry, 0, len(program.entries[entry].kernels))]


def _describe_entry(planned: Planned, name: str) -> dict[str, Any]:
    program = planned.program
    entry = program.entries[name]
    tensors = [
        tensor.to_json()
        for tensor in list_tensors(planned, _alone(program, name))
        if tensor.name not in program.persistent
        and (tensor.first is not None or name == "micro_step")
    ]
    return {
        "peak_bytes": entry.replayed.peak_bytes,
        "live_bytes": entry.replayed.live_bytes,
        "tensors": tensors,
        "launches": describe_table(entry, program.rows),
    }


def describe_manifest(spec: Spec, program: Program, sources: Sources) -> dict[str, Any]:
    """`manifest.json`: each kernel with its launches, nodes and places; the order of launches.

    What is about CUDA stands under `cuda`.
    """
    accumulate, found = spec.train.accumulate, _head(spec, program)
    if sources.cpu is not None:
        found["launches_per_step"] = count_step(program, sources.cpu, accumulate)
        found["entries"] = describe_launches(program, sources.cpu)
        found["kernels"] = describe_kernels(program, sources.cpu)
    if sources.cuda is not None:
        cuda = describe_cuda(program, sources.cuda, accumulate)
        found.setdefault("launches_per_step", cuda["launches_per_step"])
        found["cuda"] = cuda
    return found


def _head(spec: Spec, program: Program) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": spec.name,
        "spec": spec.path,
        "profile": PORTABLE.to_json(),
        "rows": program.rows,
    }
