"""What a person sees while a network trains: a table of evaluations, and a bar on a terminal."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bpc.cli.output import bar, give_up_stdout, show, tell, uses_colour
from bpc.types import count_of, format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_SECONDS = 0.1
_BEFORE, _BEHIND = " epoch    step     train     valid", "        lr       |g|        ms"
_LABELS = {"accuracy": "acc"}
_MOST_METRICS = 4


class SilentProgress:
    """Says nothing: for `--json` and `--quiet`. `lost`: something that it said was not written."""

    lost = False

    def on_wait(self, text: str) -> None:
        """Called before something that takes long."""

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Called once, before the first step."""

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        """Called after each step; `loss` is None where the host has not read it yet."""

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Called after each evaluation."""

    def on_note(self, text: str) -> None:
        """Called with something worth knowing at once, such as a skipped step."""

    def close(self) -> None:
        """Called at the end, however it comes."""


class TableProgress(SilentProgress):
    """One line an evaluation on stdout; between them a bar on stderr if that is a terminal.

    That nobody can read it any more (the reader has gone, the disk is full) is no reason to stop a
    run: the table then ends, and the run goes on.
    """

    def __init__(self) -> None:
        self._bar = StepBar() if sys.stderr.isatty() else None
        self._metrics: Sequence[str] = ()
        self._waiting = False

    def on_wait(self, text: str) -> None:
        """Say on a terminal what is going on, until there is something else to say."""
        if self._bar:
            sys.stderr.write(f"{text} ...")
            sys.stderr.flush()
            self._waiting = True

    def _end_wait(self) -> None:
        if self._waiting:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._waiting = False

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Say what runs where and how large it is."""
        self._end_wait()
        self._metrics = facts.get("metrics", ("accuracy",))[:_MOST_METRICS]
        self._show(format_start(facts))
        self._show(format_header(self._metrics))

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        """Move the bar."""
        if self._bar:
            self._bar.move(step, total, loss)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Print the line of one evaluation."""
        if self._bar:
            self._bar.hide()
        self._show(format_evaluation(row, self._metrics))

    def on_note(self, text: str) -> None:
        """Print the note on stderr, where it does not disturb the table."""
        self._end_wait()
        if self._bar:
            self._bar.hide()
        _try_to_tell(f"note: {text}")

    def _show(self, text: str) -> None:
        if self.lost:
            return
        try:
            show(text)
        except OSError as error:
            self.lost = True
            give_up_stdout()
            if error.errno != errno.EPIPE:
                reason = f"standard output can no longer be written: {error.strerror}"
                _try_to_tell(f"note: {reason}; the run goes on without its table")

    def close(self) -> None:
        """Take the bar away."""
        self._end_wait()
        if self._bar:
            self._bar.hide()


def _try_to_tell(text: str) -> None:
    """Say something on stderr, which may lead where stdout does."""
    try:
        tell(text)
    except OSError:
        return


class StepBar:
    """A bar drawn by the calling thread alone: a drawing thread would disturb the pinned team."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._drawn = 0.0

    def move(self, step: int, total: int, loss: float | None) -> None:
        """Draw the bar, at most ten times a second."""
        now = time.monotonic()
        if now - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn = now
        progress = self._shown()
        text = "" if loss is None else f"loss {loss:.4g}"
        progress.update(progress.task_ids[0], completed=step, total=total, loss=text)
        progress.refresh()

    def hide(self) -> None:
        """Remove the bar from the terminal; the next move draws it again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _shown(self) -> Progress:
        if self._progress is None:
            self._progress = _make_bar()
            self._progress.start()
        return self._progress


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        console=Console(stderr=True, no_color=not uses_colour(sys.stderr)),
        auto_refresh=False,
        transient=True,
    )
    progress.add_task("steps", total=None, loss="")
    return progress


def format_start(facts: Mapping[str, Any]) -> str:
    """`digits-mlp   2,410 parameters   fp32   cpu (2 threads)   plan 1.42 MiB, budget none`."""
    budget = facts.get("budget_bytes")
    resumed = facts.get("resumed_after")
    where = str(facts["device"])
    if facts.get("threads"):
        where += f" ({count_of(facts['threads'], 'thread')})"
    return "   ".join(
        (
            str(facts["name"]),
            count_of(facts["parameters"], "parameter"),
            str(facts["precision"]),
            where,
            f"plan {format_bytes(facts['planned_peak_bytes'])}, "
            f"budget {format_bytes(budget) if budget else 'none'}",
            *([f"goes on after step {resumed:,}"] if resumed else []),
        )
    )


def format_header(metrics: Sequence[str]) -> str:
    """The names of the columns; shares take 6, other metrics 8."""
    named = (f"  {_LABELS.get(name, name):>{6 if is_share(name) else 8}}" for name in metrics)
    return f"{_BEFORE}{''.join(named)}{_BEHIND}"


def format_evaluation(row: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """One line of the table; what a row does not know stays empty."""
    accuracy = row.get("test_accuracy") if "accuracy" in metrics else None
    columns = (
        f"{row['epoch']:6d}",
        f"{row['step']:6d}",
        _number(row.get("train_loss"), "8.4f"),
        _number(row.get("test_loss"), "8.4f"),
        *(_format_metric(name, row.get(f"test_{name}")) for name in metrics),
        _number(row.get("lr"), "8.1e"),
        _number(row.get("gradient_norm"), "8.3g"),
        _number(row.get("step_ms"), "8.3f"),
        "" if accuracy is None else bar(accuracy),
    )
    return "  ".join(columns).rstrip()


def is_share(name: str) -> bool:
    """Whether a metric is a share of rows, which people read in percent."""
    return name == "accuracy" or name.startswith("top")


def _format_metric(name: str, value: float | None) -> str:
    if not is_share(name):
        return _number(value, "8.4g")
    return " " * 6 if value is None else f"{100 * value:5.1f}%"


def _number(value: float | None, form: str) -> str:
    return " " * int(form.split(".")[0]) if value is None else format(value, form)
