"""What `bpc compile` writes: source with its headers, plan, manifest, and a page about them.

Nothing in these files depends on the machine, the time, the current folder or the number of
threads: equal specs give equal bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bpc.codegen.cpu import Source
from bpc.entries import Entries
from bpc.errors import UsageError
from bpc.plan.choose import Planned
from bpc.plan.naming import identifier
from bpc.plan.program import Program
from bpc.report.dump import dump_stages
from bpc.report.files import to_json, write_text
from bpc.report.manifest import count_step, describe_kernels, describe_launches, describe_table
from bpc.report.timeline import Span, list_tensors
from bpc.runtime.cpu.build import write_source
from bpc.runtime.cpu.toolchain import FLAGS, include_folder
from bpc.spec.model import Spec
from bpc.types import PORTABLE, format_bytes

SCHEMA_VERSION = 1
NO_TARGET = "BPC0604"


def write_artifacts(
    spec: Spec,
    entries: Entries,
    planned: Planned,
    target: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    dump: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Write everything and say what was written.

    Args:
        out: the folder; `generated/<name>` without it.
        dump: a folder for the text of every stage.

    Raises:
        UsageError: there is no such target.
        OSError: a file cannot be written.
    """
    if target != PORTABLE.target:
        raise UsageError.at(NO_TARGET, f"there is no target '{target}'", None, help="known is cpu")
    program, name = planned.program, identifier(spec.name)
    source = write_source(program, spec.name)
    folder = Path("generated") / name if out is None else Path(out)
    texts = {f"{name}.cpp": source.text, **_headers(source.text)}
    texts["plan.json"] = to_json(describe_plan(spec, planned))
    manifest = describe_manifest(spec, program, source)
    texts["manifest.json"] = to_json(manifest)
    texts["README.md"] = _readme(spec, planned, source)
    files = [write_text(folder / file, text) for file, text in texts.items()]
    if dump is not None:
        stages = dump_stages(spec, entries, planned)
        files += [write_text(Path(dump) / file, text) for file, text in stages.items()]
    return {
        "files": [str(file) for file in files],
        "kernels": [kernel["name"] for kernel in manifest["kernels"]],
        "launches_per_step": manifest["launches_per_step"],
        "arena_bytes": program.arena_bytes,
        "profile": PORTABLE.to_json(),
    }


def _headers(text: str) -> dict[str, str]:
    """The headers that a text includes, and those that they include."""
    found: dict[str, str] = {}
    pending = [text]
    while pending:
        for line in pending.pop().splitlines():
            name = line.removeprefix('#include "').rstrip('"')
            if line.startswith('#include "') and name not in found:
                found[name] = (include_folder() / name).read_text(encoding="utf-8")
                pending.append(found[name])
    return dict(sorted(found.items()))


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


def describe_manifest(spec: Spec, program: Program, source: Source) -> dict[str, Any]:
    """`manifest.json`: each kernel with its launches, nodes and places; the order of launches."""
    return {
        **_head(spec, program),
        "launches_per_step": count_step(program, source, spec.train.accumulate),
        "entries": describe_launches(program, source),
        "kernels": describe_kernels(program, source),
    }


def _head(spec: Spec, program: Program) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": spec.name,
        "spec": spec.path,
        "profile": PORTABLE.to_json(),
        "rows": program.rows,
    }


def compile_command(name: str) -> str:
    """The command that compiles the source by hand, in its folder."""
    return f"g++ {' '.join(FLAGS)} -march=native -I. {name}.cpp -o {name}.so"


def _readme(spec: Spec, planned: Planned, source: Source) -> str:
    program, name = planned.program, identifier(spec.name)
    launches = count_step(program, source, spec.train.accumulate)
    arena = f"{format_bytes(program.arena_bytes)} ({program.arena_bytes:,} bytes)"
    return f"""# {spec.name}: a generated training program

`bpc compile {spec.path}` wrote this folder; changes are lost when it runs again.
A training step has {launches} launches and runs in one arena of {arena}.
The file has {len(source.functions)} kernels; `evaluate` and `predict` use them too.

| file | what it is |
| --- | --- |
| `{name}.cpp` | every kernel as one C++ function, and a table of them |
| `bpc_*.h` | what the kernels call: products, sums, functions, the team of threads |
| `plan.json` | the arena: each tensor's place, lifetime and reason; the launch tables |
| `manifest.json` | each kernel: its nodes, their lines in the spec, formulas, bytes and FLOPs |

## Compile it by hand

    {compile_command(name)}

`-ffp-contract=off` keeps results the same on every machine: a fused multiply-add happens only where
the text writes one. `-march=native` may be any processor; it changes the speed alone. The library
has one entry, `bpc_run_range(arena, launches, first, last, offsets, rows, threads)`, declared in
`bpc_team.h`.

## Read it

Above each function stand its formulas, the tensors that it reads and writes, what it moves for a
full batch of {program.rows} rows, and its lines in the spec. A comment behind a statement names
its layer and line. A function computes slice `slice` of its kernel. `offsets` holds the places of
its tensors in bytes, in the order of the declarations at its top, then the number of slices.
`rows` is the batch at hand.

To follow a tensor, find its name in `plan.json` (`first` and `last` are launches of that entry
point), then the `name` of those launches in `manifest.json`.
"""
