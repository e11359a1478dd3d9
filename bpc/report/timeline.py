"""One training step on one axis of launches: what lies in memory when, where and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bpc.ir import Node, Value
from bpc.ops import OPS
from bpc.plan.choose import Planned
from bpc.plan.classes import find_peak, sum_classes
from bpc.plan.model import Kind, Placed
from bpc.plan.naming import describe_node
from bpc.plan.program import Entry, Program
from bpc.plan.repeats import REPEAT, original
from bpc.types import format_bytes, format_shape, nbytes

STEP = ("micro_step", "micro_step_add", "update")
"""Entry points of a training step in order; one batch that adds stands for all that do."""
_STATES = {
    "parameter": "a weight, which update replaces",
    "master": "the full-precision copy of a weight, which update changes",
    "moment": "the optimizer's memory of past gradients",
    "gradient": "micro_step fills it, update reads it",
    "metric": "a figure that the host reads now and then",
    "control": "a number of the control block",
    "input": "filled before each step",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A storage: lifetime in launches (both ends included), place, and why it exists.

    A value that is repeated and never stored has neither lifetime nor offset; its bytes are those
    that keeping it would take. `entry` is the entry point that it belongs to, None for a
    persistent one. `holds` are later values that take the place of the first.
    """

    name: str
    type: str
    nbytes: int
    first: int | None
    last: int | None
    offset: int | None
    kind: str
    decision: str
    why: str
    entry: str | None = None
    holds: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The tensor as plain data."""
        return {
            "name": self.name,
            "type": self.type,
            "bytes": self.nbytes,
            "first": self.first,
            "last": self.last,
            "offset": self.offset,
            "kind": self.kind,
            "decision": self.decision,
            "why": self.why,
            "entry": self.entry,
            "holds": list(self.holds),
        }


@dataclass(frozen=True, slots=True)
class Span:
    """An entry point's part of the time axis: its launches begin at `first`."""

    entry: str
    first: int
    launches: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The launch at which the arena is fullest, and what lives then by class."""

    entry: str
    launch: int
    kernel: str
    classes: Mapping[Kind, int]
    alive: tuple[Placed, ...]

    def __str__(self) -> str:
        return f"launch {self.launch} of {self.entry} ({self.kernel})"


def type_of(value: Value) -> str:
    """`f32[batch, 256]`."""
    return f"{value.dtype}{format_shape(value.shape)}"


def find_moment(program: Program) -> Moment:
    """When the arena is as full as planned; of several moments the first in a step."""
    names = [*STEP, *(name for name in program.entries if name not in STEP)]
    entries = [program.entries[name] for name in names if name in program.entries]
    entry = max(entries, key=lambda made: made.replayed.peak_bytes)
    placed = program.placed(entry.name)
    launch = find_peak(placed)
    alive = tuple(tensor for tensor in placed if tensor.first <= launch <= tensor.last)
    kernel = entry.kernels[launch].name if entry.kernels else ""
    return Moment(entry.name, launch, kernel, sum_classes(placed, launch), alive)


def make_axis(program: Program) -> tuple[Span, ...]:
    """The launches of a step, and behind them the entry point that needs more than a step."""
    names = [name for name in STEP if name in program.entries]
    peak = find_moment(program).entry
    axis: list[Span] = []
    for name in [*names, *([] if peak in names else [peak])]:
        first = axis[-1].first + axis[-1].launches if axis else 0
        axis.append(Span(name, first, len(program.entries[name].kernels)))
    return tuple(axis)


def place_all(program: Program, axis: Iterable[Span]) -> tuple[Placed, ...]:
    """Every storage with its lifetime on the axis, for sums and pictures."""
    spans = tuple(axis)
    end = spans[-1].first + spans[-1].launches - 1
    found: dict[str, Placed] = {}
    moving: list[Placed] = []
    for span in spans:
        for item in program.placed(span.entry):
            if item.name in program.persistent:
                found[item.name] = Placed(item.name, item.kind, item.nbytes, 0, end, item.offset)
            else:
                first, last = item.first + span.first, item.last + span.first
                moving.append(Placed(item.name, item.kind, item.nbytes, first, last, item.offset))
    return (*found.values(), *moving)


def list_tensors(planned: Planned, axis: Iterable[Span]) -> tuple[Tensor, ...]:
    """Every storage of the entry points on an axis, persistent ones first, then by first use."""
    program, spans = planned.program, tuple(axis)
    end = max(spans[-1].first + spans[-1].launches - 1, 0)
    first = _About(planned, program.entries[spans[0].entry], 0)
    kept = [
        _persistent(program, item, end, first.forward_readers(item))
        for item in program.placed(spans[0].entry)
        if item.name in program.persistent
    ]
    own: list[Tensor] = []
    for span in spans:
        about = _About(planned, program.entries[span.entry], span.first)
        own += [about.tensor(item) for item in program.placed(span.entry) if about.is_own(item)]
    stored = {name for item in own for name in (item.name, *item.holds)}
    own += _never_stored(planned, stored)
    return (*kept, *sorted(own, key=_order))


def _order(tensor: Tensor) -> tuple[int, int, str]:
    late = 1 << 62
    first = late if tensor.first is None else tensor.first
    return first, late if tensor.offset is None else tensor.offset, tensor.name


def _persistent(program: Program, placed: Placed, end: int, readers: list[str]) -> Tensor:
    kind, value = program.kinds[placed.name], program.persistent[placed.name]
    decision = "input" if kind == "input" else "state"
    why = _STATES[kind]
    if kind in ("parameter", "input") and readers:
        why += f"; {_listed(readers)} {'reads' if len(readers) == 1 else 'read'} it"
    return Tensor(
        placed.name,
        type_of(value),
        placed.nbytes,
        0,
        end,
        placed.offset,
        placed.kind.value,
        decision,
        why,
    )


def _never_stored(planned: Planned, stored: set[str]) -> list[Tensor]:
    """Values that are repeated wherever they are read and never lie in memory."""
    found = []
    values = planned.program.entries["micro_step"].graph.values()
    for name, decision in planned.decisions.items():
        if decision.decision == "repeated" and name not in stored and name in values:
            value = values[name]
            size = nbytes(value.dtype, value.shape, planned.program.rows)
            found.append(
                Tensor(
                    name,
                    type_of(value),
                    size,
                    None,
                    None,
                    None,
                    Kind.SAVED.value,
                    "repeated",
                    "computed again inside each kernel that reads it",
                    "micro_step",
                )
            )
    return found


@dataclass(slots=True)
class _About:
    """Says why the storages of one entry point exist."""

    planned: Planned
    entry: Entry
    shift: int
    nodes: dict[str, Node] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    values: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.entry.graph.nodes}
        self.makers = self.entry.graph.producers()
        self.values = self.entry.graph.values()

    def is_own(self, item: Placed) -> bool:
        return item.name not in self.planned.program.persistent

    def tensor(self, item: Placed) -> Tensor:
        holds = tuple(
            value
            for value, home in self.entry.storage.items()
            if home == item.name and value != item.name
        )
        decision, why = self._reason(item, holds)
        value = self.values[item.name]
        return Tensor(
            item.name,
            type_of(value),
            item.nbytes,
            item.first + self.shift,
            item.last + self.shift,
            item.offset,
            item.kind.value,
            decision,
            why,
            self.entry.name,
            holds,
        )

    def _reason(self, item: Placed, holds: tuple[str, ...]) -> tuple[str, str]:
        found = [
            self.planned.decisions[name].decision
            for name in (item.name, *holds)
            if name in self.planned.decisions
        ]
        readers = self._readers(item)
        if REPEAT in item.name:
            return "repeated", f"made again for {_listed(readers)}"
        if "repeated" in found:
            return "repeated", self._why_repeated(item)
        if item.kind is Kind.SAVED or "kept" in found:
            late = self._readers(item, "backward") or readers
            return "kept", f"{_listed(late)} {'reads' if len(late) == 1 else 'read'} it"
        return "temporary", self._why_temporary(item, readers)

    def _why_temporary(self, item: Placed, readers: list[str]) -> str:
        roots = [self._root(value) for _, value in self.entry.graph.outputs]
        if any(self.entry.storage.get(root) == item.name for root in roots):
            return "a result that the host reads after the last launch"
        if item.last == item.first + 1:
            return "read by the next launch only"
        return f"read by {_listed(readers)}" if readers else "nothing reads it"

    def _why_repeated(self, item: Placed) -> str:
        """What the repetition costs and what it frees in between."""
        again = [
            at
            for at, kernel in enumerate(self.entry.kernels)
            if at > item.last and any(original(made.value) == item.name for made in kernel.writes)
        ]
        if again:
            flops = sum(self.entry.kernels[at].flops for at in again)
        else:
            flops = sum(map(self._flops, self._repetitions(item.name)))
        until = f" to {again[0] + self.shift - 1}" if again else " on"
        freed = f"{format_bytes(item.nbytes)} from launch {item.last + self.shift + 1}{until}"
        return f"{flops / 1e6:.3g} MFLOPs a step free {freed}"

    def _repetitions(self, value: str) -> list[Node]:
        """The nodes that make the value again."""
        return [
            node
            for node in self.entry.graph.nodes
            if REPEAT in node.name and original(node.output.name) == value
        ]

    def _flops(self, node: Node) -> int:
        operands = [self.values[name] for name in node.inputs]
        return OPS[node.op].flops(node, operands, self.planned.program.rows)

    def forward_readers(self, item: Placed) -> list[str]:
        """The layers that read a persistent tensor on the way to the loss."""
        return self._readers(item, "forward")

    def _readers(self, item: Placed, phase: str = "") -> list[str]:
        """The nodes that read a storage's first value, as people call them, each once."""
        found: list[str] = []
        for at in range(item.first, min(item.last + 1, len(self.entry.kernels))):
            if item.name in self.entry.steps[at].reads:
                for name in self.entry.kernels[at].nodes:
                    node = self.nodes[name]
                    reads = any(self._root(source) == item.name for source in node.inputs)
                    if reads and phase in ("", node.phase):
                        found.append(describe_node(node))
        return list(dict.fromkeys(found))

    def _root(self, name: str) -> str:
        while name in self.makers and self.makers[name].op == "reshape":
            name = self.makers[name].inputs[0]
        return name


def _listed(names: list[str]) -> str:
    if len(names) <= 2:
        return " and ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
