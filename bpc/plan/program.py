"""From kernels to a program: storages, places in the arena, launches.

The arena holds what persists (states, input slots) followed by the largest of the entry points'
own tensors. A value that becomes a state's next version is written straight into the state; an
element-wise result takes the place of an operand that it reads last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bpc.ir import Graph, State, Value
from bpc.kernel import Kernel, Operand
from bpc.passes.layout import plain_layout
from bpc.plan.arena import pack
from bpc.plan.fuse import Fused, fuse
from bpc.plan.liveness import replay
from bpc.plan.model import Buffer, Kind, Placed, PlanFault, Replay, Step, Storage

ALIGNMENT = 64
_KINDS = {
    "parameter": Kind.PARAMETERS,
    "master": Kind.PARAMETERS,
    "gradient": Kind.GRADIENTS,
    "moment": Kind.OPTIMIZER,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point: its kernels in launch order and where their tensors lie.

    `storage` maps every stored value to the storage that holds it (itself, a state, or the operand
    whose place it took); `offsets` has the place of each storage of this entry; `barriers` says
    after which launches the team waits.
    """

    name: str
    graph: Graph
    kernels: tuple[Kernel, ...]
    storage: Mapping[str, str]
    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    barriers: tuple[bool, ...]
    steps: tuple[Step, ...]
    replayed: Replay

    def offset_of(self, operand: Operand) -> int:
        """Where a kernel's operand begins in the arena, in bytes."""
        return self.offsets[self.storage[operand.value]]

    def output_of(self, role: str) -> tuple[str, int]:
        """(value, offset) of an output."""
        output = self.graph.output(role)
        value = self.graph.views().get(output, output)
        return value, self.offsets[self.storage[value]]


@dataclass(frozen=True, slots=True)
class Program:
    """All entry points over one arena of `arena_bytes`; `persistent` are the shared storages."""

    rows: int
    entries: Mapping[str, Entry]
    persistent: Mapping[str, Value]
    kinds: Mapping[str, str]
    offsets: Mapping[str, int]
    persistent_bytes: int
    arena_bytes: int

    def placed(self, entry: str) -> tuple[Placed, ...]:
        """Every tensor of an entry with class, lifetime (in its launches) and offset."""
        return _placed(self, self.entries[entry])


def build_program(
    graphs: Mapping[str, Graph], states: Sequence[State], rows: int, joined: bool = True
) -> Program:
    """Fuse, place and check the entry points.

    Args:
        graphs: entry points by name, made of primitives, in an order that can be executed.
        states: everything that outlives a call, in the order of the arena.
        rows: planned rows of a batch.
        joined: False for one kernel per node, to compare with.
    """
    persistent = {state.name: state.value for state in states}
    kinds = {state.name: state.kind for state in states}
    for graph in graphs.values():
        for value in graph.inputs:
            persistent.setdefault(value.name, value)
            kinds.setdefault(value.name, "input")
    offsets, end = _stack(persistent, rows)
    entries = {
        name: place_entry(name, graph, persistent, offsets, end, rows, joined)
        for name, graph in graphs.items()
    }
    return join_entries(Program(rows, {}, persistent, kinds, offsets, end, end), entries)


def join_entries(program: Program, entries: Mapping[str, Entry]) -> Program:
    """The program with other entry points over the same persistent part."""
    ends = [entry.replayed.peak_bytes for entry in entries.values()]
    return replace(program, entries=entries, arena_bytes=max(program.persistent_bytes, *ends))


def _stack(values: Mapping[str, Value], rows: int) -> tuple[dict[str, int], int]:
    """Persistent tensors one behind the other."""
    offsets, end = {}, 0
    for name, value in values.items():
        start = -(-end // ALIGNMENT) * ALIGNMENT
        offsets[name] = start
        end = start + _plain_bytes(value, rows)
    return offsets, end


def _plain_bytes(value: Value, rows: int) -> int:
    """Bytes of what persists between calls: plain, since the host reads and writes it."""
    return plain_layout(value).nbytes(value.dtype, rows)


def place_entry(
    name: str,
    graph: Graph,
    persistent: Mapping[str, Value],
    fixed: Mapping[str, int],
    base: int,
    rows: int,
    joined: bool = True,
) -> Entry:
    """Fuse one entry point and give its tensors places above `base`."""
    fused = fuse(graph, rows, joined)
    storage = _assign_storage(graph, fused, persistent, rows)
    sizes = _sizes(fused, storage, persistent, rows)
    steps = tuple(_step(kernel, storage) for kernel in fused.kernels)
    roots = graph.views()
    kept = {storage[roots.get(value, value)] for _, value in graph.outputs}
    buffers = _buffers(steps, sizes, set(persistent), kept)
    offsets = dict(fixed) | pack(buffers, ALIGNMENT, -(-base // ALIGNMENT) * ALIGNMENT)
    replayed = _replay(steps, sizes, offsets, persistent, kept)
    barriers = _barriers(steps, sizes, offsets)
    return Entry(
        name, graph, fused.kernels, storage, offsets, sizes, barriers, steps, replayed
    )


# -- storages -------------------------------------------------------------------------------------


def _assign_storage(
    graph: Graph, fused: Fused, persistent: Mapping[str, Value], rows: int
) -> dict[str, str]:
    """Which storage holds each stored value."""
    storage = {name: name for name in persistent}
    roots = graph.views()
    becoming = {roots.get(value, value): state for state, value in graph.updates}
    kept = {roots.get(value, value) for _, value in graph.outputs}
    last = _last_readers(fused.kernels)
    _check_versions(graph, fused.kernels, becoming)
    for at, kernel in enumerate(fused.kernels):
        taken: set[str] = set()
        for target in kernel.writes:
            if target.value in becoming:
                storage[target.value] = becoming[target.value]
                continue
            source = None
            if target.value not in kept:
                source = _replaceable(kernel, target, at, last, storage, persistent, taken, kept)
            if source is None:
                storage[target.value] = target.value
            else:
                taken.add(source)
                storage[target.value] = storage[source]
                last[storage[source]] = last.get(target.value, at)
    return storage


def _last_readers(kernels: Sequence[Kernel]) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, kernel in enumerate(kernels):
        for operand in (*kernel.reads, *kernel.writes):
            found[operand.value] = at
    return found


def _replaceable(
    kernel: Kernel,
    target: Operand,
    at: int,
    last: Mapping[str, int],
    storage: Mapping[str, str],
    persistent: Mapping[str, Value],
    taken: set[str],
    kept: set[str],
) -> str | None:
    """An operand whose place the result can take: read last here, element for element."""
    for source in kernel.reads:
        home = storage[source.value]
        if (
            source.label not in kernel.sources
            and source.value not in taken
            and source.value not in kept
            and home not in persistent
            and last[source.value] == at
            and last[home] == at
            and source.dtype == target.dtype
            and same_elements(kernel, source, target)
            and sum(other.value == source.value for other in kernel.reads) == 1
        ):
            return source.value
    return None


def same_elements(kernel: Kernel, source: Operand, target: Operand) -> bool:
    """Whether each element is read only by whoever then writes its place."""
    if kernel.skeleton in ("columns", "chunks", "scalar"):
        return False
    return (source.dims, source.strides) == (target.dims, target.strides) and _one_to_one(target)


def _one_to_one(operand: Operand) -> bool:
    return all(
        stride or dim == 1 for dim, stride in zip(operand.dims, operand.strides, strict=True)
    )


def _check_versions(
    graph: Graph, kernels: Sequence[Kernel], becoming: Mapping[str, str]
) -> None:
    """No kernel reads a state after its next version was written over it."""
    written: set[str] = set()
    for kernel in kernels:
        here = {becoming[t.value]: t for t in kernel.writes if t.value in becoming}
        for source in kernel.reads:
            if source.value in written:
                raise PlanFault(f"{kernel.name} reads {source.value} after it changed")
            target = here.get(source.value)
            if target is None or kernel.skeleton == "scalar":
                continue
            if source.label in kernel.sources or not same_elements(kernel, source, target):
                raise PlanFault(f"{kernel.name} changes {source.value} while others read it")
        written.update(here)


def _sizes(
    fused: Fused, storage: Mapping[str, str], persistent: Mapping[str, Value], rows: int
) -> dict[str, int]:
    sizes = {name: _plain_bytes(value, rows) for name, value in persistent.items()}
    for name, home in storage.items():
        if name == home and name not in sizes:
            value = fused.values[name]
            sizes[name] = fused.layouts[name].nbytes(value.dtype, rows)
    return sizes


def _step(kernel: Kernel, storage: Mapping[str, str]) -> Step:
    reads = dict.fromkeys(storage[operand.value] for operand in kernel.reads)
    writes = dict.fromkeys(storage[operand.value] for operand in kernel.writes)
    return Step(kernel.name, tuple(reads), tuple(writes))


def _buffers(
    steps: Sequence[Step], sizes: Mapping[str, int], persistent: set[str], kept: set[str]
) -> list[Buffer]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, step in enumerate(steps):
        for name in (*step.reads, *step.writes):
            if name not in persistent:
                first.setdefault(name, at)
                last[name] = at
    for name in kept - persistent:
        last[name] = len(steps)
    return [Buffer(name, sizes[name], first[name], last[name]) for name in first]


def _replay(
    steps: tuple[Step, ...],
    sizes: Mapping[str, int],
    offsets: Mapping[str, int],
    persistent: Iterable[str],
    kept: set[str],
) -> Replay:
    """The independent check of the placement; outputs are read after the last launch."""
    fixed = set(persistent)
    storages = {
        name: Storage(sizes[name], offsets[name], name in fixed)
        for name in sizes
        if name in offsets
    }
    late = tuple(sorted(kept - fixed))
    return replay([*steps, Step("outputs", late, ())], storages)


def _barriers(
    steps: Sequence[Step], sizes: Mapping[str, int], offsets: Mapping[str, int]
) -> tuple[bool, ...]:
    """Wait before a launch that touches bytes which a launch since the last wait wrote (or reads
    bytes that the launch writes)."""
    barriers = [False] * len(steps)
    reads: list[tuple[int, int]] = []
    writes: list[tuple[int, int]] = []
    for at, step in enumerate(steps):
        mine = [_range(name, sizes, offsets) for name in step.reads]
        made = [_range(name, sizes, offsets) for name in step.writes]
        if at and (_meet(made, reads) or _meet(made, writes) or _meet(mine, writes)):
            barriers[at - 1] = True
            reads, writes = [], []
        reads += mine
        writes += made
    if barriers:
        barriers[-1] = True
    return tuple(barriers)


def _range(name: str, sizes: Mapping[str, int], offsets: Mapping[str, int]) -> tuple[int, int]:
    return offsets[name], offsets[name] + sizes[name]


def _meet(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


# -- reports --------------------------------------------------------------------------------------


def _placed(program: Program, entry: Entry) -> tuple[Placed, ...]:
    forward = {
        value.name
        for node in entry.graph.nodes
        if node.phase == "forward"
        for value in node.outputs
    }
    roots = entry.graph.views()
    backward = {
        roots.get(name, name)
        for node in entry.graph.nodes
        if node.phase == "backward"
        for name in node.inputs
    }
    tensors = []
    count = len(entry.steps)
    for name, value in program.persistent.items():
        kind = _KINDS.get(program.kinds[name], Kind.WORKSPACE)
        size = _plain_bytes(value, program.rows)
        tensors.append(Placed(name, kind, size, 0, max(count - 1, 0), program.offsets[name]))
    kept = {entry.storage[roots.get(value, value)] for _, value in entry.graph.outputs}
    for buffer in _buffers(entry.steps, entry.sizes, set(program.persistent), kept):
        saved = buffer.name in forward and buffer.name in backward
        kind = Kind.SAVED if saved else Kind.WORKSPACE
        last = min(buffer.last, max(count - 1, 0))
        place = entry.offsets[buffer.name]
        tensors.append(Placed(buffer.name, kind, buffer.nbytes, buffer.first, last, place))
    return tuple(tensors)
