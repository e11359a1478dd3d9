"""Names of values while a model is expanded: who has which, and what `from:` finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from bpc.errors import Collector, Note, Span
from bpc.spec import codes
from bpc.spec.entries import Source
from bpc.spec.words import find_nearest, show


@dataclass(frozen=True, slots=True)
class _Missing:
    source: Source
    scope: str


def join_scope(scope: str, name: str) -> str:
    """`blocks.3` and `query` to `blocks.3.query`."""
    return f"{scope}.{name}" if scope else name


@dataclass(slots=True)
class Names:
    """Full names in use, the value that each stands for so far, and what was not found."""

    errors: Collector
    places: dict[str, Span] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    missing: list[_Missing] = field(default_factory=list)

    def declare(self, full: str, value: str, span: Span) -> None:
        """Give a name to a value that exists from the start."""
        if self.reserve(full, span):
            self.values[full] = value

    def reserve(self, full: str, span: Span) -> bool:
        """Take a name; a second taker is recorded with both places."""
        first = self.places.get(full)
        if first is None:
            self.places[full] = span
            return True
        short = show(full.rpartition(".")[2])
        notes = [Note("first here", first)]
        self.errors.add(
            codes.DUPLICATE_NAME, f"the name {short} is taken", span, notes, "choose another name"
        )
        return False

    def make(self, scope: str, kind: str) -> str:
        """The next free default name of a kind in a scope: `linear1`, `linear2`."""
        while True:
            number = self.counts.get((scope, kind), 0) + 1
            self.counts[scope, kind] = number
            if join_scope(scope, f"{kind}{number}") not in self.places:
                return f"{kind}{number}"

    def look_up(self, name: str, scope: str) -> str | None:
        """The value that a name means, from the innermost scope outwards."""
        while True:
            value = self.values.get(join_scope(scope, name))
            if value is not None or not scope:
                return value
            scope = scope.rpartition(".")[0]

    def find(self, source: Source, scope: str) -> str | None:
        """The value that `from:` names, or None; the fault is told by `report_missing`."""
        value = self.look_up(source.name, scope)
        if value is None:
            self.missing.append(_Missing(source, scope))
        return value

    def tie(self, name: str, scope: str) -> str:
        """The full form of `fc1.weight` where `fc1` is a layer, or of a declared parameter."""
        layer, _, role = name.rpartition(".")
        if not layer:
            return self.look_up(name, scope) or name
        value = self.look_up(layer, scope)
        return f"{value}.{role}" if value is not None else name

    def report_missing(self) -> None:
        """Record every name that was not found, once all names are known."""
        for item in self.missing:
            self._report(item.source, item.scope)

    def _report(self, source: Source, scope: str) -> None:
        later = self._find_place(source.name, scope)
        if later is not None:
            message = f"{show(source.name)} is defined later than it is used"
            notes = [Note("defined here", later)]
            help = "a layer reads what stands above it"
            self.errors.add(codes.FORWARD_REFERENCE, message, source.span, notes, help)
            return
        nearest = find_nearest(source.name, self._visible(scope))
        help_text = f"did you mean {show(nearest)}?" if nearest else self._list_some(scope)
        message = f"nothing is named {show(source.name)}"
        self.errors.add(codes.UNKNOWN_NAME, message, source.span, help=help_text)

    def _find_place(self, name: str, scope: str) -> Span | None:
        while True:
            place = self.places.get(join_scope(scope, name))
            if place is not None or not scope:
                return place
            scope = scope.rpartition(".")[0]

    def _visible(self, scope: str) -> list[str]:
        prefixes = [""]
        while scope:
            prefixes.append(scope + ".")
            scope = scope.rpartition(".")[0]
        return [
            full[len(prefix) :]
            for prefix in prefixes
            for full in self.values
            if full.startswith(prefix)
        ][:1000]

    def _list_some(self, scope: str) -> str:
        return f"known here: {', '.join(sorted(set(self._visible(scope)))[:12])}"
