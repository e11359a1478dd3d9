"""A stand-in for the part of CuPy that bpc calls: strict, recording, and as late as it may be.

Device memory is memory of this process. What is put on a stream runs only when somebody waits for
it, and then no earlier than it must: a staging buffer that is overwritten before its copy, a
missing event, or memory that is freed under a copy shows in the numbers or in `World.faults`.
Names that bpc has no business with do not exist, and arguments of another type are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

TO_DEVICE, TO_HOST, WITHIN = 1, 2, 3
NAMES = {2: "cudaErrorMemoryAllocation: out of memory", 100: "cudaErrorNoDevice: no device"}
NAMES |= {35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient"}
NAMES |= {700: "cudaErrorIllegalAddress: an illegal memory access was encountered"}


class FakeRuntimeError(RuntimeError):
    def __init__(self, status: int):
        self.status = status
        super().__init__(NAMES[status])


class FakeDriverError(RuntimeError):
    def __init__(self, status: int):
        self.status = status
        super().__init__(f"CUDA_ERROR_{status}")


class FakeCompileError(Exception):
    def __init__(self, msg: str, source: str, name: str, options: Any, backend: str = "nvrtc"):
        self._msg = msg
        super().__init__()

    def get_message(self) -> str:
        return self._msg


@dataclass
class Op:
    """Something on a stream: `touches` are (address, bytes) that it needs to be alive."""

    name: str
    run: Callable[[], None]
    touches: tuple[tuple[int, int], ...] = ()
    after: tuple[Op, ...] = ()
    done: bool = False


@dataclass
class World:
    """What exists and what happened. `log` has every call in order."""

    log: list[tuple[Any, ...]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    device: dict[int, int] = field(default_factory=dict)
    pinned: dict[int, int] = field(default_factory=dict)
    streams: dict[int, FakeStream] = field(default_factory=dict)
    current: list[FakeStream] = field(default_factory=list)
    devices: int = 1
    total: int = 1 << 30
    count_error: int | None = None
    compile_log: str | None = None
    nvrtc_missing: str | None = None
    kernel_error: int | None = None
    capture_error: int | None = None
    execute: Callable[[FakeModule, str, int, int, tuple[Any, ...]], None] | None = None

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.log if entry[0] in names]

    def holds(self, blocks: dict[int, int], address: int, nbytes: int) -> bool:
        return any(a <= address and address + nbytes <= a + size for a, size in blocks.items())

    def release(self, kind: str, address: int, nbytes: int) -> None:
        """Memory goes back; nothing that is still on a stream may need it."""
        for stream in self.streams.values():
            for op in stream.queue:
                for at, size in op.touches:
                    if at < address + nbytes and address < at + size:
                        self.faults.append(f"{kind} memory freed under {op.name}")
        self.log.append(("free", kind, address))

    def run(self, op: Op, stream: FakeStream) -> None:
        """Run what stands before an operation on its stream, and what it waits for, then it."""
        while not op.done:
            first = stream.queue.pop(0)
            for other in first.after:
                if not other.done:
                    owner = next(s for s in self.streams.values() if other in s.queue)
                    self.run(other, owner)
            first.run()
            first.done = True


WORLD = World()


def _int(value: Any, what: str) -> int:
    assert type(value) is int, f"{what} is {type(value)}, not int"
    return value


class FakeMemory:
    __slots__ = ("_bytes", "ptr", "size")

    def __init__(self, size: int):
        WORLD.log.append(("malloc", _int(size, "size")))
        self.ptr = 0
        if sum(WORLD.device.values()) + size > WORLD.total:
            raise FakeRuntimeError(2)
        assert size > 0
        self._bytes = np.full(size + 256, 0xFF, np.uint8)  # not zero: the arena must be cleared
        self.ptr = self._bytes.ctypes.data + -self._bytes.ctypes.data % 256
        self.size = size
        WORLD.device[self.ptr] = size

    def __del__(self) -> None:
        if self.ptr:
            WORLD.release("device", self.ptr, WORLD.device.pop(self.ptr, 0))


class FakePinned:
    __slots__ = ("_bytes", "ptr", "size")

    def __init__(self, size: int, flags: int = 0):
        WORLD.log.append(("hostAlloc", _int(size, "size")))
        self._bytes = np.zeros(size + 64, np.uint8)
        self.ptr = self._bytes.ctypes.data + -self._bytes.ctypes.data % 64
        self.size = size
        WORLD.pinned[self.ptr] = size

    def __del__(self) -> None:
        WORLD.release("pinned", self.ptr, WORLD.pinned.pop(self.ptr, 0))


def FakePinnedPointer(mem: FakePinned, offset: int) -> memoryview:
    """The real one is a buffer of the memory's size from the offset on."""
    assert isinstance(mem, FakePinned) and _int(offset, "offset") == 0
    start = mem.ptr - mem._bytes.ctypes.data
    return memoryview(mem._bytes[start : start + mem.size])


class FakeEvent:
    __slots__ = ("last", "ptr", "stream")

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ):
        self.last: Op | None = None
        self.stream: FakeStream | None = None
        self.ptr = id(self)

    def record(self, stream: FakeStream | None = None) -> None:
        assert isinstance(stream, FakeStream), "name the stream"
        op = Op("event", lambda: None)
        self.last, self.stream = op, stream
        stream.put(op)
        WORLD.log.append(("record", self.ptr, stream.ptr))

    def synchronize(self) -> None:
        assert self.last and self.stream, "the event was never recorded"
        WORLD.log.append(("wait for event", self.ptr))
        _refuse_in_capture()
        if not self.last.done:
            WORLD.run(self.last, self.stream)


class FakeStream:
    __slots__ = ("captured", "ptr", "queue")

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ):
        assert non_blocking and not null and not ptds, "streams must not meet the legacy one"
        self.queue: list[Op] = []
        self.captured: list[Op] | None = None
        self.ptr = 0x1000 + 16 * len(WORLD.streams)
        WORLD.streams[self.ptr] = self

    def put(self, op: Op) -> None:
        (self.queue if self.captured is None else self.captured).append(op)

    def __enter__(self) -> FakeStream:
        WORLD.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        WORLD.current.pop()

    def wait_event(self, event: FakeEvent) -> None:
        assert isinstance(event, FakeEvent) and event.last, "an event that was never recorded"
        self.put(Op("wait", lambda: None, after=(event.last,)))
        WORLD.log.append(("wait", self.ptr, event.ptr))

    def synchronize(self) -> None:
        WORLD.log.append(("synchronize", self.ptr))
        _refuse_in_capture()
        while self.queue:
            WORLD.run(self.queue[-1], self)

    def begin_capture(self, mode: int | None = None) -> None:
        assert self.captured is None
        WORLD.log.append(("begin_capture", self.ptr))
        self.captured = []

    def end_capture(self) -> FakeGraph:
        assert self.captured is not None, "no capture to end"
        ops, self.captured = self.captured, None
        WORLD.log.append(("end_capture", self.ptr))
        if WORLD.capture_error:
            raise FakeRuntimeError(WORLD.capture_error)
        return FakeGraph(ops)


def _refuse_in_capture() -> None:
    capturing = any(stream.captured is not None for stream in WORLD.streams.values())
    assert not capturing, "the host waits during a capture"


class FakeGraph:
    __slots__ = ("ops",)

    def __init__(self, ops: list[Op]):
        assert all(op.name.startswith("kernel") for op in ops), [op.name for op in ops]
        self.ops = ops

    def launch(self, stream: FakeStream | None = None) -> None:
        assert isinstance(stream, FakeStream), "name the stream"
        WORLD.log.append(("graph", stream.ptr, len(self.ops)))
        for op in self.ops:
            stream.put(Op(op.name, op.run, op.touches))


class FakeKernel:
    __slots__ = ("_module", "_name")

    def __init__(self, module: FakeModule, name: str):
        self._module = module
        self._name = name

    def _load(self) -> int:
        if WORLD.nvrtc_missing:
            raise RuntimeError(WORLD.nvrtc_missing)
        if WORLD.compile_log:
            raise FakeCompileError(WORLD.compile_log, self._module.code, "kern.cu", ())
        if f"void {self._name}(" not in self._module.code:
            raise FakeDriverError(500)
        WORLD.log.append(("load", self._name))
        return 32

    num_regs = property(_load)
    local_size_bytes = property(lambda self: 0)
    shared_size_bytes = property(lambda self: 1024)

    def __call__(self, grid: Any, block: Any, args: Any, **kwargs: Any) -> None:
        assert not kwargs, kwargs
        assert ("load", self._name) in WORLD.log, f"{self._name} would be loaded at its launch"
        assert type(grid) is tuple and type(block) is tuple and type(args) is tuple
        assert all(type(value) is int for value in (*grid, *block)), (grid, block)
        assert all(type(value) in (np.int64, np.int32) for value in args), args
        for value in args:
            if type(value) is np.int64:
                assert WORLD.holds(WORLD.device, int(value), 1), f"{self._name}: {value:#x}"
        if WORLD.kernel_error:
            raise FakeDriverError(WORLD.kernel_error)
        stream = WORLD.current[-1]  # the current stream, which the caller must have chosen
        WORLD.log.append(("kernel", self._name, grid, block, args, stream.ptr))
        touched = tuple((int(value), 1) for value in args if type(value) is np.int64)

        def run() -> None:
            if WORLD.execute:
                WORLD.execute(self._module, self._name, grid[0], block[0], args)

        stream.put(Op(f"kernel {self._name}", run, touched))


class FakeModule:
    __slots__ = ("code", "options")

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Any = None,
        jitify: bool | None = None,
    ):
        assert type(code) is str and type(options) is tuple
        assert all(type(option) is str for option in options)
        WORLD.log.append(("module", options))
        self.code, self.options = code, options

    def get_function(self, name: str) -> FakeKernel:
        return FakeKernel(self, name)


def _count() -> int:
    if WORLD.count_error:
        raise FakeRuntimeError(WORLD.count_error)
    return WORLD.devices


def _copy(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    for value, what in ((dst, "dst"), (src, "src"), (size, "size"), (kind, "kind")):
        _int(value, what)
    ends = {TO_DEVICE: (WORLD.device, WORLD.pinned), TO_HOST: (WORLD.pinned, WORLD.device)}
    ends[WITHIN] = (WORLD.device, WORLD.device)
    to, from_ = ends[kind]
    assert WORLD.holds(to, dst, size), f"{size} bytes to {dst:#x}, which is not there"
    assert WORLD.holds(from_, src, size), f"{size} bytes from {src:#x}, which is not there"
    WORLD.log.append(("copy", kind, dst, src, size, stream))
    run = lambda: _move(dst, src, size)  # noqa: E731
    WORLD.streams[stream].put(Op("copy", run, ((dst, size), (src, size))))


def _move(dst: int, src: int, size: int) -> None:
    memory(dst, size)[:] = memory(src, size)


def memory(address: int, size: int) -> Any:
    """Bytes at an address of this process."""
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _memset(ptr: int, value: int, size: int, stream: int) -> None:
    assert WORLD.holds(WORLD.device, ptr, size)
    WORLD.log.append(("memset", ptr, value, size, stream))

    def run() -> None:
        memory(ptr, size)[:] = value

    WORLD.streams[stream].put(Op("memset", run, ((ptr, size),)))


def _free_and_total() -> tuple[int, int]:
    return WORLD.total - sum(WORLD.device.values()), WORLD.total


def _properties(device: int) -> dict[str, Any]:
    assert device == 0
    return {"name": b"Fake GPU", "major": 9, "minor": 0}


def _elapsed(start_event: FakeEvent, end_event: FakeEvent) -> float:
    assert start_event.last and end_event.last and end_event.last.done
    return 2.0


def make_cupy() -> ModuleType:
    """A fresh world, and the module to put into sys.modules."""
    WORLD.__init__()  # type: ignore[misc]
    runtime = SimpleNamespace(
        CUDARuntimeError=FakeRuntimeError,
        memcpyHostToDevice=TO_DEVICE,
        memcpyDeviceToHost=TO_HOST,
        memcpyDeviceToDevice=WITHIN,
        memcpyAsync=_signed(_copy, "memcpyAsync(dst, src, size, kind, stream)"),
        memsetAsync=_signed(_memset, "memsetAsync(ptr, value, size, stream)"),
        memGetInfo=_free_and_total,
        getDeviceCount=_count,
        getDevice=lambda: 0,
        getDeviceProperties=_properties,
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=FakeDriverError),
        compiler=SimpleNamespace(CompileException=FakeCompileError),
        Memory=FakeMemory,
        PinnedMemory=FakePinned,
        PinnedMemoryPointer=FakePinnedPointer,
        Stream=FakeStream,
        Event=FakeEvent,
        Graph=FakeGraph,
        get_elapsed_time=_elapsed,
    )
    module = ModuleType("cupy")
    module.cuda = cuda  # type: ignore[attr-defined]
    module.RawModule = FakeModule  # type: ignore[attr-defined]
    module.RawKernel = FakeKernel  # type: ignore[attr-defined]
    return module


def _signed(function: Callable[..., None], text: str) -> Callable[..., None]:
    """A builtin: called by position alone, as bpc does."""
    wanted = text[text.index("(") + 1 : -1].split(", ")
    assert list(inspect.signature(function).parameters) == wanted
    return function


def parameters_of(path: str, module: ModuleType) -> list[str]:
    """The parameter names of a name of the fake, `self` left out."""
    found: Any = module
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    names = list(inspect.signature(found).parameters)
    return [name for name in names if name != "self"]
