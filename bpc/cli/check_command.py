"""`bpc check SPEC --kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, emit_json, show, table, tell

_HEADER = ("kernel", "from", "launches", "error", "bound", "regs", "spill", "shared", "")


@click.command("check", short_help="Check the generated CUDA kernels.")
@spec_options
@click.option("--kernels", is_flag=True, help="Check every CUDA kernel in the simulator.")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Rows of the batch checked.")
@output_options
def check_command(
    spec: str,
    kernels: bool,
    rows: int | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Compile every CUDA kernel of SPEC for three architectures, run it in the simulator with all
    checks on, and compare it with a float64 reference. Needs no GPU."""
    from bpc import api

    if not kernels:
        raise click.UsageError("say what to check: --kernels")
    net = api.compile(spec, **wishes)
    results = net.check_kernels(rows, (lambda text: None) if quiet or as_json else tell)
    ok = bool(results["ok"])
    if as_json:
        emit_json("check", ok, {k: v for k, v in results.items() if k != "ok"})
    else:
        for line in format_results(results, quiet):
            show(line)
    if not ok:
        click.get_current_context().exit(1)


def format_results(results: Results, quiet: bool) -> list[str]:
    """A line a kernel, then what was found."""
    kernels: Sequence[Results] = results["kernels"]
    lines = [] if quiet else table(_HEADER, [_format_kernel(k) for k in kernels], left=(0, 1, 8))
    for finding in results["findings"]:
        places = ", ".join(f"{p['file']}:{p['line']}" for p in finding["places"])
        lines.append(f"{finding['function']} ({finding['entry']}, {finding['run']}), from {places}")
        lines.append(f"  nodes {', '.join(finding['nodes'])}")
        lines.append(f"  {finding['text']}")
    lines.extend(f"{text}: registers spill to local memory" for text in results["spilling"])
    bad = sum(not kernel["ok"] for kernel in kernels)
    told = "all sound" if not bad else f"{bad} at fault"
    rows = " and ".join(str(count) for count in results["rows"])
    lines.append(f"{len(kernels)} kernels on batches of {rows} rows: {told}")
    return lines


def _format_kernel(kernel: Results) -> Sequence[str]:
    taken = kernel["resources"].values()
    files = {place["file"] for place in kernel["places"]}
    prefix = "" if len(files) == 1 else " "
    places = ", ".join(f"{prefix}:{place['line']}" for place in kernel["places"])
    return (
        str(kernel["name"]),
        places,
        str(kernel["launches"]),
        f"{kernel['max_error']:.1e}",
        f"{kernel['bound']:.1e}",
        "/".join(str(item["registers"]) for item in taken),
        str(max((item["spill_bytes"] for item in taken), default=0)),
        str(max((item["shared_bytes"] for item in taken), default=0)),
        "ok" if kernel["ok"] else "FAULT",
    )
