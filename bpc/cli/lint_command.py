"""`bpc lint SPEC`, and the warnings that other commands begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import emit_json, show, tell
from bpc.errors import Diagnostic

MOST_WARNINGS = 3


@click.command("lint", short_help="Show what is seldom meant.")
@spec_options
@output_options
def lint_command(spec: str, as_json: bool, quiet: bool, **wishes: Any) -> None:
    """Show what SPEC says and is seldom meant, each with its place and what to do. Ends with 0:
    a warning is no error."""
    from bpc import api

    found = api.compile(spec, **wishes).lint()
    if as_json:
        emit_json("lint", True, {"warnings": [item.to_json() for item in found]})
    elif quiet:
        for item in found:
            show(f"{item.span}: {item.code}")
    else:
        show(_render(found) if found else "nothing to warn of")


def tell_warnings(found: Sequence[Diagnostic], silent: bool) -> list[dict[str, object]]:
    """Print the first few warnings to stderr, unless `silent`; all of them as plain data."""
    shown = found[:MOST_WARNINGS]
    if shown and not silent:
        tell(_render(shown))
        if len(found) > len(shown):
            tell(f"{len(found) - len(shown)} more: bpc lint")
    return [item.to_json() for item in found]


def _render(found: Sequence[Diagnostic]) -> str:
    # Only a spec with warnings needs to know how diagnostics look.
    from bpc.report.diagnostics import read_line_of_file, render_diagnostics

    return render_diagnostics(found, read_line_of_file)
