"""Every CUDA kernel of a network: compiled for real devices, run, raced, and compared.

The network's step runs launch by launch in the simulator with every check on, each tensor in a
guarded buffer of its own, no longer than its rows at hand, that holds what lay in memory at that
moment; the results of the first way of running are what the next launch finds. No text runs
unchecked: one that is at fault could take the process with it. A launch is sound if nothing is
reported, exactly the bytes of its results were written, its results are the same in every mode and
order of threads, they have the bits of the C++ kernels of the CPU, and they are within the stated
bound of a float64 evaluation of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bpc.codegen.cuda import CudaLaunch, CudaSource
from bpc.diagnose.oracle import Oracle, compare, decode
from bpc.diagnose.twin import Twin
from bpc.errors import Span
from bpc.ir import Value
from bpc.kernel import Kernel, Operand
from bpc.passes.layout import plain_layout
from bpc.plan.program import Entry, Program
from bpc.runtime.device import Array
from bpc.runtime.host_arena import HostArena
from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import SimModule, load_cuda
from bpc.runtime.sim_device import self_contained
from bpc.types import shape_at

Bytes = NDArray[np.uint8]

HELD, MEAN_OVERFLOWS = "held", "mean overflows"

WIDEST = 16
"""Bytes of the widest access, to which a plan aligns every tensor at least."""


@dataclass(frozen=True, slots=True)
class Run:
    """One way of running a launch with checks."""

    mode: str  # "source" | "ptx"
    options: LaunchOptions
    tight: bool = False  # tensors begin where they end on the guard page: aligned to an element

    def __str__(self) -> str:
        extra = f" seed {self.options.seed}" if self.options.order == "random" else ""
        moved = " adversarial" if self.options.adversarial else ""
        tight = " tight" if self.tight else ""
        return f"{self.mode} {self.options.order}{extra}{moved}{tight}"


RUNS = (
    Run("source", LaunchOptions(order="in-order")),
    Run("source", LaunchOptions(order="reverse", adversarial=1.0), tight=True),
    Run("ptx", LaunchOptions(order="random", seed=7)),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a launch, with the kernel, its nodes and the lines that caused it."""

    entry: str
    function: str
    run: str
    text: str
    nodes: tuple[str, ...]
    places: tuple[Span, ...]

    def to_json(self) -> dict[str, object]:
        """The finding as plain data."""
        return {
            "entry": self.entry,
            "function": self.function,
            "run": self.run,
            "text": self.text,
            "nodes": list(self.nodes),
            "places": [place.to_json() for place in self.places],
        }


@dataclass(slots=True)
class KernelCheck:
    """What was seen of one function: launches checked, worst error as a share of its bound."""

    function: str
    places: tuple[Span, ...]
    launches: int = 0
    error: float = 0.0
    bound: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def note(self, error: float, bound: float) -> None:
        """Keep the error that is the largest share of its bound."""
        if error * (self.bound or 1.0) >= self.error * (bound or 1.0) or not self.launches:
            self.error, self.bound = error, bound


@dataclass(frozen=True, slots=True)
class Call:
    """An entry point as a check calls it, with the launches that are checked.

    `event`: what happens to the step. HELD: it comes behind one that was not finite, which the
    host has yet to see. MEAN_OVERFLOWS: its loss is finite, and the mean of it is not.
    """

    entry: str
    rows: int
    launches: tuple[CudaLaunch, ...]
    event: str = ""


def list_calls(program: Program, source: CudaSource, rows: Sequence[int]) -> Iterator[Call]:
    """Every entry point with every number of rows, and what decides over a step twice more."""
    for count in rows:
        for name, launches in source.launches.items():
            yield Call(name, count, tuple(launches))
            entry = program.entries[name]
            deciding = tuple(launch for launch in launches if _decides(entry, launch))
            if deciding and count == rows[0]:
                yield Call(name, count, deciding, HELD)
                yield Call(name, count, deciding, MEAN_OVERFLOWS)


def _decides(entry: Entry, launch: CudaLaunch) -> bool:
    """Whether a launch tells if the step counts."""
    kernels = [entry.kernels[at] for at in (*launch.kernels, *launch.tails)]
    return any(operand.value == "control.late" for kernel in kernels for operand in kernel.reads)


def check_kernels(
    program: Program,
    source: CudaSource,
    prepare: Callable[[HostArena, Call], None],
    rows: Sequence[int],
    runs: Sequence[Run] = RUNS,
    told: Callable[[str], None] = lambda text: None,
    twin: Twin | None = None,
) -> tuple[KernelCheck, ...]:
    """Check every launch of every entry point.

    Args:
        program: what is planned.
        source: its CUDA text and launches.
        prepare: fills inputs, states and control values of a device for a call.
        rows: how many rows to run with; short batches show what guards are worth.
        runs: the ways of running each launch.
        told: progress.
        twin: the program on the CPU, whose bits results are compared with.
    """
    text = self_contained(source, "network.cu")
    modes = list(dict.fromkeys(run.mode for run in runs))
    with ThreadPoolExecutor(len(modes)) as pool:  # most of the time other programs compile
        loaded = pool.map(lambda mode: _load(text, mode), modes)
        modules = dict(zip(modes, loaded, strict=True))
    device = HostArena(program)
    checks: dict[str, KernelCheck] = {}
    for call in list_calls(program, source, rows):
        told(f"{call.entry}, {call.rows} rows")
        prepare(device, call)
        for launch in call.launches:
            item = take_launch(device, program.entries[call.entry], launch, call.rows, twin)
            for home, raw in check_launch(item, modules, runs, checks).items():
                storage_bytes(device.arena, item.entry, home)[: len(raw)] = raw
    return tuple(checks.values())


def _load(text: str, mode: str) -> SimModule:
    assert mode in ("source", "ptx")
    # The PTX of what was compiled for the table of resources.
    return load_cuda(
        text, "source" if mode == "source" else "ptx", True, arch="sm_90", name="network.cu"
    )


@dataclass(frozen=True, slots=True)
class Item:
    """A launch with the bytes of its storages before it runs."""

    entry: Entry
    launch: CudaLaunch
    rows: int
    before: Mapping[str, Bytes]
    values: Mapping[str, Value]
    twin: Mapping[str, Bytes]  # what the C++ kernels leave; empty if they were not run

    def kernels(self) -> list[Kernel]:
        """The launch's kernels in order."""
        return [self.entry.kernels[at] for at in (*self.launch.kernels, *self.launch.tails)]

    def operands(self) -> list[Operand]:
        """All that the launch reads and writes."""
        return [item for kernel in self.kernels() for item in (*kernel.reads, *kernel.writes)]


def take_launch(
    device: HostArena, entry: Entry, launch: CudaLaunch, rows: int, twin: Twin | None
) -> Item:
    """A launch with a copy of what lies in memory."""
    homes = _homes(entry, launch)
    before = {home: storage_bytes(device.arena, entry, home).copy() for home in homes}
    after: dict[str, Bytes] = {}
    order = (*launch.kernels, *launch.tails)
    for at, arena in twin.run(device.arena, entry.name, order, rows) if twin else ():
        written = [entry.storage[operand.value] for operand in entry.kernels[at].writes]
        after.update((home, storage_bytes(arena, entry, home).copy()) for home in written)
    return Item(entry, launch, rows, before, entry.graph.values(), after)


def _homes(entry: Entry, launch: CudaLaunch) -> list[str]:
    """The storages of a launch."""
    kernels = [entry.kernels[at] for at in (*launch.kernels, *launch.tails)]
    operands = [item for kernel in kernels for item in (*kernel.reads, *kernel.writes)]
    return list(dict.fromkeys(entry.storage[item.value] for item in operands))


def storage_bytes(arena: Bytes, entry: Entry, home: str) -> Bytes:
    """Where a storage of an entry lies in an arena."""
    start = entry.offsets[home]
    return arena[start : start + entry.sizes[home]]


def check_launch(
    item: Item,
    modules: Mapping[str, SimModule],
    runs: Sequence[Run],
    checks: dict[str, KernelCheck],
) -> dict[str, Bytes]:
    """Run a launch in every way; what it leaves in each storage that it writes, up to its rows.

    Args:
        item: the launch and what it finds in memory.
        modules: its text, compiled for each mode that `runs` name.
        runs: the ways of running it; the first one's results are kept.
        checks: by function, where findings are noted.
    """
    kernels = item.kernels()
    places = tuple(dict.fromkeys(span for kernel in kernels for span in kernel.spans))
    check = checks.setdefault(item.launch.function, KernelCheck(item.launch.function, places))
    first: dict[str, Bytes] = {}
    for run in runs:
        results: dict[str, Bytes] = {}
        for text in _run_checked(item, modules[run.mode], run, results):
            check.findings.append(_finding(item, str(run), text))
        for text in _compare_runs(item, first or results, results):
            check.findings.append(_finding(item, str(run), text))
        first = first or results
    for text in _against_twin(item, first):
        check.findings.append(_finding(item, "C++ kernels", text))
    for error, limit, text in _against_oracle(item, first):
        check.note(error, limit)
        if error > limit:
            check.findings.append(_finding(item, "float64 reference", text))
    check.launches += 1
    return first


def _finding(item: Item, run: str, text: str) -> Finding:
    kernels = item.kernels()
    nodes = tuple(name for kernel in kernels for name in kernel.nodes)
    places = tuple(dict.fromkeys(span for kernel in kernels for span in kernel.spans))
    return Finding(item.entry.name, item.launch.function, run, text, nodes, places)


def _against_oracle(item: Item, results: Mapping[str, Bytes]) -> Iterator[tuple[float, float, str]]:
    """(error, bound, text) of every result that the launch leaves behind."""
    entry, rows, kernels = item.entry, item.rows, item.kernels()
    made = {operand.value for kernel in kernels for operand in kernel.writes}
    given = {
        o.value: decode(item.values[o.value], item.before[entry.storage[o.value]], rows)
        for kernel in kernels
        for o in kernel.reads
        if o.value not in made
    }
    oracle = Oracle(entry.graph, rows, given)
    last = {entry.storage[o.value]: o.value for kernel in kernels for o in kernel.writes}
    for kernel in kernels:
        for operand in kernel.writes:
            home = entry.storage[operand.value]
            if last[home] != operand.value:
                continue  # a later kernel of the launch wrote over it
            value = item.values[operand.value]
            got = decode(value, results[home], rows)
            error, limit = compare(value.name, got, oracle, kernel, value.dtype)
            text = f"{value.name} is off by {error:.2e} of its largest element, bound {limit:.2e}"
            yield error, limit, text
            oracle.learn(value, got)


def _against_twin(item: Item, results: Mapping[str, Bytes]) -> Iterator[str]:
    """Results have the bits that the C++ kernels give; any NaN is as good as another."""
    last = {item.entry.storage[name]: name for name in _written_values(item)}
    for home, name in last.items():
        if home not in item.twin:
            continue
        value = item.values[name]
        got = decode(value, results[home], item.rows)
        wanted = decode(value, item.twin[home], item.rows)
        off = int(np.count_nonzero(~_same_bits(got, wanted)))
        if off:
            yield f"{name} has other bits than the C++ kernel's in {off} of {got.size} elements"


def _same_bits(got: Array, wanted: Array) -> NDArray[np.bool_]:
    """Per element; +0 and -0 differ."""
    width = got.dtype.itemsize
    bits = [np.ascontiguousarray(array).reshape(-1).view(f"u{width}") for array in (got, wanted)]
    same: NDArray[np.bool_] = (bits[0] == bits[1]).reshape(got.shape)
    floats = got.dtype.kind not in "biu"
    return same | (np.isnan(got) & np.isnan(wanted)) if floats else same


def _run_checked(
    item: Item, module: SimModule, run: Run, results: dict[str, Bytes]
) -> Iterator[str]:
    """What goes wrong when the launch runs in guarded buffers; fills `results` by storage."""
    entry, launch = item.entry, item.launch
    made = {entry.storage[name] for name in _written_values(item)}
    fresh = made - _read_first(item)
    buffers = {
        home: _buffer(item, home, home in fresh, home not in made, run.tight)
        for home in item.before
    }
    extras = _Extras(item, buffers)
    arguments = [extras.argument(argument.kind, argument.value) for argument in launch.arguments]
    reports = module.launch(launch.function, launch.grid, launch.threads, 0, arguments, run.options)
    yield from (str(report) for report in reports)
    yield from _check_written(item, buffers, fresh)
    yield from extras.check()
    results.update((home, buffers[home].array.copy()) for home in made)
    extras.free()
    for buffer in buffers.values():
        buffer.free()


def _written_values(item: Item) -> list[str]:
    return [o.value for kernel in item.kernels() for o in kernel.writes]


def _read_first(item: Item) -> set[str]:
    """Storages that hold something when the launch begins."""
    written: set[str] = set()
    found: set[str] = set()
    for kernel in item.kernels():
        found.update(item.entry.storage[o.value] for o in kernel.reads if o.value not in written)
        written.update(o.value for o in kernel.writes)
    return found


def _buffer(item: Item, home: str, fresh: bool, read_only: bool, tight: bool) -> GuardedBuffer:
    """A storage with room for the rows at hand and no more."""
    kept = [item.values[o.value] for o in item.operands() if item.entry.storage[o.value] == home]
    size = max(plain_layout(value).nbytes(value.dtype, item.rows) for value in kept)
    alignment = max(value.dtype.bits // 8 for value in kept) if tight else WIDEST
    if fresh:
        return GuardedBuffer(size, np.uint8, home, alignment=max(alignment, 1))
    return GuardedBuffer.of(item.before[home][:size], home, read_only, max(alignment, 1))


class _Extras:
    """The arguments of a launch that are no tensors: rows, ticket, table."""

    def __init__(self, item: Item, buffers: Mapping[str, GuardedBuffer]):
        self.item, self.buffers = item, buffers
        self.rows = GuardedBuffer.of(np.asarray([item.rows], np.int64), "rows", True)
        self.ticket = GuardedBuffer.of(np.zeros(1, np.uint32), "ticket")
        cells = [
            [*(self._address(name) for name in names), *numbers]
            for names, numbers in item.launch.table
        ]
        flat = np.asarray(cells or [[0]], np.int64).reshape(-1)
        self.table = GuardedBuffer.of(flat, "table", True)

    def _address(self, value: str) -> int:
        return self.buffers[self.item.entry.storage[value]].pointer

    def argument(self, kind: str, value: str) -> GuardedBuffer | np.int32:
        """What the launch gets for an argument of this kind."""
        if kind == "tensor":
            return self.buffers[self.item.entry.storage[value]]
        if kind == "parts":
            return np.int32(len(self.item.launch.table))
        return {"rows": self.rows, "ticket": self.ticket, "table": self.table}[kind]

    def check(self) -> Iterator[str]:
        """The next launch finds the ticket as this one did."""
        left = int(self.ticket.array[0])
        if left:
            yield f"the ticket is {left} after the launch, not 0"

    def free(self) -> None:
        """Give the memory back."""
        for buffer in (self.rows, self.ticket, self.table):
            buffer.free()


def _check_written(
    item: Item, buffers: Mapping[str, GuardedBuffer], fresh: set[str]
) -> Iterator[str]:
    """Every byte of a result is written, and none beyond the rows at hand."""
    for name in _written_values(item):
        value, home = item.values[name], item.entry.storage[name]
        if home not in fresh:
            continue
        size = plain_layout(value).nbytes(value.dtype, item.rows)
        written = buffers[home].written()
        missing = int(np.count_nonzero(~written[:size]))
        if missing:
            first = int(np.flatnonzero(~written[:size])[0])
            yield f"{missing} of {size} bytes of {name} were not written, first byte {first}"
        beyond = int(np.count_nonzero(written[size:]))
        if beyond and shape_at(value.shape, 1) != shape_at(value.shape, 2):
            yield f"{beyond} bytes of {name} beyond row {item.rows} were written"


def _compare_runs(
    item: Item, first: Mapping[str, Bytes], results: Mapping[str, Bytes]
) -> Iterator[str]:
    """Results are the same bytes whatever the mode and the order of threads."""
    for name in _written_values(item):
        value, home = item.values[name], item.entry.storage[name]
        size = plain_layout(value).nbytes(value.dtype, item.rows)
        if not np.array_equal(results[home][:size], first[home][:size]):
            at = int(np.flatnonzero(results[home][:size] != first[home][:size])[0])
            yield f"{name} differs from the first run at byte {at} of {size}"
