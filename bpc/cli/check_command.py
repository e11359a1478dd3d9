"""`bpc check SPEC` and `bpc check SPEC --kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bpc.cli.lint_command import tell_warnings
from bpc.cli.options import output_options, spec_options
from bpc.cli.output import Results, count, emit_json, show, table, tell
from bpc.types import count_of

if TYPE_CHECKING:
    from bpc.api import Net

CHECKED_ROWS = 20

_HEADER = ("kernel", "from", "launches", "error", "bound", "regs", "spill", "shared", "")


@click.command("check", short_help="Check gradients, or the CUDA kernels.")
@spec_options
@click.option("--kernels", is_flag=True, help="Check every CUDA kernel in the simulator.")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Rows that are checked.")
@output_options
def check_command(
    spec: str,
    kernels: bool,
    rows: int | None,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Compare every parameter's gradient, as the generated code computes it, with differences of
    the loss in float64, on 20 rows or as many as --rows says, a batch at most.

    With --kernels, compile every CUDA kernel of SPEC for three architectures, run it in the
    simulator with all checks on, and compare it with a float64 reference. Needs no GPU."""
    from bpc import api

    net = api.compile(spec, **wishes)
    _check_rows(net, rows)
    warnings = tell_warnings(net.lint(), as_json or quiet)
    if kernels:
        results: Results = net.check_kernels(
            rows, (lambda text: None) if quiet or as_json else tell
        )
        lines = format_results(results, quiet)
    else:
        results = _check_gradients(net, rows or CHECKED_ROWS, wishes["threads"])
        lines = format_gradients(results, quiet)
    ok = bool(results["ok"])
    if as_json:
        facts = {k: v for k, v in results.items() if k != "ok"}
        emit_json("check", ok, {**facts, "warnings": warnings})
    else:
        for line in lines:
            show(line)
    if not ok:
        click.get_current_context().exit(1)


def _check_rows(net: Net, rows: int | None) -> None:
    """Refuse more rows than a batch has."""
    batch, stored = net.spec.data.batch, len(net.data.train["target"])
    most = min(batch, stored)
    if rows is None or rows <= most:
        return
    have = f"a batch has {count_of(batch, 'row')}" if batch <= stored else f"the data has {stored}"
    mend = f"; --set data.batch={rows} makes it larger" if rows <= stored else ""
    raise click.BadParameter(f"{have}, {rows:,} are wished{mend}", param_hint="--rows")


def _check_gradients(net: Net, rows: int, threads: int | None) -> Results:
    """Check on the first rows of the training data, with the initial weights."""
    from bpc.diagnose.gradients import check_gradients, to_json
    from bpc.diagnose.verdicts import errors_json, gradient_errors
    from bpc.runtime.select import graph_runner

    taken = min(rows, net.spec.data.batch)
    batch = {name: array[:taken] for name, array in net.data.train.items()}
    run = graph_runner(net.device, threads)
    done = check_gradients(net.spec, net.description, net.parameters(), batch, run)
    ran = net.device.name if net.device.name == "cpu" else "reference"
    facts = {"ran": ran, "precision": net.spec.train.precision, **to_json(done)}
    return {"ok": done.ok, **errors_json(gradient_errors(done)), **facts}


_GRADIENT_HEADER = (
    *("parameter", "place", "elements", "checked"),
    *("error", "bound", "in f64", "bound", "kinks", ""),
)


def format_gradients(results: Results, quiet: bool) -> list[str]:
    """A line a parameter, what is to be known of kinks, and the verdict."""
    parameters: Sequence[Results] = results["parameters"]
    bad = [item for item in parameters if not item["ok"]]
    shown = bad if quiet else parameters
    rows = [_format_parameter(item) for item in shown]
    lines = table(_GRADIENT_HEADER, rows, left=(0, 1, 9)) if rows else []
    kinks: Sequence[Results] = results["kinks"]
    if kinks and not quiet:
        lines.append(_format_kinks(kinks))
    told = "all right" if not bad else f"wrong: {', '.join(str(item['name']) for item in bad)}"
    lines.append(
        f"{count_of(len(parameters), 'gradient')} on {count_of(results['rows'], 'row')}, "
        f"{results['precision']} on {results['ran']}: {told}"
    )
    return lines


def _format_parameter(item: Results) -> Sequence[str]:
    return (
        str(item["name"]),
        f":{item['span']['line']}",
        count(item["elements"]),
        str(item["probes"]),
        *(f"{item[key]:.1e}" for key in ("max_rel_error", "bound", "rule_error", "rule_bound")),
        f"{item['kinks']}{'*' if item['moved'] else ''}",
        "ok" if item["ok"] else "WRONG",
    )


def _format_kinks(kinks: Sequence[Results]) -> str:
    first = kinks[0]
    where = "a direction" if first["element"] is None else f"element {first['element']}"
    return (
        f"kinks: {len(kinks)} places where the loss has no slope, such as {first['parameter']}, "
        f"{where}: {first['left']:.3g} from the left, {first['right']:.3g} from the right; "
        f"* checked a little away from them"
    )


def format_results(results: Results, quiet: bool) -> list[str]:
    """A line a kernel, then what was found."""
    kernels: Sequence[Results] = results["kernels"]
    lines = [] if quiet else table(_HEADER, [_format_kernel(k) for k in kernels], left=(0, 1, 8))
    shown: list[str] = []
    for finding in results["findings"]:
        head = _format_head(finding)
        lines += [*([] if head == shown else head), f"  {finding['text']}"]
        shown = head
    lines.extend(f"{text}: registers spill to local memory" for text in results["spilling"])
    bad = sum(not kernel["ok"] for kernel in kernels)
    told = "all sound" if not bad else f"{bad} at fault"
    *others, last = map(str, results["rows"])
    batches = f"batches of {', '.join(others)} and {last} rows" if others else "a batch of 1 row"
    lines.append(f"{count_of(len(kernels), 'kernel')} on {batches}: {told}")
    return lines


def _format_head(finding: Results) -> list[str]:
    """The kernel, how it ran, its lines of the spec, its nodes: once for all found in one run."""
    places = ", ".join(f"{place['file']}:{place['line']}" for place in finding["places"])
    where = f"{finding['function']} ({finding['entry']}, {finding['run']}), from {places}"
    return [where, f"  nodes {', '.join(finding['nodes'])}"]


def _format_kernel(kernel: Results) -> Sequence[str]:
    taken = kernel["resources"].values()
    files = {place["file"] for place in kernel["places"]}
    prefix = "" if len(files) == 1 else " "
    places = ", ".join(f"{prefix}:{place['line']}" for place in kernel["places"])
    return (
        str(kernel["name"]),
        places,
        str(kernel["launches"]),
        f"{kernel['max_error']:.1e}",
        f"{kernel['bound']:.1e}",
        "/".join(str(item["registers"]) for item in taken),
        str(max((item["spill_bytes"] for item in taken), default=0)),
        str(max((item["shared_bytes"] for item in taken), default=0)),
        "ok" if kernel["ok"] else "FAULT",
    )
