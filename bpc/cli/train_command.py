"""`bpc train SPEC`."""

from __future__ import annotations

from typing import Any

import click

from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, emit_json, format_notes, show
from bpc.cli.progress import SilentProgress, TableProgress
from bpc.types import count_of, format_bytes

MOST_NOTES = 3


@click.command("train", short_help="Train a network and report.")
@spec_options
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run N steps, in place of train.epochs and train.steps.",
)
@click.option("--run-dir", type=click.Path(), metavar="DIR", help="Where to keep the run.")
@output_options
def train_command(
    spec: str,
    steps: int | None,
    run_dir: str | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Train the network of SPEC and report how well it does on held-out data."""
    from bpc import api

    net = api.compile(spec, **wishes)
    progress = SilentProgress() if as_json or quiet else TableProgress()
    try:
        results = net.train(steps=steps, run_dir=run_dir, progress=progress)
    finally:
        progress.close()
    if as_json:
        emit_json("train", True, results)
    else:
        for line in format_results(results):
            show(line)


def format_results(results: Results) -> list[str]:
    """The last lines of a run: the result, its cost, where it lies, at most three notes."""
    lines = [_format_done(results)]
    if results.get("run_dir"):
        lines.append(f"run: {results['run_dir']}")
    return [*lines, *format_notes(results.get("notes", ()), MOST_NOTES)]


def _format_done(results: Results) -> str:
    final = results["final"]
    accuracy = final.get("test_accuracy")
    rows = results.get("test_rows")
    held = "held-out rows" if rows is None else count_of(rows, "held-out row")
    if accuracy is not None:
        outcome = f"{100 * accuracy:.1f}% on {held}"
    else:
        outcome = f"loss {final['test_loss']:.6g} on {held}"
    parts = [f"done: {outcome}", count_of(results["steps"], "step")]
    if results.get("step_ms_median") is not None:
        parts.append(f"{results['step_ms_median']:.3f} ms a step")
    if results.get("seconds") is not None:
        parts.append(f"{results['seconds']:.2f} s of training")
    parts.append(_format_arena(results))
    return ", ".join(parts)


def _format_arena(results: Results) -> str:
    arena, planned = results["arena_bytes"], results["planned_peak_bytes"]
    verdict = "as planned" if arena == planned else f"planned {format_bytes(planned)}"
    return f"{format_bytes(arena)} arena ({verdict})"
