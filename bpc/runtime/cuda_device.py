"""The GPU as a device: the planned arena, launches packed once, each entry point one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bpc.codegen.cuda import CudaSource
from bpc.ir import Value
from bpc.plan.program import ALIGNMENT, Program
from bpc.runtime.cuda import Gpu, Graph, Kernel, KernelFacts, Stream
from bpc.runtime.cuda_host import MOST_BOUNCED, Bounce, InputSlots, LateValues, SmallWrites
from bpc.runtime.cuda_layout import inputs_of, move_inputs, plan_side, tensor_bytes
from bpc.runtime.device import PRODUCTS_FILE, Array, Scalars
from bpc.runtime.launching import ROWS_AT, Packed, PackedLaunch, pack_launches
from bpc.runtime.reference import storage_type
from bpc.types import BF16, F16, format_bytes, shape_at


class Products(Protocol):
    """Launches that a library takes over while the batch is full."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes that the library works in."""

    @property
    def text(self) -> str:
        """The file that says which products these are, and how the library computes them."""

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Whether the launch of this number of an entry point is taken over."""

    def issue(self, place: tuple[str, int], offsets: Program, arena: int, stream: Stream) -> None:
        """Put the product on the stream; `offsets` says where its tensors lie in the arena."""

    def close(self) -> None:
        """Let go of the library."""


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How a program is run.

    `slots`: places for a batch; with 2, the next one is copied while the last one is read.
    `graphs`: replay each entry point as a graph; else launch its kernels one by one.
    `ahead`: training issues a step before the values of the last one are read.
    """

    slots: int = 2
    graphs: bool = True
    ahead: bool = True


class CudaDevice:
    """Runs a program in one allocation of exactly the planned size.

    What else it takes on the device (launch blocks, further input slots, a library's workspace)
    and on the host (pinned staging) is listed apart in `facts`.
    """

    name = "cuda"

    def __init__(
        self,
        program: Program,
        source: CudaSource,
        gpu: Gpu,
        compile_options: Sequence[str],
        options: CudaOptions = CudaOptions(),
        products: Products | None = None,
    ):
        """Compile, allocate, zero the arena.

        Raises:
            ToolError: NVRTC refuses the text, or the device has no room.
        """
        self.program = program
        self.rows = program.rows
        self.planned_peak_bytes = program.arena_bytes
        self.arena_bytes = program.arena_bytes
        self.gpu = gpu
        self._options = options
        self._products = products
        names = list(dict.fromkeys(f.function for ls in source.launches.values() for f in ls))
        self._kernels: dict[str, Kernel]
        self.kernel_facts: dict[str, KernelFacts]
        self._kernels, self.kernel_facts = gpu.compile(source.text, compile_options, names)
        self.stream = gpu.make_stream()
        self._arena = gpu.allocate("the planned arena", program.arena_bytes)
        assert self._arena.address % ALIGNMENT == 0, hex(self._arena.address)
        self._place_side(source)
        self._make_host_side()
        self._graphs: dict[tuple[str, int, bool], Graph] = {}
        self._rows = [-1] * options.slots
        self._slot_of = dict.fromkeys(program.entries, 0)
        self._zero()

    def _place_side(self, source: CudaSource) -> None:
        """The memory beside the arena, and the launches of every slot."""
        side = plan_side(self.program, source, self._options.slots)
        self._side = self.gpu.allocate("the memory beside the arena", side.nbytes)
        shift = self._side.address - self._arena.address
        self._programs = tuple(
            move_inputs(self.program, {name: shift + at for name, at in places.items()})
            for places in side.inputs
        )
        self._blocks = tuple(self._side.address + at for at in side.blocks)
        self._packed: tuple[Packed, ...] = tuple(
            pack_launches(moved, source, self._arena.address, block)
            for moved, block in zip(self._programs, self._blocks, strict=True)
        )

    def _make_host_side(self) -> None:
        program, base = self.program, self._arena.address
        names = list(inputs_of(program))
        places = [{n: base + moved.offsets[n] for n in names} for moved in self._programs]
        self._inputs = InputSlots(self.gpu, program, self.stream, places)
        self._small = SmallWrites(self.gpu, self.stream)
        self._late = LateValues(self.gpu, program, base, self.stream)
        largest = max(tensor_bytes(v, program.rows) for v in program.persistent.values())
        self._bounce = Bounce(self.gpu, self.stream, min(max(largest, ALIGNMENT), MOST_BOUNCED))

    def _zero(self) -> None:
        """Start from zeros, launch blocks apart; later copies on other streams find it done."""
        self.gpu.clear(self._arena, self.stream)
        self.gpu.clear(self._side, self.stream)
        for packed, address in zip(self._packed, self._blocks, strict=True):
            self._bounce.write(address, packed.block)

    # -- what people are told ---------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """What runs the program, for people."""
        beside = format_bytes(self._side.nbytes + self._workspace_bytes)
        how = "graphs" if self._options.graphs else "single launches"
        how += ", cuBLASLt" if self._products is not None else ""
        return f"cuda ({self.gpu.name}, {how}, {beside} beside the arena)"

    @property
    def facts(self) -> Mapping[str, Any]:
        """Bytes by owner, and what each kernel takes."""
        held = (self._inputs, self._small, self._late, self._bounce)
        return {
            "device": self.gpu.name,
            "architecture": self.gpu.architecture,
            "arena_bytes": self.arena_bytes,
            "beside_bytes": self._side.nbytes,
            "library_bytes": self._workspace_bytes,
            "pinned_bytes": sum(len(part.pinned.bytes) for part in held),
            "kernels": {
                name: {"registers": f.registers, "spill": f.local_bytes, "shared": f.shared_bytes}
                for name, f in self.kernel_facts.items()
            },
        }

    @property
    def works_ahead(self) -> bool:
        """Unless it was asked not to."""
        return self._options.ahead

    @property
    def companions(self) -> Mapping[str, str]:
        """Which products the library computes, and how: its sums have an order of their own."""
        return {PRODUCTS_FILE: self._products.text} if self._products else {}

    @property
    def _workspace_bytes(self) -> int:
        return self._products.workspace_bytes if self._products else 0

    # -- inputs -----------------------------------------------------------------------------------

    def write_input(self, name: str, array: Array) -> None:
        """Fill the first rows of the next input slot."""
        view = self._inputs.stage(name)
        assert array.shape[1:] == view.shape[1:], f"{name}: {array.shape} into {view.shape}"
        np.copyto(view[: len(array)], array, casting="unsafe")
        self._inputs.send(name, len(array))

    def write_rows(self, name: str, array: Array, rows: NDArray[np.integer[Any]]) -> None:
        """Gather the rows with these numbers, all of which exist, straight into pinned memory."""
        view = self._inputs.stage(name)
        assert array.shape[1:] == view.shape[1:], f"{name}: {array.shape} into {view.shape}"
        if array.dtype == view.dtype:  # with "raise", NumPy gathers into a copy of its own first
            array.take(rows, 0, view[: len(rows)], "clip")
        else:
            np.copyto(view[: len(rows)], array[rows], casting="unsafe")
        self._inputs.send(name, len(rows))

    # -- states -----------------------------------------------------------------------------------

    def read_state(self, name: str) -> Array:
        """A copy of a state, 16-bit floats as float32."""
        return self._read(self.program.persistent[name], self.program.offsets[name], self.rows)

    def write_state(self, name: str, array: Array) -> None:
        """Replace a state by an array of its shape."""
        value = self.program.persistent[name]
        shape = shape_at(value.shape, self.rows)
        assert array.shape == shape, f"{name}: {array.shape} into {shape}"
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array.astype(storage_type(value.dtype))).reshape(-1)
        self._late.forget()
        self._bounce.write(self._address_of(name), stored.view(np.uint8))

    def read_scalar(self, name: str) -> float | int:
        """A state without axes; metrics and control values come together, in one copy."""
        if name in self._late:
            return self._late.take().read_scalar(name)
        value: float | int = self.read_state(name).item()
        return value

    def snapshot(self) -> Scalars:
        """Metrics and control values after all that the compute stream holds, without waiting."""
        return self._late.take()

    def write_scalar(self, name: str, value: float | int) -> None:
        """Replace a state without axes, without waiting."""
        kind = storage_type(self.program.persistent[name].dtype)
        self._late.forget()
        self._small.send(self._address_of(name), np.asarray(value).astype(kind))

    def _address_of(self, name: str) -> int:
        return self._arena.address + self.program.offsets[name]

    def _read(self, value: Value, offset: int, rows: int) -> Array:
        content = self._bounce.read(self._arena.address + offset, tensor_bytes(value, rows))
        array = content.view(storage_type(value.dtype)).reshape(shape_at(value.shape, rows))
        return array.astype(np.float32) if value.dtype in (F16, BF16) else array

    # -- running ----------------------------------------------------------------------------------

    def run(self, entry: str, rows: int) -> None:
        """Put an entry point on the stream; the host goes on at once."""
        slot = self._prepare(entry, rows)
        full = self._products is not None and rows == self.rows
        if self._options.graphs:
            self.gpu.replay(self._graph(entry, slot, full), self.stream)
        else:
            self._issue(entry, slot, full)
        self._conclude(entry, slot)

    def run_one_by_one(self, entry: str, rows: int) -> Iterator[int]:
        """Run an entry point launch by launch, for debugging.

        Yields:
            The index of each launch in the launch list, once it is done.
        """
        slot = self._prepare(entry, rows)
        for at, launch in enumerate(self._packed[slot].launches[entry]):
            self._launch(launch)
            self.gpu.synchronize(self.stream, f"running {launch.function} of {entry}")
            self._late.forget()
            yield at
        self._conclude(entry, slot)

    def _prepare(self, entry: str, rows: int) -> int:
        """The slot that the entry point reads, with its batch and row count on their way."""
        assert 0 < rows <= self.rows, f"{rows} rows, planned for {self.rows}"
        slot = self._inputs.settle() if self._reads_inputs(entry) else 0
        if self._rows[slot] != rows:
            self._small.send(self._blocks[slot] + ROWS_AT, np.asarray(rows, np.int64))
            self._rows[slot] = rows
        return slot

    def _conclude(self, entry: str, slot: int) -> None:
        if self._reads_inputs(entry):
            self._inputs.mark_used()
        self._slot_of[entry] = slot
        self._late.forget()

    def _reads_inputs(self, entry: str) -> bool:
        return bool(self.program.entries[entry].graph.inputs)

    def _graph(self, entry: str, slot: int, full: bool) -> Graph:
        """The entry point as a graph, captured the first time that it is asked for."""
        key = (entry, slot, full)
        if key not in self._graphs:
            self._graphs[key] = self.gpu.capture(
                lambda: self._issue(entry, slot, full), self.stream
            )
        return self._graphs[key]

    def _issue(self, entry: str, slot: int, full: bool) -> None:
        for at, launch in enumerate(self._packed[slot].launches[entry]):
            if full and self._products is not None and (entry, at) in self._products:
                base, moved = self._arena.address, self._programs[slot]
                self._products.issue((entry, at), moved, base, self.stream)
            else:
                self._launch(launch)

    def _launch(self, launch: PackedLaunch) -> None:
        kernel = self._kernels[launch.function]
        self.gpu.launch(
            kernel, launch.grid, launch.threads, launch.arguments, launch.is_address, self.stream
        )

    @property
    def arena_address(self) -> int:
        """Where the arena begins on the device."""
        return self._arena.address

    def time_launch(self, entry: str, at: int, repeats: int) -> float:
        """Seconds of one launch on whatever the arena holds; its results are overwritten."""
        slot = self._prepare(entry, self.rows)
        launch = self._packed[slot].launches[entry][at]
        self._launch(launch)
        return self.gpu.time(lambda: self._launch(launch), repeats, self.stream)

    def read_output(self, entry: str, role: str, rows: int) -> Array:
        """A copy of a result of the last call."""
        placed = self._programs[self._slot_of[entry]].entries[entry]
        _, offset = placed.output_of(role)
        return self._read(placed.graph.values()[placed.graph.output(role)], offset, rows)

    def close(self) -> None:
        """Wait for the device, then free graphs, kernels and memory."""
        if not self._arena.address:
            return
        self.gpu.synchronize(self.stream, "finishing")
        self._graphs.clear()
        self._kernels.clear()
        if self._products is not None:
            self._products.close()
        for part in (self._inputs, self._small, self._late, self._bounce):
            part.close()
        self._side.free()
        self._arena.free()
