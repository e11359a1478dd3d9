"""The host's end of a GPU's memory: batches, small values, and whole tensors through pinned memory.

Who may touch what, and when:

- A staging buffer is written by the host only after the last batch was copied out of it.
- A slot on the device is overwritten only after the last launch that reads it.
- A launch that reads a slot waits for the copies into it, without making the host wait.
- A mirror of values is copied to again only after two more copies were asked for.
- Everything else happens in the order of one stream, the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bpc.ir import Value
from bpc.plan.program import Program
from bpc.runtime.cuda import Event, Gpu, Pinned, Stream
from bpc.runtime.cuda_layout import inputs_of, tensor_bytes
from bpc.runtime.device import Array
from bpc.runtime.reference import storage_type
from bpc.types import shape_at

CELLS, CELL_BYTES = 128, 16
MIRRORS = 2
MOST_BOUNCED = 4 << 20
_ALIGNMENT = 64
_LATE_KINDS = ("control", "metric")


# -- batches --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Slot:
    """A place for a batch: on the device, and the pinned buffers that are copied there."""

    addresses: Mapping[str, int]
    staged: Mapping[str, int]
    views: Mapping[str, Array]
    filled: Event
    used: Event
    was_filled: bool = False
    was_used: bool = False


class InputSlots:
    """Fills slots in turn from a stream of its own, while launches still read the last one."""

    def __init__(
        self, gpu: Gpu, program: Program, compute: Stream, places: Sequence[Mapping[str, int]]
    ):
        """`places`: per slot, the address of each input on the device."""
        self._gpu = gpu
        self._compute = compute
        self._copies = gpu.make_stream()
        self._values = inputs_of(program)
        self._planned = {n: tensor_bytes(v, program.rows) for n, v in self._values.items()}
        starts, size = _stack(self._planned.values())
        self.pinned = gpu.allocate_pinned(max(_ALIGNMENT, size * len(places)))
        self._slots = [
            self._make_slot(place, dict(zip(self._values, starts, strict=True)), size * at, program)
            for at, place in enumerate(places)
        ]
        self.current = 0
        self._filling: int | None = None
        self._written: dict[str, None] = {}

    def _make_slot(
        self, place: Mapping[str, int], starts: Mapping[str, int], base: int, program: Program
    ) -> _Slot:
        views = {
            name: _view(self.pinned, base + starts[name], value, program.rows)
            for name, value in self._values.items()
        }
        staged = {name: self.pinned.address + base + start for name, start in starts.items()}
        return _Slot(place, staged, views, self._gpu.make_event(), self._gpu.make_event())

    def stage(self, name: str) -> Array:
        """Where the host puts the next batch of an input; `send` must follow."""
        if self._filling is None:
            self._begin()
        assert self._filling is not None
        # A second time before a run needs no wait: the second copy brings all that changed.
        return self._slots[self._filling].views[name]

    def send(self, name: str, rows: int) -> None:
        """Copy the first rows of what was staged."""
        assert self._filling is not None, f"{name} was not staged"
        slot = self._slots[self._filling]
        view = slot.views[name]
        nbytes = rows * (view.nbytes // max(1, len(view)))
        if nbytes:
            self._gpu.copy_in(slot.addresses[name], slot.staged[name], nbytes, self._copies)
        self._written[name] = None

    def _begin(self) -> None:
        """Turn to the next slot; its staging buffers and its memory may still be in use."""
        at = (self.current + 1) % len(self._slots)
        slot = self._slots[at]
        if slot.was_filled:
            self._gpu.synchronize(slot.filled, "waiting for a batch to be copied")
        if slot.was_used:
            self._gpu.wait(self._copies, slot.used)
        self._filling, self._written = at, {}

    def settle(self) -> int:
        """The slot that the next launch reads; the compute stream waits for what fills it."""
        if self._filling is not None:
            slot, last = self._slots[self._filling], self._slots[self.current]
            if slot is not last:
                self._carry(last, slot)
            self._gpu.record(slot.filled, self._copies)
            self._gpu.wait(self._compute, slot.filled)
            slot.was_filled = True
            self.current, self._filling = self._filling, None
        return self.current

    def _carry(self, last: _Slot, slot: _Slot) -> None:
        """Inputs that nobody wrote this time keep their last batch."""
        for name, nbytes in self._planned.items():
            if name not in self._written and nbytes:
                source, target = last.addresses[name], slot.addresses[name]
                self._gpu.copy_within(target, source, nbytes, self._copies)

    def mark_used(self) -> None:
        """A launch that reads the current slot is on the compute stream."""
        slot = self._slots[self.current]
        self._gpu.record(slot.used, self._compute)
        slot.was_used = True

    def close(self) -> None:
        """Wait for the copies and let go of the buffers."""
        self._gpu.synchronize(self._copies, "finishing copies")
        self._slots = []
        self.pinned.free()


# -- small values ---------------------------------------------------------------------------------


class SmallWrites:
    """Values of at most CELL_BYTES bytes, written in the order of the compute stream.

    Each goes through a cell of pinned memory; half of the cells are used again only after an
    event behind the last copy out of that half.
    """

    def __init__(self, gpu: Gpu, stream: Stream):
        self._gpu = gpu
        self._stream = stream
        self.pinned = gpu.allocate_pinned(CELLS * CELL_BYTES)
        self._events = (gpu.make_event(), gpu.make_event())
        self._was_used = [False, False]
        self._next = 0

    def send(self, address: int, value: Array) -> None:
        """Copy a value without axes to an address on the device."""
        half, place = divmod(self._next, CELLS // 2)
        if place == 0 and self._was_used[half]:
            self._gpu.synchronize(self._events[half], "waiting for control values to be copied")
        start, size = self._next * CELL_BYTES, value.nbytes
        assert size <= CELL_BYTES, f"{size} bytes do not fit a cell"
        self.pinned.bytes[start : start + size] = value.reshape(1).view(np.uint8)
        self._gpu.copy_in(address, self.pinned.address + start, size, self._stream)
        if place == CELLS // 2 - 1:
            self._gpu.record(self._events[half], self._stream)
            self._was_used[half] = True
        self._next = (self._next + 1) % CELLS

    def close(self) -> None:
        """Let go of the cells; the stream must be empty."""
        self.pinned.free()


@dataclass(slots=True)
class _Mirror:
    """Where the host finds values once `copied` has come; `number` is that of the copy."""

    address: int
    views: Mapping[str, Array]
    copied: Event
    number: int = 0
    came: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """Values as they were when the stream came to their copy; the first read waits for that."""

    gpu: Gpu
    mirror: _Mirror
    number: int

    def read_scalar(self, name: str) -> float | int:
        """A metric or a control value."""
        assert self.mirror.number == self.number, f"{name} was asked for after two further copies"
        if not self.mirror.came:
            self.gpu.synchronize(self.mirror.copied, "waiting for metrics")
            self.mirror.came = True
        value: float | int = self.mirror.views[name].item()
        return value


class LateValues:
    """Metrics and control values: one copy brings all of them, into each mirror in turn.

    The host waits when it reads, not when it asks for the copy, and then for the copy alone.
    """

    def __init__(self, gpu: Gpu, program: Program, arena: int, stream: Stream):
        self._gpu = gpu
        self._stream = stream
        self._values = {
            name: value
            for name, value in program.persistent.items()
            if program.kinds[name] in _LATE_KINDS and not value.shape
        }
        ends = [program.offsets[n] + tensor_bytes(v, 1) for n, v in self._values.items()]
        self._first = min((program.offsets[name] for name in self._values), default=0)
        self._size = max(ends, default=0) - self._first
        self._address = arena + self._first
        starts, size = _stack([self._size] * MIRRORS)
        self.pinned = gpu.allocate_pinned(max(_ALIGNMENT, size))
        self._mirrors = [self._make_mirror(program, start) for start in starts]
        self._count = 0
        self._fresh: Copied | None = None

    def _make_mirror(self, program: Program, start: int) -> _Mirror:
        views = {
            name: _view(self.pinned, start + program.offsets[name] - self._first, value, 1)
            for name, value in self._values.items()
        }
        return _Mirror(self.pinned.address + start, views, self._gpu.make_event())

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def forget(self) -> None:
        """Something on the stream may have changed them."""
        self._fresh = None

    def take(self) -> Copied:
        """All values as they are after everything that the stream holds."""
        if self._fresh is None:
            self._count += 1
            mirror = self._mirrors[self._count % MIRRORS]
            mirror.number, mirror.came = self._count, False
            self._gpu.copy_out(mirror.address, self._address, self._size, self._stream)
            self._gpu.record(mirror.copied, self._stream)
            self._fresh = Copied(self._gpu, mirror, self._count)
        return self._fresh

    def close(self) -> None:
        """Let go of the mirrors; the stream must be empty."""
        self._mirrors, self._fresh = [], None
        self.pinned.free()


# -- whole tensors --------------------------------------------------------------------------------


@dataclass(slots=True)
class Bounce:
    """Tensors of any size through one pinned buffer, piece by piece; the host waits for each."""

    gpu: Gpu
    stream: Stream
    nbytes: int
    pinned: Pinned = field(init=False)

    def __post_init__(self) -> None:
        self.pinned = self.gpu.allocate_pinned(self.nbytes)

    def write(self, address: int, content: NDArray[np.uint8]) -> None:
        """Copy bytes to the device."""
        for start in range(0, len(content), self.nbytes):
            piece = content[start : start + self.nbytes]
            self.pinned.bytes[: len(piece)] = piece
            self.gpu.copy_in(address + start, self.pinned.address, len(piece), self.stream)
            self.gpu.synchronize(self.stream, "writing a tensor")

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes from the device, after everything that the stream holds."""
        content = np.empty(nbytes, np.uint8)
        for start in range(0, nbytes, self.nbytes):
            size = min(self.nbytes, nbytes - start)
            self.gpu.copy_out(self.pinned.address, address + start, size, self.stream)
            self.gpu.synchronize(self.stream, "waiting for a result")
            content[start : start + size] = self.pinned.bytes[:size]
        return content

    def close(self) -> None:
        """Let go of the buffer; the stream must be empty."""
        self.pinned.free()


def _view(pinned: Pinned, start: int, value: Value, rows: int) -> Array:
    """A tensor in pinned memory as an array."""
    size = tensor_bytes(value, rows)
    kind = storage_type(value.dtype)
    return pinned.bytes[start : start + size].view(kind).reshape(shape_at(value.shape, rows))


def _stack(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Offsets of tensors one behind the other, and where the last one ends."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
    return starts, end
