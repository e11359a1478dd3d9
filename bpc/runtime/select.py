"""Which device runs a program: the one asked for, or the best that works on this machine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bpc.entries import Entries
from bpc.errors import ToolError, UsageError
from bpc.ir import Graph
from bpc.runtime.cuda_errors import NO_DRIVER
from bpc.runtime.device import Array, Device
from bpc.runtime.reference import run_graph
from bpc.runtime.reference_device import ReferenceDevice

UNKNOWN_DEVICE = "BPC0601"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants of a device. None: no budget, as many threads as suit.

    `products`: a file that says which products of matrices a library computes, for a GPU.
    """

    memory_bytes: int | None = None
    threads: int | None = None
    products: Path | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A device that works, and in one line why it and no faster one ('' if it is the fastest)."""

    device: Device
    reason: str


Maker = Callable[[Entries, Wishes], Device]
RunGraph = Callable[[Graph, Mapping[str, Array], int], Mapping[str, Array]]


def _make_reference(entries: Entries, wishes: Wishes) -> Device:
    return ReferenceDevice(entries)


def _make_cpu(entries: Entries, wishes: Wishes) -> Device:
    from bpc.runtime.cpu.build import make_cpu

    return make_cpu(entries, wishes.threads, wishes.memory_bytes)


def _make_sim(entries: Entries, wishes: Wishes) -> Device:
    from bpc.runtime.sim_device import make_sim

    return make_sim(entries, wishes.memory_bytes)


def _make_cuda(entries: Entries, wishes: Wishes) -> Device:
    from bpc.runtime.cuda_build import make_cuda

    return make_cuda(entries, wishes.memory_bytes, products=wishes.products)


# Fastest first. A maker raises ToolError where the machine lacks what it needs.
MAKERS: dict[str, Maker] = {
    "cuda": _make_cuda,
    "cpu": _make_cpu,
    "reference": _make_reference,
    "sim": _make_sim,
}


def choose(device: str, entries: Entries, wishes: Wishes = Wishes()) -> Choice:
    """Make the device called `device`, or for "auto" the first of MAKERS that works.

    Raises:
        UsageError: there is no such device.
        ToolError: the machine lacks what the device asked for needs.
        BudgetError: no plan fits the budget.
    """
    if device != "auto":
        check_device(device)
        return Choice(MAKERS[device](entries, wishes), "")
    missing: list[str] = []
    for name, make in MAKERS.items():
        try:
            made = make(entries, wishes)
        except ToolError as error:
            found = error.diagnostics[0]
            if found.code != NO_DRIVER:  # a machine without a GPU lacks nothing
                missing.append(f"{name}: {found.message}")
            continue
        return Choice(made, f"on {made.name}, because {'; '.join(missing)}" if missing else "")
    raise AssertionError("the reference always works")


def check_device(device: str) -> None:
    """Refuse a name that no device has."""
    known = ("auto", *MAKERS)
    if device not in known:
        near = difflib.get_close_matches(device, known, n=1)
        help = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
        raise UsageError.at(UNKNOWN_DEVICE, f"there is no device '{device}'", None, help=help)


def graph_runner(device: Device, threads: int | None = None) -> RunGraph:
    """What runs a single graph in the way of the device."""
    if device.name == "cpu":
        from bpc.runtime.cpu.single import GraphRunner

        return GraphRunner(threads)
    return run_graph
