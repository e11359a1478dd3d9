"""`bpc inspect SPEC [KERNEL]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, emit_json, format_launches, scaled, show, table
from bpc.types import format_bytes

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
_HEADER = ("#", "kernel", "from", "launches", "read", "write", "FLOPs")
_TAKEN = ("regs", "spill", "shared", "occupancy")


@click.command("inspect", short_help="List kernels, or show one.")
@spec_options
@click.argument("kernel", required=False)
@click.option(
    "--target",
    type=click.Choice(("cpu", "cuda")),
    default="cpu",
    show_default=True,
    help="Whose kernels to show; the next four options mean cuda.",
)
@click.option(
    "--arch",
    type=click.Choice(ARCHITECTURES),
    help="What to compile for  [default: sm_90]",
)
@click.option("--source", is_flag=True, help="Show the whole text of KERNEL.")
@click.option("--ptx", is_flag=True, help="Show the PTX of KERNEL: beside its lines, then all.")
@click.option("--sass", is_flag=True, help="Show the machine code of KERNEL likewise.")
@output_options
def inspect_command(
    spec: str,
    kernel: str | None,
    target: str,
    arch: str | None,
    source: bool,
    ptx: bool,
    sass: bool,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """List the kernels of SPEC with their bytes and FLOPs, or show one KERNEL: for the CPU its
    source, for CUDA what it takes, and each line of the spec beside its formula and its CUDA."""
    from bpc import api

    wanted = [word for word, on in (("--ptx", ptx), ("--sass", sass), ("--source", source)) if on]
    if wanted and kernel is None:
        raise click.UsageError(f"{wanted[0]} shows one kernel: say which, as in SPEC KERNEL")
    if arch or ptx or sass:
        target = "cuda"
    net = api.compile(spec, **wishes)
    results = net.inspect(kernel, target=target, arch=arch or "sm_90", ptx=ptx, sass=sass)
    if as_json:
        emit_json("inspect", True, results)
        return
    lines = format_results(results, quiet) if kernel is None else format_kernel(results, source)
    for line in lines:
        show(line)


def format_results(results: Results, quiet: bool) -> list[str]:
    """One line a kernel, and what a step adds up to."""
    kernels: Sequence[Results] = results["kernels"]
    if quiet:
        return [str(kernel["name"]) for kernel in kernels]
    used = [kernel for kernel in kernels if kernel["launches"]]
    others = [kernel for kernel in kernels if not kernel["launches"]]
    header = _HEADER + (_TAKEN if "arch" in results else ())
    rows = [_format_kernel(number, kernel) for number, kernel in enumerate(used, 1)]
    summary = (
        f"{format_launches(results['launches_per_step'])} a step; "
        f"{format_bytes(results['bytes_moved'])} moved, "
        f"{results['moved_ratio']:.2f} x the least possible; {scaled(results['flops'])} FLOPs"
    )
    more = [f"evaluate and predict also use {', '.join(str(k['name']) for k in others)}"]
    taken = [_TOLD.format(arch=results["arch"])] if "arch" in results else []
    return [*table(header, rows, left=(1, 2)), summary, *(more if others else []), *taken]


_TOLD = (
    "{arch}: registers a thread, spilled bytes, shared bytes a block; occupancy is a bound by the\n"
    "limits of the CUDA C++ Programming Guide, rounded as NVIDIA's occupancy calculator does"
)


def _format_kernel(number: int, kernel: Results) -> Sequence[str]:
    return (
        str(number),
        str(kernel["name"]),
        str(kernel.get("from", "")),
        str(kernel["launches"]),
        format_bytes(kernel["bytes_read"]),
        format_bytes(kernel["bytes_written"]),
        scaled(kernel["flops"]),
        *(_format_taken(kernel) if "registers" in kernel else ()),
    )


def _format_taken(kernel: Results) -> Sequence[str]:
    return (
        str(kernel["registers"]),
        str(kernel["spill_bytes"]),
        str(kernel["shared_bytes"]),
        f"{kernel['occupancy']['share']:.0%}",
    )


def format_kernel(kernel: Results, source: bool) -> list[str]:
    """The source of a CPU kernel; of a CUDA kernel what it takes and what became of its lines."""
    text = str(kernel["source"]).rstrip("\n")
    if kernel.get("target") != "cuda":
        return [text]
    shown = [part for part in ("ptx", "sass") if part in kernel]
    header = ("line", "spec", "formula", "CUDA", *map(str.upper, shown))
    rows = [row for line in kernel["lines"] for row in _beside(line, shown)]
    lines = [_describe_taken(kernel), "", *table(header, rows, left=range(len(header)))]
    lines += ["", text] if source else []
    for part in shown:
        lines += ["", str(kernel[part]).rstrip("\n")]
    return lines


def _beside(line: Results, shown: Sequence[str]) -> Iterator[Sequence[str]]:
    """A line of the spec, and what became of it; the instructions go on below the first."""
    place = f"{line['place']['file']}:{line['place']['line']}"
    columns = [_first_instructions(line[part]) for part in shown]
    most = max((len(column) for column in columns), default=1)
    for at in range(max(most, 1)):
        said = (place, line["spec"], line["formula"], line["cuda"]) if at == 0 else ("",) * 4
        yield (*said, *(column[at] if at < len(column) else "" for column in columns))


def _first_instructions(found: Sequence[str], most: int = 8) -> list[str]:
    """The first of them, and how many more there are in the text below."""
    left = len(found) - most
    return [*found[:most], *([f"and {left:,} more, below"] if left > 0 else [])]


def _describe_taken(kernel: Results) -> str:
    bound = kernel["occupancy"]
    name = kernel["name"]
    if kernel["launched_as"] != name:
        name = f"{name} (a part of {kernel['launched_as']})"
    return (
        f"{name} on {kernel['arch']}: {kernel['block']} threads a block, "
        f"{kernel['registers']} registers, {kernel['spill_bytes']} bytes spilled, "
        f"{kernel['shared_bytes']} bytes shared\n"
        f"at most {bound['blocks']} blocks and {bound['warps']} of {bound['most_warps']} warps "
        f"a multiprocessor ({bound['share']:.0%}), limited by {bound['limit']}"
    )
