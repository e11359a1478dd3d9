"""`bpc check --kernels`: a network's CUDA text compiled, run with checks, and compared."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bpc.codegen.cuda import generate
from bpc.data.describe import Description
from bpc.data.read import Dataset
from bpc.diagnose.kernels import HELD, MEAN_OVERFLOWS, RUNS, Call, KernelCheck, Run, check_kernels
from bpc.diagnose.resources import Resources, measure_resources
from bpc.diagnose.twin import Twin
from bpc.entries import Entries, build_entries
from bpc.runtime.cpu.build import plan
from bpc.runtime.host_arena import HostArena
from bpc.runtime.sim_device import self_contained
from bpc.spec.model import Spec
from bpc.train.control import initial_control
from bpc.train.initial import Reals, initial_values
from bpc.types import Shape

CHECKED_ROWS = 20
"""Rows of the batch that kernels are checked with: two tiles of no size, with a tail."""

SHORT_BY = 3
"""Rows that the second, shorter batch lacks."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found, and what every kernel takes on every architecture."""

    kernels: tuple[KernelCheck, ...]
    resources: tuple[Resources, ...]
    rows: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found and nothing spills."""
        return all(kernel.ok for kernel in self.kernels) and not self.spilling

    @property
    def spilling(self) -> tuple[Resources, ...]:
        """Kernels that keep registers in local memory."""
        return tuple(item for item in self.resources if item.spill_bytes)


def check_network(
    spec: Spec,
    description: Description,
    data: Dataset,
    batch: int = CHECKED_ROWS,
    runs: Sequence[Run] = RUNS,
    told: Callable[[str], None] = lambda text: None,
) -> Checked:
    """Check every CUDA kernel of a network on the first rows of its data.

    Args:
        spec: the network; its batch is cut to `batch` rows, which changes no kernel but its size.
        description: of the data.
        data: examples to run on.
        batch: planned rows; a full batch, a short one and a single row are run.
        runs: modes and orders.
        told: progress.

    Raises:
        ToolError: NVRTC or g++ is missing.
    """
    rows = max(1, min(batch, spec.data.batch, len(data.train["target"])))
    small = replace(spec, data=replace(spec.data, batch=rows))
    entries = build_entries(small, description)
    program = plan(entries).program
    source = generate(spec.name, program)
    told("compiling for " + ", ".join(("sm_75", "sm_90", "sm_100")))
    resources = measure_resources(self_contained(source, "network.cu"))
    counts = row_counts(rows)
    prepare = Preparer(small, entries, data)
    kernels = check_kernels(program, source, prepare, counts, runs, told, Twin(program))
    return Checked(kernels, resources, counts)


def row_counts(rows: int) -> tuple[int, ...]:
    """With how many rows a program planned for `rows` is checked."""
    return tuple(sorted({1, max(min(2, rows), rows - SHORT_BY), rows}))


@dataclass(frozen=True, slots=True)
class Preparer:
    """Brings a device to the state in which a step begins."""

    spec: Spec
    entries: Entries
    data: Dataset

    def __call__(self, device: HostArena, call: Call) -> None:
        """Fill inputs, and before the first entry of a step states and control values."""
        rows = call.rows
        if call.entry == "micro_step":
            states = [*self.entries.states_of("parameter"), *self.entries.states_of("master")]
            alone = rows == 1 < self.spec.data.batch
            for name, value in initial_values(states, self.spec.seed).items():
                device.write_state(name, value if alone else _told_apart(name, value))
            for name, number in initial_control(self.spec, 1).items():
                device.write_scalar(name, number)
            # Counters that have counted: a kernel that forgets to read one shows.
            device.write_scalar("control.updates", 2 * rows)
            device.write_scalar("control.window", 3 * rows)
            device.write_scalar("control.divisor", float(max(rows, 1)))
            device.write_scalar("control.good", self._good_updates(rows))
            # As if the rows that a short batch lacks came before it in the window.
            device.write_scalar("control.first_row", self.spec.data.batch - rows)
            for state in self.entries.states_of("moment"):
                device.write_state(state.name, _some_moment(state.name, state.value.shape))
        if call.entry == "update":
            skipped = rows == self._skipped_rows()
            if skipped:
                self._overflow(device)
            device.write_scalar("control.late", int(call.event == HELD))
            # What a step found counts for the next one only where the host reads late.
            device.write_scalar("control.found_inf", int(not skipped))
            if call.event == MEAN_OVERFLOWS:
                device.write_scalar("control.loss", 0.9 * sys.float_info.max)
                device.write_scalar("control.weight", 0.5)
        for name, array in self.data.train.items():
            if name in device.program.persistent:
                device.write_input(name, array[:rows])

    def _skipped_rows(self) -> int:
        """The batch whose update is skipped, since a gradient overflowed: short of the full one."""
        shorter = row_counts(self.spec.data.batch)[:-1]
        return shorter[-1] if shorter else 0

    def _overflow(self, device: HostArena) -> None:
        """Make one element of every gradient infinite."""
        for state in self.entries.states_of("gradient"):
            value = np.array(device.read_state(state.name), np.float64)
            value.reshape(-1)[0] = np.inf
            device.write_state(state.name, value)

    def _good_updates(self, rows: int) -> int:
        """So many that the scale grows after a full batch, and an update later after others."""
        left = 1 if rows == self.spec.data.batch else 2
        return max(0, self.spec.train.loss_scale.growth_interval - left)


def _told_apart(name: str, value: Reals) -> Reals:
    """Elements that differ where a parameter starts with equal ones, such as a bias of zeros.

    Of equal elements any one will do, and a wrong index would not show. A single row is run with
    the values of the spec, which may lie on a kink.
    """
    if value.size < 2 or np.ptp(value) > 0:
        return value
    draws = np.random.default_rng(zlib.crc32(name.removeprefix("master.").encode()))
    return value + (0.1 * draws.standard_normal(value.shape)).astype(value.dtype)


def _some_moment(name: str, shape: Shape) -> Reals:
    """Small positive numbers: a first update from moments of zero would not show their factor."""
    draws = np.random.default_rng(zlib.crc32(name.encode()))
    return 1e-3 * draws.random([dim for dim in shape if isinstance(dim, int)])


def to_json(checked: Checked) -> dict[str, Any]:
    """The result as plain data."""
    return {
        "rows": list(checked.rows),
        "kernels": [_kernel_json(kernel, checked.resources) for kernel in checked.kernels],
        "findings": [item.to_json() for kernel in checked.kernels for item in kernel.findings],
        "spilling": [f"{item.function} on {item.arch}" for item in checked.spilling],
    }


def _kernel_json(kernel: KernelCheck, resources: Sequence[Resources]) -> Mapping[str, Any]:
    taken = {item.arch: item for item in resources if item.function == kernel.function}
    return {
        "name": kernel.function,
        "ok": kernel.ok,
        "launches": kernel.launches,
        "max_error": kernel.error,
        "bound": kernel.bound,
        "places": [place.to_json() for place in kernel.places],
        "resources": {
            arch: {
                "registers": item.registers,
                "spill_bytes": item.spill_bytes,
                "shared_bytes": item.shared_bytes,
            }
            for arch, item in taken.items()
        },
    }
