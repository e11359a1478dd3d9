"""`bpc verify-resume SPEC --at N`."""

from __future__ import annotations

from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import count, emit_json, show, tell
from bpc.types import count_of


@click.command("verify-resume", short_help="Show that a resumed run is the run itself.")
@spec_options
@click.option(
    "--at", type=click.IntRange(min=1), required=True, metavar="N", help="Stop after step N."
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    metavar="M",
    help="Steps of the whole run; without it, twice N.",
)
@output_options
def verify_command(
    spec: str, at: int, steps: int | None, as_json: bool, quiet: bool, **wishes: Any
) -> None:
    """Train SPEC twice, straight and with a stop after step N and a new process for the rest, and
    compare every byte of what results: weights, moments, counters, metrics."""
    from bpc.verify import verify_resume

    told = (lambda text: None) if quiet or as_json else tell
    found = verify_resume(spec, at, steps, told, **wishes)
    if as_json:
        emit_json("verify-resume", True, found)
        return
    show(
        f"equal: {count(found['bytes'])} bytes of {found['tensors']} tensors and "
        f"{found['scalars']} scalars, {count_of(found['metrics_rows'], 'line')} of metrics, after "
        f"{found['steps']} steps straight and after {found['at']} + {found['steps'] - found['at']}"
    )
