"""The page that `bpc compile` writes beside what it generates."""

from __future__ import annotations

from bpc.codegen.cpu import Source
from bpc.codegen.cuda import CudaSource
from bpc.plan.choose import Planned
from bpc.plan.naming import identifier
from bpc.report.cuda_manifest import count_cuda_step
from bpc.report.manifest import count_step
from bpc.runtime.cpu.toolchain import FLAGS
from bpc.runtime.sim.nvrtc import FLAGS as NVRTC_FLAGS
from bpc.spec.model import Spec
from bpc.types import format_bytes


def compile_command(name: str) -> str:
    """The command that compiles the C++ source by hand, in its folder."""
    return f"g++ {' '.join(FLAGS)} -march=native -I. {name}.cpp -o {name}.so"


def nvcc_command(name: str) -> str:
    """The command that compiles the CUDA source by hand, in its folder."""
    flags = " ".join(NVRTC_FLAGS)
    return f"nvcc -cubin -arch=sm_90 {flags} -lineinfo -I. {name}.cu -o {name}.cubin"


def write_readme(
    spec: Spec, planned: Planned, cpu: Source | None, cuda: CudaSource | None
) -> str:
    """The page about the files of the targets that were written."""
    program, name = planned.program, identifier(spec.name)
    arena = f"{format_bytes(program.arena_bytes)} ({program.arena_bytes:,} bytes)"
    parts = [
        f"# {spec.name}: a generated training program",
        f"`bpc compile {spec.path}` wrote this folder; changes are lost when it runs again.\n"
        f"A training step runs in one arena of {arena}.",
        "\n".join(_summaries(spec, planned, cpu, cuda)),
        "\n".join(_files(name, cpu, cuda)),
    ]
    if cpu is not None:
        parts += [_COMPILE_CPU.format(command=compile_command(name)), _READ_CPU]
    if cuda is not None:
        parts += [_compile_cuda(name), _LAUNCH_CUDA, _READ_CUDA]
    parts += [_FOLLOW.format(rows=program.rows)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _summaries(
    spec: Spec, planned: Planned, cpu: Source | None, cuda: CudaSource | None
) -> list[str]:
    program, accumulate = planned.program, spec.train.accumulate
    lines = []
    if cpu is not None:
        launches, kernels = count_step(program, cpu, accumulate), len(cpu.functions)
        lines.append(f"- CPU: {launches} launches a step; the file has {kernels} kernels.")
    if cuda is not None:
        launches = count_cuda_step(program, cuda, accumulate)
        kernels = sum(function.is_global for function in cuda.functions)
        lines.append(f"- CUDA: {launches} launches a step; the file has {kernels} kernels.")
    return lines


def _files(name: str, cpu: Source | None, cuda: CudaSource | None) -> list[str]:
    rows = []
    if cpu is not None:
        rows.append((f"{name}.cpp", "every kernel as one C++ function, and a table of them"))
    if cuda is not None:
        rows.append((f"{name}.cu", "every kernel as CUDA C++, in the order of launches"))
        rows.append(("launch.json", "every launch: grid, block, arguments as arena offsets"))
    rows.append(("bpc_*.h", "what the kernels call: products, sums, functions"))
    rows.append(("plan.json", "the arena: each tensor's place, lifetime and reason"))
    rows.append(("manifest.json", "each kernel: nodes, lines in the spec, formulas, bytes, FLOPs"))
    table = [f"| `{file}` | {text} |" for file, text in rows]
    return ["| file | what it is |", "| --- | --- |", *table]


_COMPILE_CPU = """
## Compile the C++ by hand

    {command}

`-ffp-contract=off` keeps results the same on every machine: a fused multiply-add happens only where
the text writes one. `-march=native` may be any processor; it changes the speed alone. The library
has one entry, `bpc_run_range(arena, launches, first, last, offsets, rows, threads)`, declared in
`bpc_team.h`.
"""

_READ_CPU = """
## Read the C++

A function computes slice `slice` of its kernel. `offsets` holds the places of its tensors in bytes,
in the order of the declarations at its top, then the number of slices. `rows` is the batch at hand.
"""


def _compile_cuda(name: str) -> str:
    flags = ", ".join(f'"{flag}"' for flag in NVRTC_FLAGS)
    return f"""
## Compile the CUDA by hand

    {nvcc_command(name)}

or with NVRTC, which CuPy calls:

    options = ({flags}, "-I.")
    module = cupy.RawModule(code=open("{name}.cu").read(), options=options)

`--fmad=false` and `--ftz=true` keep results the same as on the CPU. `-lineinfo` lets a profiler
show lines; those of a folder that was written with `--debug-lines` are lines of the spec. Any
architecture from `sm_75` on will do.
"""


_LAUNCH_CUDA = """
## Launch the CUDA kernels

`launch.json` lists the launches of each entry point in order; they run on one stream. `grid` and
`block` are one-dimensional; no launch has dynamic shared memory. Arguments are 64-bit addresses but
for `int32`, which is a 32-bit number:

- `tensor`, `offset`: the arena's address plus the offset.
- `launch_block`: the address of a second, small buffer of `launch_block.bytes` plus this number.
  At `rows_at` it holds the rows of the batch (int64), at `ticket_at` a zero (uint32).
- `table`: a launch for many tensors reads a table of int64, one row after the other, at the place
  that its argument `table` has in the launch block. A row has the addresses of its tensors (the
  arena's plus `offsets`), then `numbers`: elements, whether they are times the rows, first block.
"""

_READ_CUDA = """
## Read the CUDA

The head of the file lists the launches and explains the names. A function that is launched is
`extern "C" __global__`; it follows the `static __device__` functions that it calls. Where a result
needs what all blocks made, the last block to finish computes it (`bpc_last_block`).
"""

_FOLLOW = """
## Follow a tensor

Above each function stand its formulas, the tensors that it reads and writes, what it moves for a
full batch of {rows} rows, and its lines in the spec. A comment at a statement names its layer and
line. To follow a tensor, find its name in `plan.json` (`first` and `last` are kernels of that entry
point), then the `name` of those kernels in `manifest.json`.
"""
