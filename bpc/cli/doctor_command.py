"""`bpc doctor env`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bpc.cli.options import output_options
from bpc.cli.output import emit_json, show, table

if TYPE_CHECKING:
    from bpc.diagnose.environment import Check


@click.group("doctor", short_help="Look for what is missing.")
def doctor_command() -> None:
    """Look at this machine and at this installation."""


@doctor_command.command("env", short_help="What is installed, and what to install.")
@output_options
def environment_command(as_json: bool, quiet: bool) -> None:
    """Show what of this machine bpc can use, what is missing, what that is for and what to do.
    Ends with 0: what is missing may not be needed. With --quiet, only what is missing."""
    from bpc.diagnose.environment import check_environment, working_devices

    checks = check_environment()
    devices = working_devices(checks)
    if as_json:
        parts = [
            {
                "name": c.name,
                "found": c.found,
                "use": c.use,
                "install": None if c.found else c.install,
            }
            for c in checks
        ]
        emit_json("doctor", True, {"parts": parts, "devices": devices})
        return
    for line in format_checks(checks, quiet):
        show(line)
    if not quiet:
        show(f"devices that have what they need: {', '.join(devices)}")


def format_checks(checks: Sequence[Check], quiet: bool) -> list[str]:
    """A line a part."""
    rows = [
        ("ok", check.name, check.found, f"for {check.use}")
        if check.found
        else ("missing", check.name, check.install or "", f"for {check.use}")
        for check in checks
        if not (quiet and check.found)
    ]
    return table(("", "part", "found, or what to do", ""), rows, left=range(4)) if rows else []
