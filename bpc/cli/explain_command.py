"""`bpc explain SPEC`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import emit_json, show, tell


@click.command("explain", short_help="Show forward and backward as formulas.")
@spec_options
@click.option("--values", is_flag=True, help="Work out the numbers of the first batch, if few.")
@click.option("--tex", type=click.Path(dir_okay=False), metavar="FILE", help="Write LaTeX.")
@output_options
def explain_command(
    spec: str,
    values: bool,
    tex: str | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Show how SPEC computes its loss and every gradient: one formula a line, with its place."""
    from bpc import api
    from bpc.diagnose.document import format_tex
    from bpc.diagnose.explain import explain, format_text, to_json
    from bpc.report.files import write_text

    net = api.compile(spec, **wishes)
    made = explain(net.spec, net.description, values)
    if tex is not None:
        write_text(Path(tex), format_tex(made))
    if as_json:
        emit_json("explain", True, {**to_json(made), "tex": tex})
        return
    for line in format_text(made):
        show(line)
    if tex is not None and not quiet:
        tell(f"wrote {tex}")
