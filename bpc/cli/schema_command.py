"""`bpc schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bpc.cli.options import output_options
from bpc.cli.output import emit_json, show


@click.command("schema", short_help="Print the JSON Schema of specs.")
@click.option("-o", "--out", type=click.Path(), metavar="FILE", help="Write it to FILE.")
@output_options
def schema_command(out: str | None, as_json: bool, quiet: bool) -> None:
    """Print the language of specs as JSON Schema (draft 7), which editors complete and check with.

    With the YAML language server, this first line of a spec turns it on:

    # yaml-language-server: $schema=bpc.schema.json"""
    from bpc.ops.layers import layer_schemas, loss_schemas
    from bpc.optimizer import OPTIMIZERS
    from bpc.report.files import write_text
    from bpc.spec import json_schema

    schema = json_schema(layer_schemas(), loss_schemas(), OPTIMIZERS)
    if out is not None:
        write_text(Path(out), json.dumps(schema, indent=2) + "\n")
    if as_json:
        emit_json("schema", True, {"file": out, "schema": schema})
    elif out is None:
        show(json.dumps(schema, indent=2))
    elif not quiet:
        show(f"wrote {out}")
