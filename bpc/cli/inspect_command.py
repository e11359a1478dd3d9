"""`bpc inspect SPEC [KERNEL]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, emit_json, format_launches, scaled, show, table
from bpc.types import format_bytes

_HEADER = ("#", "kernel", "from", "launches", "read", "write", "FLOPs")


@click.command("inspect", short_help="List kernels, or show one.")
@spec_options
@click.argument("kernel", required=False)
@output_options
def inspect_command(
    spec: str,
    kernel: str | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """List the kernels of SPEC with their bytes and FLOPs, or show the source of one KERNEL."""
    from bpc import api

    net = api.compile(spec, **wishes)
    results = net.inspect(kernel)
    if as_json:
        emit_json("inspect", True, results)
    elif kernel is not None:
        show(str(results["source"]).rstrip("\n"))
    else:
        for line in format_results(results, quiet):
            show(line)


def format_results(results: Results, quiet: bool) -> list[str]:
    """One line a kernel, and what a step adds up to."""
    kernels: Sequence[Results] = results["kernels"]
    if quiet:
        return [str(kernel["name"]) for kernel in kernels]
    used = [kernel for kernel in kernels if kernel["launches"]]
    rows = [_format_kernel(number, kernel) for number, kernel in enumerate(used, 1)]
    others = [str(kernel["name"]) for kernel in kernels if not kernel["launches"]]
    summary = (
        f"{format_launches(results['launches_per_step'])} a step; "
        f"{format_bytes(results['bytes_moved'])} moved, "
        f"{results['moved_ratio']:.2f} x the least possible; {scaled(results['flops'])} FLOPs"
    )
    more = [f"evaluate and predict also use {', '.join(others)}"] if others else []
    return [*table(_HEADER, rows, left=(1, 2)), summary, *more]


def _format_kernel(number: int, kernel: Results) -> Sequence[str]:
    return (
        str(number),
        str(kernel["name"]),
        str(kernel.get("from", "")),
        str(kernel["launches"]),
        format_bytes(kernel["bytes_read"]),
        format_bytes(kernel["bytes_written"]),
        scaled(kernel["flops"]),
    )
