"""`bpc predict RUN INPUT -o OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bpc.cli.options import output_options, wish_options
from bpc.cli.output import emit_json, show
from bpc.types import count_of

ENDINGS = (".npy", ".npz", ".csv")


@click.command("predict", short_help="Apply a run to the rows of a file.")
@click.argument("run", type=click.Path())
@click.argument("input", type=click.Path())
@click.option(
    "-o",
    "--out",
    type=click.Path(),
    required=True,
    metavar="OUT",
    help="Where to write; its ending .npy, .npz or .csv says in which form.",
)
@wish_options
@click.option("--best", is_flag=True, help="With the weights of the least held-out loss.")
@output_options
def predict_command(
    run: str, input: str, out: str, best: bool, as_json: bool, quiet: bool, **wishes: Any
) -> None:
    """Apply the network of RUN to every row of INPUT, dropout off, and write the results in the
    order of the rows.

    INPUT is .npy [rows, ...], .npz with the model's inputs by name, or .csv with the numbers of a
    row in each line, with or without a header; of a run that was trained from a .csv the columns
    are found by their names. Rows are scaled and gaps filled as in training. OUT has `prediction`,
    and as .npz or .csv for classes also `class`, the one with the largest score; its folder is made
    if there is none."""
    _check_files(Path(input), Path(out))
    from bpc import predicting, trained

    found = trained.open_run(run, best=best, **wishes)
    facts = predicting.predict_file(found, Path(input), Path(out))
    facts = {**facts, "weights": str(found.weights)}
    if as_json:
        emit_json("predict", True, facts)
    elif not quiet:
        shape = " x ".join(str(size) for size in facts["shape"]) or "1"
        show(f"{out}: {count_of(facts['rows'], 'row')} of {shape}; weights: {facts['weights']}")


def _check_files(source: Path, out: Path) -> None:
    """Find what cannot work before anything is computed."""
    for path, what in ((source, "INPUT"), (out, "-o")):
        if path.suffix.lower() not in ENDINGS:
            message = f"'{path}' ends in none of {', '.join(ENDINGS)}"
            raise click.BadParameter(message, param_hint=what)
    with source.open("rb"):
        pass
    if out.is_dir():
        raise click.BadParameter(f"'{out}' is a folder", param_hint="-o")
    for folder in out.parents:
        if folder.exists() and not folder.is_dir():
            raise click.BadParameter(f"'{folder}' is no folder", param_hint="-o")
    if out.exists() and out.samefile(source):
        raise click.BadParameter("OUT would replace INPUT", param_hint="-o")
