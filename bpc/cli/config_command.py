"""`bpc config SPEC|RUN [--resolved]`."""

from __future__ import annotations

import json
from typing import Any

import click

from bpc.cli.options import output_options, wish_options
from bpc.cli.output import emit_json, shorten, show, table

LONGEST = 60  # columns of a value in the table; --quiet and --json have all of it


@click.command("config", short_help="Show every value and where it is from.")
@click.argument("target", type=click.Path(), metavar="SPEC|RUN")
@wish_options
@click.option("--resolved", is_flag=True, help="Values that are defaults too.")
@click.option("--yaml", "as_yaml", is_flag=True, help="All of it as one spec, to be trained as is.")
@output_options
def config_command(
    target: str, resolved: bool, as_yaml: bool, as_json: bool, quiet: bool, **wishes: Any
) -> None:
    """Show what SPEC says after `extends`, blocks, repeats and the command line, each value with
    the place that it comes from; or what the run in the folder RUN was trained with."""
    from bpc import api
    from bpc.spec.listing import list_values
    from bpc.spec.resolved import write_resolved
    from bpc.train.run_folder import find_spec

    loaded = api.compile(find_spec(target), **wishes).spec
    shown = [item for item in list_values(loaded) if item.span or resolved]
    if as_json:
        values = [
            {"key": item.key, "value": item.value, "place": item.span and item.span.to_json()}
            for item in shown
        ]
        files = [file.name for file in loaded.files]
        emit_json(
            "config", True, {"files": files, "values": values, "yaml": write_resolved(loaded)}
        )
    elif as_yaml:
        show(write_resolved(loaded).rstrip("\n"))
    elif quiet:
        for item in shown:
            show(f"{item.key}={_text(item.value)}")
    else:
        rows = [
            (item.key, shorten(_text(item.value), LONGEST), str(item.span or "default"))
            for item in shown
        ]
        for line in table(("key", "value", "from"), rows, left=range(3)):
            show(line)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
