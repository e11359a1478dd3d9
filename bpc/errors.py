"""Where things went wrong, and the exceptions that carry it. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source file: one-based line and column, `width` columns wide."""

    file: str
    line: int
    column: int
    width: int = 1

    def __str__(self) -> str:
        if self.file.startswith("--"):
            return self.file  # an option of the command line has no lines
        return f"{self.file}:{self.line}:{self.column}"

    def to_json(self) -> dict[str, object]:
        """The span as plain data for `--json` and manifests."""
        return {"file": self.file, "line": self.line, "column": self.column, "width": self.width}


@dataclass(frozen=True, slots=True)
class Note:
    """A further fact about a diagnostic, with its own place where there is one."""

    text: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: what is wrong, where, what else matters, and what to do."""

    code: str
    message: str
    span: Span | None
    notes: tuple[Note, ...] = ()
    help: str | None = None
    severity: str = "error"

    def to_json(self) -> dict[str, object]:
        """The diagnostic as plain data for `--json`."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "place": self.span.to_json() if self.span else None,
            "notes": [
                {"text": note.text, "place": note.span.to_json() if note.span else None}
                for note in self.notes
            ],
            "help": self.help,
        }


class BpcError(Exception):
    """A fault that the user can act on. `exit_code` is what the command line returns."""

    exit_code = 1

    def __init__(self, diagnostics: Sequence[Diagnostic]):
        assert diagnostics, "an error needs at least one diagnostic"
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(_plain(item) for item in self.diagnostics))

    @classmethod
    def at(
        cls,
        code: str,
        message: str,
        span: Span | None,
        notes: Sequence[Note] = (),
        help: str | None = None,
    ) -> BpcError:
        """Raise-able error of this class with a single diagnostic."""
        return cls([Diagnostic(code, message, span, tuple(notes), help)])


class SpecError(BpcError):
    """The YAML file, its formulas, names or shapes are at fault."""


class DataError(BpcError):
    """A data source is missing, unreadable or does not fit the spec."""


class ToolError(BpcError):
    """Something bpc needs from the machine (a compiler, a package) is missing or failed."""


class UsageError(BpcError):
    """The command line or the Python call asks for something that does not exist."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor that is alive at the peak of a plan that does not fit."""

    name: str
    nbytes: int
    kind: str


class BudgetError(BpcError):
    """No plan fits the budget; carries the least peak that was found feasible, in bytes."""

    exit_code = 3

    def __init__(
        self,
        diagnostics: Sequence[Diagnostic],
        budget_bytes: int,
        least_feasible_bytes: int,
        alive: Sequence[LiveTensor],
    ):
        super().__init__(diagnostics)
        self.budget_bytes = budget_bytes
        self.least_feasible_bytes = least_feasible_bytes
        self.alive = tuple(alive)


class NonFiniteError(BpcError):
    """Training met an inf or a NaN: which node made it, in which step, at which element."""

    exit_code = 4

    def __init__(
        self,
        diagnostics: Sequence[Diagnostic],
        node: str,
        step: int,
        element: tuple[int, ...],
        value: float,
    ):
        super().__init__(diagnostics)
        self.node = node
        self.step = step
        self.element = element
        self.value = value


class Interrupted(BpcError):
    """The user stopped the run (Ctrl-C or SIGTERM) and everything worth keeping was saved."""

    exit_code = 130


@dataclass(slots=True)
class Collector:
    """Gathers diagnostics so that one run reports all faults of a file."""

    found: list[Diagnostic] = field(default_factory=list)

    def add(
        self,
        code: str,
        message: str,
        span: Span | None,
        notes: Sequence[Note] = (),
        help: str | None = None,
    ) -> None:
        """Record one error."""
        self.found.append(Diagnostic(code, message, span, tuple(notes), help))

    def raise_if_any(self, kind: type[BpcError] = SpecError) -> None:
        """Raise what was gathered, in order of place, as one error of class `kind`."""
        errors = [item for item in self.found if item.severity == "error"]
        if errors:
            raise kind(sorted(errors, key=_place))


def _place(item: Diagnostic) -> tuple[str, int, int]:
    return (item.span.file, item.span.line, item.span.column) if item.span else ("", 0, 0)


def _plain(item: Diagnostic) -> str:
    where = f"{item.span}: " if item.span else ""
    return f"{where}{item.severity} {item.code}: {item.message}"
