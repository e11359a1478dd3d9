"""A .cu text compiled for the CPU, and its kernels launched."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from bpc.errors import UsageError
from bpc.runtime.sim.build import kernel_library
from bpc.runtime.sim.elf import Library, read_library
from bpc.runtime.sim.findings import Launched, describe
from bpc.runtime.sim.launch import (
    BAD_ARGUMENT,
    ORDERS,
    Argument,
    Extent,
    LaunchOptions,
    Parameter,
    argument_array,
    extents,
    pack,
    read_signature,
)
from bpc.runtime.sim.native import RawLaunch, Segment, SharedVariable, runtime
from bpc.runtime.sim.reports import Report
from bpc.runtime.sim.source import MAX_SHARED_BYTES, KernelText, complete_source
from bpc.runtime.sim.symbols import AddressMap, place_shared

Mode = Literal["source", "ptx"]

MAX_THREADS = 1024

DEFAULT_OPTIONS = LaunchOptions()


def load_cuda(
    text: str,
    mode: Mode = "source",
    checked: bool = False,
    arch: str = "compute_90",
    name: str = "kernels.cu",
) -> SimModule:
    """Compile CUDA C++ for the CPU; results are kept on disk.

    Args:
        text: the unchanged .cu text. Its kernels are `extern "C" __global__`.
        mode: "source" compiles the text itself with g++; "ptx" compiles it with NVRTC and
            translates the PTX, which is what reaches a device.
        checked: whether each memory access is checked. Unchecked builds serve training.
        arch: the PTX version to ask NVRTC for, in ptx mode.
        name: what reports call the file.

    Raises:
        ToolError: a compiler is missing or refuses the text, or the PTX has an unknown form.
    """
    if mode == "source":
        kernels = complete_source(text, name, checked)
    else:
        from bpc.runtime.sim.translate import translate_cuda

        kernels = translate_cuda(text, arch, name)
    instrumented = checked and mode == "source"
    return SimModule(
        kernels, checked, kernel_library(kernels.text, checked, kernels.flags, instrumented)
    )


class SimModule:
    """The kernels of one file."""

    def __init__(self, kernels: KernelText, checked: bool, library: Path):
        self.kernels = kernels.kernels
        self.checked = checked
        self.path = library
        self.text = kernels.text
        self._kernel_text = kernels
        self._runtime = runtime()
        self._library = c.PyDLL(str(library))
        self._library.sim_anchor_address.restype = c.c_void_p
        self.addresses = AddressMap(library, kernels.lines)
        self.shared = place_shared(self._elf, kernels)
        self._handle = self._register()
        self._signatures: dict[str, tuple[Parameter, ...]] = {}
        self._entries: dict[str, int] = {}
        for kernel in kernels.kernels:
            read = getattr(self._library, f"sim_signature_{kernel}")
            read.restype = c.c_char_p
            self._signatures[kernel] = read_signature(read().decode())
            self._entries[kernel] = _address(getattr(self._library, f"sim_call_{kernel}"))

    @cached_property
    def _elf(self) -> Library:
        return read_library(self.path)

    @property
    def signatures(self) -> Mapping[str, tuple[Parameter, ...]]:
        """Each kernel's parameters."""
        return self._signatures

    def bind(
        self,
        kernel: str,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        args: Sequence[Argument],
        options: LaunchOptions = DEFAULT_OPTIONS,
    ) -> BoundLaunch:
        """A launch with its arguments packed, to be run any number of times.

        Args:
            kernel: its name.
            grid: blocks in x, y, z.
            block: threads in x, y, z; at most 1024 together.
            shared_bytes: dynamic shared memory of a block.
            args: a GuardedBuffer or an address for a pointer, Python or NumPy numbers for the
                rest, bytes for a struct.
            options: order, limits and more.

        Raises:
            UsageError: no such kernel, or arguments or sizes that a device would not take.
        """
        if kernel not in self._signatures:
            raise UsageError.at(
                BAD_ARGUMENT, f"no kernel '{kernel}'; there are {', '.join(self.kernels)}", None
            )
        sizes = extents(grid), extents(block)
        self._check_sizes(kernel, *sizes, shared_bytes, options)
        packed = pack(kernel, self._signatures[kernel], args)
        return BoundLaunch(self, kernel, sizes, shared_bytes, packed, tuple(args), options)

    def launch(
        self,
        kernel: str,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        args: Sequence[Argument],
        options: LaunchOptions = DEFAULT_OPTIONS,
    ) -> tuple[Report, ...]:
        """Run a kernel over its grid; what was found, in the order it was met. See `bind`."""
        return self.bind(kernel, grid, block, shared_bytes, args, options).run()

    def _check_sizes(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        options: LaunchOptions,
    ) -> None:
        threads = block[0] * block[1] * block[2]
        faults = (
            (min(grid) < 1 or min(block) < 1, f"grid {grid} and block {block} must be positive"),
            (threads > MAX_THREADS, f"{threads} threads in a block, at most {MAX_THREADS}"),
            (
                grid[0] >= 1 << 31 or max(grid[1:]) > 65535 or grid[0] * grid[1] * grid[2] >> 32,
                f"grid {grid} is larger than a device takes",
            ),
            (
                shared_bytes > MAX_SHARED_BYTES,
                f"{shared_bytes} bytes of shared memory, at most {MAX_SHARED_BYTES}",
            ),
            (
                shared_bytes < 0 or (shared_bytes > 0 and self._kernel_text.dynamic is None),
                f"{shared_bytes} bytes of dynamic shared memory, but no `extern __shared__`",
            ),
            (options.order not in ORDERS, f"order '{options.order}' is none of {ORDERS}"),
        )
        for wrong, message in faults:
            if wrong:
                raise UsageError.at(BAD_ARGUMENT, f"{kernel}: {message}", None)

    def _register(self) -> int:
        """Tell the runtime where the library's code, constants and shared variables lie."""
        elf = self._elf
        anchor = _address(self._library.sim_anchor_address)
        base = anchor - elf.address("sim_anchor_address")
        code = next(segment for segment in elf.segments if segment.executable)
        data = [segment for segment in elf.segments if not segment.executable]
        self._anchor_offset = elf.address("sim_anchor")
        shared = [
            SharedVariable(item.offset, item.nbytes, item.array.alignment, item.dynamic)
            for item in self.shared
        ]
        ends = [symbol.value + symbol.nbytes for symbol in elf.symbols if symbol.thread_local]
        handle = self._runtime.sim_module_new(
            c.c_uint64(base),
            c.c_uint64(base + code.address),
            c.c_uint64(base + code.address + code.nbytes),
            c.c_uint64(max(ends)),
            self._kernel_text.cell_shift,
            (SharedVariable * max(len(shared), 1))(*shared),
            len(shared),
            (Segment * len(data))(
                *(Segment(base + s.address, s.nbytes, s.writable, 0) for s in data)
            ),
            len(data),
        )
        return int(handle)

    def shared_base(self) -> int:
        """The address of shared memory for the calling operating system thread."""
        return int(self._library.sim_anchor_address()) - self._anchor_offset


class BoundLaunch:
    """A kernel with its grid, its arguments and its options."""

    def __init__(
        self,
        module: SimModule,
        kernel: str,
        sizes: tuple[tuple[int, int, int], tuple[int, int, int]],
        shared_bytes: int,
        packed: tuple[bytes, ...],
        arguments: tuple[Argument, ...],
        options: LaunchOptions,
    ):
        self.module = module
        self.kernel = kernel
        self.grid, self.block = sizes
        pointers, kept = argument_array(packed)
        self._kept = (kept, arguments)  # buffers stay alive as long as a launch may use them
        self._raw = RawLaunch(
            module._handle,
            module._entries[kernel],
            c.addressof(pointers),
            0,
            options.seed,
            options.max_accesses if module.checked else 0,
            options.seconds,
            self.grid,
            self.block,
            shared_bytes,
            min(int(options.preempt * 65536), 65536),
            ORDERS.index(options.order),
            module.checked,
            options.max_reports,
            options.adversarial,
        )
        self._run = partial(module._runtime.sim_launch, c.byref(self._raw))

    def run(self) -> tuple[Report, ...]:
        """Run all blocks; what was found, in the order it was met."""
        library = self.module._runtime
        self._raw.shared_base = self.module.shared_base()
        self._run()
        count = library.sim_report_count()
        if not count:
            return ()
        found = [library.sim_report(index).contents for index in range(count)]
        launched = Launched(
            self.kernel, self.grid, self.block, self.module.addresses, self.module.shared
        )
        return describe(found, launched)


def _address(function: object) -> int:
    address = c.cast(function, c.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address
