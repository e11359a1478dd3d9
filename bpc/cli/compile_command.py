"""`bpc compile SPEC`."""

from __future__ import annotations

from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, emit_json, format_launches, show
from bpc.types import count_of


@click.command("compile", short_help="Write readable source, plan, manifest.")
@spec_options
@click.option(
    "--target",
    type=click.Choice(("cpu", "cuda", "all")),
    default="cpu",
    show_default=True,
    help="What to write source for.",
)
@click.option(
    "--out", type=click.Path(), metavar="DIR", help="Where to write  [default: generated/NAME]"
)
@click.option(
    "--dump", type=click.Path(), metavar="DIR", help="Also write every stage of the compiler."
)
@click.option(
    "--debug-lines", is_flag=True, help="Let compilers and debuggers name lines of SPEC."
)
@output_options
def compile_command(
    spec: str,
    target: str,
    out: str | None,
    dump: str | None,
    debug_lines: bool,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Write the readable source, plan and manifest of SPEC; byte-identical from run to run."""
    from bpc import api

    net = api.compile(spec, **wishes)
    results = net.write(target=target, out=out, dump=dump, debug_lines=debug_lines)
    if as_json:
        emit_json("compile", True, results)
        return
    for line in format_results(results, quiet):
        show(line)


def format_results(results: Results, quiet: bool) -> list[str]:
    """The files, and what is in them."""
    if quiet:
        return [str(file) for file in results["files"]]
    kernels = results["kernels"]
    number = kernels if isinstance(kernels, int) else len(kernels)
    launches = format_launches(results["launches_per_step"])
    summary = f"{count_of(number, 'kernel')}, {launches} a step"
    return [*(f"wrote {file}" for file in results["files"]), summary]
