"""The command `bpc`. This is the one place where errors become text and exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from bpc import __version__
from bpc.cli.check_command import check_command
from bpc.cli.compile_command import compile_command
from bpc.cli.completion_command import completion_command
from bpc.cli.config_command import config_command
from bpc.cli.doctor_command import doctor_command
from bpc.cli.evaluate_command import evaluate_command
from bpc.cli.explain_command import explain_command
from bpc.cli.export_command import export_command
from bpc.cli.graph_command import graph_command
from bpc.cli.init_command import init_command
from bpc.cli.inspect_command import inspect_command
from bpc.cli.interrupting import forget_interruption, terminated_as_interrupted
from bpc.cli.lint_command import lint_command
from bpc.cli.output import emit_json, give_up_stdout, tell
from bpc.cli.plan_command import plan_command
from bpc.cli.predict_command import predict_command
from bpc.cli.schema_command import schema_command
from bpc.cli.train_command import train_command
from bpc.cli.verify_command import verify_command
from bpc.errors import BpcError, BudgetError, Interrupted, NonFiniteError

FAULT, INTERRUPTED = 1, 130
BAD_USAGE = "BPC0002"
ONE_LINE = "BPC0003"  # what the system or the user did, which has no place in a spec

Report = Callable[[str, BpcError], None]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bpc")
def cli() -> None:
    """Compile a YAML description of a network into one planned, readable training program."""


cli.add_command(train_command)
cli.add_command(compile_command)
cli.add_command(plan_command)
cli.add_command(inspect_command)
cli.add_command(check_command)
cli.add_command(export_command)
cli.add_command(verify_command)
cli.add_command(explain_command)
cli.add_command(lint_command)
cli.add_command(graph_command)
cli.add_command(evaluate_command)
cli.add_command(predict_command)
cli.add_command(config_command)
cli.add_command(schema_command)
cli.add_command(init_command)
cli.add_command(doctor_command)
cli.add_command(completion_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the value is the exit code.

    SIGTERM interrupts it as Ctrl-C does.

    0 done, 1 the input or a check is at fault, 2 wrong usage, 3 no plan fits, 4 stopped by
    non-finite numbers, 130 interrupted.
    """
    _replace_closed_streams()
    _accept_any_name()
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, report = _way_to_report(words)
    try:
        with terminated_as_interrupted():
            return _guard(words, command, report)
    except OSError as error:
        # Saying it failed too: standard output is full, or its reader has gone.
        if error.errno != errno.EPIPE:
            tell(f"bpc: {error.strerror}")
        return _let_go_of_stdout()


def report_interruption(words: Sequence[str]) -> int:
    """Say that a command was interrupted before it began; the value is the exit code."""
    command, report = _way_to_report(words)
    report(command, Interrupted.at(ONE_LINE, "interrupted", None))
    forget_interruption()
    return INTERRUPTED


def _way_to_report(words: Sequence[str]) -> tuple[str, Report]:
    """The name of the command, and how it says what went wrong."""
    command = next((word for word in words if word in cli.commands), "")
    return command, _report_json if "--json" in words else _report_text


def _guard(words: list[str], command: str, report: Report) -> int:
    """Run and turn what a user can act on into a report and an exit code."""
    try:
        code = _run(words)
        # What is still buffered is written here, so that a full disk shows while it can be said.
        sys.stdout.flush()
    except BpcError as error:
        report(command, error)
        code = error.exit_code
    except click.ClickException as error:
        _report_usage(command, error, report)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = report_interruption(words)
    except MemoryError as error:
        report(command, BpcError.at(ONE_LINE, f"out of memory: {error}".rstrip(": "), None))
        code = FAULT
    except OSError as error:
        if error.errno != errno.EPIPE:
            subject = f"{error.filename}: " if error.filename else ""
            report(command, BpcError.at(ONE_LINE, f"{subject}{error.strerror or error}", None))
        code = _let_go_of_stdout()
    return code


def _run(words: list[str]) -> int:
    code = cli.main(args=words, prog_name="bpc", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _replace_closed_streams() -> None:
    """Who closed stdout or stderr before we began wants to see nothing of it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _accept_any_name() -> None:
    """Names of files may hold bytes that are no text, and terminals may lack characters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _let_go_of_stdout() -> int:
    """Python flushes once more on its way out and would complain about what cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up_stdout()
    return FAULT


def _report_usage(command: str, error: click.ClickException, report: Report) -> None:
    if report is _report_json:
        report(command, BpcError.at(BAD_USAGE, error.format_message(), None))
    else:
        error.show()


def _report_text(command: str, error: BpcError) -> None:
    first = error.diagnostics[0]
    if first.code == ONE_LINE:
        tell(f"bpc: {first.message}")
        return
    # Only a failing command needs to know how diagnostics look.
    from bpc.report.diagnostics import read_line_of_file, render_diagnostics

    tell(render_diagnostics(error.diagnostics, read_line_of_file))


def _report_json(command: str, error: BpcError) -> None:
    errors = [item.to_json() for item in error.diagnostics]
    emit_json(command, False, {"errors": errors, **_particulars(error)})


def _particulars(error: BpcError) -> dict[str, Any]:
    """What an error knows beyond its diagnostics."""
    if isinstance(error, BudgetError):
        return {
            "budget_bytes": error.budget_bytes,
            "least_feasible_bytes": error.least_feasible_bytes,
            "alive": [
                {"name": item.name, "bytes": item.nbytes, "kind": item.kind} for item in error.alive
            ],
        }
    if isinstance(error, NonFiniteError):
        return {
            "node": error.node,
            "step": error.step,
            "element": list(error.element),
            "value": error.value,
        }
    return {}


if __name__ == "__main__":
    sys.exit(main())
