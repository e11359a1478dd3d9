"""`bpc plan-memory SPEC`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, count, emit_json, format_notes, show, table
from bpc.types import format_bytes

MOST_ROWS = 40
MOST_NOTES = 3
_HEADER = ("value", "type", "kept as", "bytes", "lives", "offset", "why")


@click.command("plan-memory", short_help="Show what lies in memory, and why.")
@spec_options
@click.option("--svg", type=click.Path(), metavar="FILE", help="Draw the arena over time.")
@output_options
def plan_command(
    spec: str,
    svg: str | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Show what a training step of SPEC keeps in memory, where, how long and why."""
    from bpc import api

    net = api.compile(spec, **wishes)
    results = net.plan_memory(svg=svg)
    if as_json:
        emit_json("plan-memory", True, results)
        return
    for line in format_results(results, quiet):
        show(line)


def format_results(results: Results, quiet: bool) -> list[str]:
    """The peak and its moment, the classes, and one line a tensor."""
    head = [_format_peak(results), _format_classes(results["classes"])]
    if quiet:
        return head[:1]
    head += format_notes(results.get("notes", ()), MOST_NOTES)
    tensors: Sequence[Results] = results["tensors"]
    shown = keep_largest(tensors)
    lines = table(_HEADER, (_format_tensor(row) for row in shown), (0, 1, 2, 6))
    return [*head, "", *lines, *_format_rest(tensors, shown)]


def keep_largest(tensors: Sequence[Results]) -> list[Results]:
    """The tensors in their order, without the smallest of a list that is too long to read."""
    order = sorted(range(len(tensors)), key=lambda at: (-tensors[at]["bytes"], at))
    kept = set(order[:MOST_ROWS])
    return [row for at, row in enumerate(tensors) if at in kept]


def _format_rest(tensors: Sequence[Results], shown: Sequence[Results]) -> list[str]:
    """How many rows are not shown, and how large they are."""
    hidden = len(tensors) - len(shown)
    if not hidden:
        return []
    size = sum(row["bytes"] for row in tensors) - sum(row["bytes"] for row in shown)
    ones = "smaller one" if hidden == 1 else "smaller ones"
    return [f"  and {count(hidden)} {ones}, {count(size)} B together; --json lists all"]


def _format_peak(results: Results) -> str:
    peak, budget = results["planned_peak_bytes"], results.get("budget_bytes")
    text = f"peak {format_bytes(peak)} ({count(peak)} B)"
    text += f" of {format_bytes(budget)}" if budget else ", no budget"
    if results.get("peak_moment"):
        text += f", at {results['peak_moment']}"
    repeated = 100 * results["overhead_ratio"]
    least = format_bytes(results["least_feasible_bytes"])
    return f"{text}; +{repeated:.1f}% FLOPs repeated; least possible {least}"


def _format_classes(classes: Results) -> str:
    return "  " + "   ".join(f"{name} {format_bytes(size)}" for name, size in classes.items())


def _format_tensor(row: Results) -> Sequence[str]:
    offset = row.get("offset")
    return (
        str(row["name"]),
        str(row.get("type", "")),
        str(row["decision"]),
        count(row["bytes"]),
        "-" if row.get("first") is None else f"{row['first']}-{row['last']}",
        "-" if offset is None else f"0x{offset:04x}",
        str(row["why"]),
    )
