"""`bpc evaluate RUN|SPEC`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bpc.cli.options import output_options, wish_options
from bpc.cli.output import Results, emit_json, show
from bpc.cli.progress import is_share
from bpc.types import count_of


@click.command("evaluate", short_help="Loss and metrics on held-out data.")
@click.argument("target", type=click.Path(), metavar="RUN|SPEC")
@wish_options
@click.option("--best", is_flag=True, help="Of RUN the weights with the least held-out loss.")
@output_options
def evaluate_command(target: str, best: bool, as_json: bool, quiet: bool, **wishes: Any) -> None:
    """Measure loss and metrics over the whole held-out part, dropout off: with the weights of RUN,
    those of its end or of its newest checkpoint, or with the initial weights of SPEC."""
    from bpc import api, trained

    weights: Path | None = None
    path = Path(target)
    is_spec = path.is_file() or path.suffix in (".yaml", ".yml")
    if best or not is_spec:
        found = trained.open_run(target, best=best, **wishes)
        net, weights = found.net, found.weights
    else:
        net = api.compile(target, **wishes)
    facts = {"weights": weights and str(weights), **trained.evaluate_net(net)}
    if as_json:
        emit_json("evaluate", True, facts)
    else:
        show(format_results(facts, quiet))


def format_results(facts: Results, quiet: bool) -> str:
    """`loss 0.0825, accuracy 98.1%, top5 100.0% on 359 held-out rows; weights: ...`."""
    parts = [f"loss {facts['test_loss']:.6g}"]
    parts += [f"{name} {_format(name, value)}" for name, value in facts["metrics"].items()]
    told = f"{', '.join(parts)} on {count_of(facts['test_rows'], 'held-out row')}"
    return told if quiet else f"{told}; weights: {facts['weights'] or 'initial'}"


def _format(name: str, value: float | None) -> str:
    if value is None:
        return "undefined"
    return f"{100 * value:.1f}%" if is_share(name) else f"{value:.6g}"
