"""`bpc export RUN -o FILE`."""

from __future__ import annotations

from pathlib import Path

import click

from bpc.cli.options import output_options
from bpc.cli.output import count, emit_json, show

ENDING = ".safetensors"


@click.command("export", short_help="Write the weights of a run as one file.")
@click.argument("run", type=click.Path())
@click.option(
    "-o",
    "--out",
    type=click.Path(),
    required=True,
    metavar="FILE",
    help="Where to write them, such as net.safetensors.",
)
@click.option("--best", is_flag=True, help="Those with the least held-out loss.")
@output_options
def export_command(run: str, out: str, best: bool, as_json: bool, quiet: bool) -> None:
    """Write the weights of RUN, those of its end or of its newest checkpoint, as a safetensors
    file: by name, in full precision, without moments."""
    if Path(out).suffix != ENDING:
        message = f"'{out}' does not end in {ENDING}, the one form that is written"
        raise click.BadParameter(message, param_hint="-o")
    from bpc.train.export import export_model

    found = export_model(Path(run), Path(out), best)
    if as_json:
        emit_json("export", True, found)
    elif not quiet:
        parts = f"{found['tensors']} tensors, {count(found['parameters'])} parameters"
        show(f"{found['file']}: {parts}, {count(found['bytes'])} bytes, from {found['source']}")
