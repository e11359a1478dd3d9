"""`bpc graph SPEC -o FILE.svg|.dot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import emit_json, show

ENDINGS = (".svg", ".dot")


@click.command("graph", short_help="Draw forward and backward.")
@spec_options
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False),
    required=True,
    metavar="FILE",
    help="A file that ends in .svg or .dot.",
)
@output_options
def graph_command(spec: str, out: str, as_json: bool, quiet: bool, **wishes: Any) -> None:
    """Draw the forward and the backward pass of SPEC: values with their layers, shapes and lines.

    Dashed arrows are what the backward pass reads of the forward pass. Graphviz lays the picture
    out where it is installed."""
    path = Path(out)
    if path.suffix not in ENDINGS:
        raise click.BadParameter(f"'{out}' ends in none of {', '.join(ENDINGS)}", param_hint="-o")
    from bpc import api
    from bpc.diagnose.draw import draw_network, render_svg
    from bpc.diagnose.picture import write_dot
    from bpc.report.files import write_text

    net = api.compile(spec, **wishes)
    picture = draw_network(net.spec, net.description)
    if path.suffix == ".dot":
        write_text(path, write_dot(picture))
    else:
        write_text(path, render_svg(picture))
    if as_json:
        facts = {"file": out, "boxes": len(picture.boxes), "arrows": len(picture.arrows)}
        emit_json("graph", True, facts)
    else:
        told = f"wrote {out}"
        show(told if quiet else f"{told}: {len(picture.boxes)} values")
