"""`bpc train SPEC`."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from bpc.cli.lint_command import tell_warnings
from bpc.cli.options import output_options, wish_options
from bpc.cli.output import Results, emit_json, format_notes, show
from bpc.cli.progress import SilentProgress, TableProgress, is_share
from bpc.types import count_of, format_bytes

MOST_NOTES = 3
_SAID = ("train_loss", "test_loss", "test_accuracy")


@click.command("train", short_help="Train a network and report.")
@click.argument("spec", type=click.Path(), required=False)
@wish_options
@click.option("--resume", type=click.Path(), metavar="RUN", help="Go on with the run in RUN.")
@click.option(
    "--allow",
    multiple=True,
    metavar="KEY",
    help="With --resume: a key of the spec that may have changed; may be repeated.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run N steps, in place of train.epochs and train.steps.",
)
@click.option(
    "--tensorboard",
    type=click.Path(),
    metavar="DIR",
    help="Write event files for TensorBoard into DIR.",
)
@click.option("--run-dir", type=click.Path(), metavar="DIR", help="Where to keep the run.")
@output_options
@click.pass_context
def train_command(
    context: click.Context,
    /,
    spec: str | None,
    resume: str | None,
    allow: tuple[str, ...],
    steps: int | None,
    run_dir: str | None,
    tensorboard: str | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Train the network of SPEC and report how well it does on held-out data, or go on with a run
    from its newest checkpoint, with the result that it would have had without a stop."""
    _check_words(spec, resume, allow, run_dir)
    progress = SilentProgress() if as_json or quiet else TableProgress()
    try:
        if resume is None:
            assert spec is not None, "checked above"
            from bpc import api

            net = api.compile(spec, **wishes)
            warnings = tell_warnings(net.lint(), as_json or quiet)
            progress.on_wait("planning and compiling")
            results = net.train(
                steps=steps, run_dir=run_dir, progress=progress, tensorboard=tensorboard
            )
            results = {**results, "warnings": warnings}
        else:
            from bpc import continued

            if context.get_parameter_source("device") is ParameterSource.DEFAULT:
                wishes["device"] = None
            wishes |= {"progress": progress, "tensorboard": tensorboard}
            progress.on_wait("planning and compiling")
            results = continued.resume(resume, spec=spec, steps=steps, allow=allow, **wishes)
    finally:
        progress.close()
    if as_json:
        emit_json("train", True, results)
    else:
        for line in format_results(results):
            show(line)
    if progress.lost:
        context.exit(1)


def _check_words(
    spec: str | None, resume: str | None, allow: tuple[str, ...], run_dir: str | None
) -> None:
    if spec is None and resume is None:
        raise click.UsageError("name a SPEC, or a run to go on with: --resume RUN")
    if allow and resume is None:
        raise click.UsageError("--allow goes with --resume")
    if run_dir and resume is not None:
        raise click.UsageError("a run goes on in its own folder: leave --run-dir out")


def format_results(results: Results) -> list[str]:
    """The last lines of a run: the result, its cost, where it lies, at most three notes."""
    lines = [_format_done(results)]
    if results.get("stopped_early"):
        lines.append(_format_early_end(results["stopped_early"]))
    if results.get("run_dir"):
        lines.append(_format_run(results))
    return [*lines, *format_notes(results.get("notes", ()), MOST_NOTES)]


def _format_done(results: Results) -> str:
    final = results["final"]
    accuracy = final.get("test_accuracy")
    rows = results.get("test_rows")
    held = "held-out rows" if rows is None else count_of(rows, "held-out row")
    told = [f"loss {final['test_loss']:.6g}" if accuracy is None else f"{100 * accuracy:.1f}%"]
    told += [_format_metric(name, final[name]) for name in final if name not in _SAID]
    outcome = f"{', '.join(told)} on {held}"
    parts = [f"done: {outcome}", count_of(results["steps"], "step")]
    if results.get("step_ms_median") is not None:
        parts.append(f"{results['step_ms_median']:.3f} ms a step")
    if results.get("seconds") is not None:
        parts.append(f"{results['seconds']:.2f} s of training")
    parts.append(_format_arena(results))
    return ", ".join(parts)


def _format_metric(name: str, value: float | None) -> str:
    short = name.removeprefix("test_")
    if value is None:
        return f"{short} undefined"
    return f"{short} {100 * value:.1f}%" if is_share(short) else f"{short} {value:.6g}"


def _format_early_end(end: Results) -> str:
    from bpc.train.stopping import say_end

    return say_end(end)


def _format_run(results: Results) -> str:
    """Where the run lies, its best step, and the checkpoint that it could go on from."""
    parts = [f"run: {results['run_dir']}"]
    if results.get("best"):
        parts.append(f"best: step {results['best']['step']}")
    if results.get("checkpoint_step"):
        parts.append(f"checkpoint: step {results['checkpoint_step']}")
    return "   ".join(parts)


def _format_arena(results: Results) -> str:
    arena, planned = results["arena_bytes"], results["planned_peak_bytes"]
    verdict = "as planned" if arena == planned else f"planned {format_bytes(planned)}"
    return f"{format_bytes(arena)} arena ({verdict})"
