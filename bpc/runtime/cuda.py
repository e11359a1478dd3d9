"""Every call into CuPy, and nothing else: memory, copies, streams, compilation, launches, graphs.

CuPy is imported when a device is asked for. Written against CuPy 14 (checked call by call with
14.2.0; docs/cuda.md lists what only a device can confirm). All streams are non-blocking, so that
nothing here waits for the legacy default stream or is waited for by it; all copies name a stream.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.errors import ToolError
from bpc.runtime.cuda_errors import (
    call_failed,
    no_compiler,
    no_cupy,
    no_gpu,
    out_of_memory,
    text_refused,
)

Stream = Any
Event = Any
Graph = Any
Kernel = Any

_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_ADDRESS, _INTEGER = np.int64, np.int32


@dataclass(slots=True)
class Memory:
    """An allocation on the device; dropping `owner` frees it."""

    address: int
    nbytes: int
    owner: Any

    def free(self) -> None:
        """Give the memory back; nothing may use it any more."""
        self.address, self.owner = 0, None


@dataclass(slots=True)
class Pinned:
    """Host memory that the device copies from and to; `bytes` looks into it."""

    address: int
    bytes: NDArray[np.uint8]
    owner: Any

    def free(self) -> None:
        """Give the memory back; no copy from or to it may be in flight."""
        self.bytes = np.zeros(0, np.uint8)
        self.address, self.owner = 0, None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a kernel takes on this device: registers, bytes spilled, bytes of shared memory."""

    registers: int
    local_bytes: int
    shared_bytes: int


def connect() -> Gpu:
    """The current CUDA device.

    Raises:
        ToolError: no CuPy, or no device that it can use.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise no_cupy(str(error).strip().splitlines()[0]) from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
        if count:
            return Gpu(cupy)
    except (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise no_gpu(str(error)) from error
    raise no_gpu("the driver lists no device")


class Gpu:
    """One device through CuPy. Errors of CUDA come out as ToolError and say what was done."""

    def __init__(self, cupy: Any):
        self._cupy = cupy
        self._cuda = cupy.cuda
        self._runtime = cupy.cuda.runtime
        self._errors: tuple[type[Exception], ...] = (
            self._runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
        )
        number = self._runtime.getDevice()
        properties = self._runtime.getDeviceProperties(number)
        self.name = properties["name"].decode()
        self.architecture = f"sm_{properties['major']}{properties['minor']}"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turns an error of CUDA into a message that says what was being done."""
        try:
            yield
        except self._errors as error:
            raise call_failed(what, str(error)) from error

    # -- memory -----------------------------------------------------------------------------------

    def free_bytes(self) -> tuple[int, int]:
        """(free, all) bytes of the device."""
        with self._explained("asking for free memory"):
            free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    def allocate(self, what: str, nbytes: int) -> Memory:
        """Exactly so many bytes, past CuPy's pool.

        Raises:
            ToolError: the device has no room; says how much was planned and how much is free.
        """
        try:
            owner = self._cuda.Memory(nbytes)
        except self._errors as error:
            if getattr(error, "status", None) != _NO_MEMORY:
                raise call_failed(f"allocating {what}", str(error)) from error
            raise out_of_memory(what, nbytes, *self.free_bytes()) from error
        return Memory(int(owner.ptr), nbytes, owner)

    def allocate_pinned(self, nbytes: int) -> Pinned:
        """Host memory that copies need not stage again, past CuPy's pool."""
        with self._explained(f"pinning {nbytes} bytes of host memory"):
            owner = self._cuda.PinnedMemory(nbytes)
        pointer = self._cuda.PinnedMemoryPointer(owner, 0)
        return Pinned(int(owner.ptr), np.frombuffer(pointer, np.uint8, nbytes), owner)

    # -- streams and copies -----------------------------------------------------------------------

    def make_stream(self) -> Stream:
        """A stream that the legacy default stream does not wait for."""
        with self._explained("making a stream"):
            return self._cuda.Stream(non_blocking=True)

    def make_event(self) -> Event:
        """An event without a time."""
        with self._explained("making an event"):
            return self._cuda.Event(disable_timing=True)

    def record(self, event: Event, stream: Stream) -> None:
        """The event comes when all that the stream holds now is done."""
        with self._explained("recording an event"):
            event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """What the stream gets from now on runs after the event."""
        with self._explained("waiting for an event"):
            stream.wait_event(event)

    def synchronize(self, waited: Stream | Event, what: str) -> None:
        """Block until a stream is empty or an event has come."""
        with self._explained(what):
            waited.synchronize()

    def copy_in(self, device: int, host: int, nbytes: int, stream: Stream) -> None:
        """From pinned memory to the device."""
        self._copy(device, host, nbytes, self._runtime.memcpyHostToDevice, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: Stream) -> None:
        """From the device to pinned memory."""
        self._copy(host, device, nbytes, self._runtime.memcpyDeviceToHost, stream)

    def copy_within(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """From one place on the device to another."""
        self._copy(target, source, nbytes, self._runtime.memcpyDeviceToDevice, stream)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: Stream) -> None:
        with self._explained("copying"):
            self._runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)

    def clear(self, memory: Memory, stream: Stream) -> None:
        """Zero all bytes."""
        with self._explained("clearing memory"):
            self._runtime.memsetAsync(memory.address, 0, memory.nbytes, stream.ptr)

    # -- kernels ----------------------------------------------------------------------------------

    def compile(
        self, text: str, options: Sequence[str], names: Sequence[str]
    ) -> tuple[dict[str, Kernel], dict[str, KernelFacts]]:
        """The kernels of these names, loaded, from CuPy's cache on disk or compiled now.

        Raises:
            ToolError: NVRTC is missing, or it refuses the text.
        """
        try:
            module = self._cupy.RawModule(code=text, options=tuple(options))
            kernels = {name: module.get_function(name) for name in names}
            # Reading an attribute loads the kernel: during a capture it would be too late.
            facts = {name: _facts(kernel) for name, kernel in kernels.items()}
        except self._cuda.compiler.CompileException as error:
            raise text_refused(error.get_message()) from error
        except self._errors as error:
            raise call_failed("loading kernels", str(error)) from error
        except (RuntimeError, ImportError) as error:  # no NVRTC, no CUDA headers
            raise no_compiler(str(error).strip().splitlines()[0]) from error
        return kernels, facts

    def launch(
        self,
        kernel: Kernel,
        grid: int,
        threads: int,
        arguments: Sequence[int],
        is_address: Sequence[bool],
        stream: Stream,
    ) -> None:
        """Launch one kernel: addresses are passed as 64-bit integers, the others as 32-bit ones."""
        passed = tuple(
            (_ADDRESS if wide else _INTEGER)(value)
            for value, wide in zip(arguments, is_address, strict=True)
        )
        with self._explained("launching a kernel"), stream:
            kernel((grid,), (threads,), passed)

    def capture(self, issue: Callable[[], None], stream: Stream) -> Graph:
        """What `issue` puts on the stream, as a graph that is ready to be launched."""
        with self._explained("capturing a graph"):
            stream.begin_capture()
            whole = False
            try:
                issue()
                whole = True
            finally:
                if not whole:  # leave no stream in capture behind the error
                    with suppress(ToolError, *self._errors):
                        stream.end_capture()
            return stream.end_capture()

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Launch a captured graph."""
        with self._explained("launching a graph"):
            graph.launch(stream)

    def time(self, issue: Callable[[], None], repeats: int, stream: Stream) -> float:
        """Seconds of one `issue` on the stream, as the mean over `repeats`."""
        with self._explained("timing"):
            start, stop = self._cuda.Event(), self._cuda.Event()
            start.record(stream)
            for _ in range(repeats):
                issue()
            stop.record(stream)
            stop.synchronize()
            milliseconds: float = self._cuda.get_elapsed_time(start, stop)
        return milliseconds / 1000 / repeats


def _facts(kernel: Kernel) -> KernelFacts:
    return KernelFacts(
        int(kernel.num_regs), int(kernel.local_size_bytes), int(kernel.shared_size_bytes)
    )
