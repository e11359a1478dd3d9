"""Compiled programs from named graphs: many small cases share one file, one compiler run."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from bpc.api import Net
from bpc.api import compile as compile_net
from bpc.codegen.cpu import generate
from bpc.ir import Graph, Node, State, Value
from bpc.passes import run_passes
from bpc.plan.choose import Planned
from bpc.plan.program import Program, build_program
from bpc.resources import cache_root
from bpc.runtime.cpu.build import plan, write_source
from bpc.runtime.cpu.device import CpuDevice
from bpc.runtime.cpu.toolchain import build_library
from bpc.runtime.reference import storage_type
from bpc.train.initial import initial_values
from bpc.train.loop import Job, train
from bpc.train.progress import NoProgress
from bpc.types import BIT, shape_at

Arrays = dict[str, np.ndarray]
POISON = 0xFF
"""Every float whose bytes are all this is NaN."""


def prefixed(graph: Graph, prefix: str) -> Graph:
    """The same graph with every value, state and node renamed, so that graphs can share states."""

    def value(old: Value) -> Value:
        return replace(old, name=prefix + old.name)

    def node(old: Node) -> Node:
        return replace(
            old,
            name=prefix + old.name,
            inputs=tuple(prefix + name for name in old.inputs),
            outputs=tuple(value(made) for made in old.outputs),
        )

    return replace(
        graph,
        inputs=tuple(value(old) for old in graph.inputs),
        states=tuple(replace(old, value=value(old.value)) for old in graph.states),
        nodes=tuple(node(old) for old in graph.nodes),
        outputs=tuple((role, prefix + name) for role, name in graph.outputs),
        updates=tuple((prefix + state, prefix + name) for state, name in graph.updates),
    )


def make_device(program: Program, threads: int = 2) -> CpuDevice:
    """Generated, compiled and loaded."""
    source = write_source(program, "test")
    return CpuDevice(program, source, build_once(source.text), threads)


def build_once(text: str) -> Path:
    """The library of a text; another worker that wants the same one waits for it."""
    folder = cache_root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / sha256(text.encode()).hexdigest()).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build_library(text)


def poison(device: CpuDevice) -> None:
    """Fill all bytes that no state or input owns, so that reading one too early shows."""
    device.arena[device.program.persistent_bytes :] = POISON


@dataclass(frozen=True, slots=True)
class Bundle:
    """Independent graphs as the entry points of one compiled program."""

    device: CpuDevice
    graphs: Mapping[str, Graph]

    def run(self, name: str, given: Mapping[str, np.ndarray], rows: int) -> Arrays:
        """All outputs of one graph by role."""
        device, prefix = self.device, f"{name}/"
        for label, array in given.items():
            value = device.program.persistent.get(prefix + label)
            if value is not None:
                write(device, value, array, rows)
        poison(device)
        device.run(name, rows)
        return {role: read(device, name, role, rows) for role, _ in self.graphs[name].outputs}


def without_positions(graph: Graph) -> Graph:
    """The graph without outputs that are positions or extents: these never lie in memory."""
    makers = graph.producers()
    virtual = {name for name, node in makers.items() if node.op in ("index", "extent")}
    kept = tuple((role, name) for role, name in graph.outputs if name not in virtual)
    return replace(graph, outputs=kept)


def bundle(graphs: Mapping[str, Graph], rows: int, threads: int = 2) -> Bundle:
    """Compile graphs of any ops; each has its own inputs and states."""
    kept = {name: without_positions(graph) for name, graph in graphs.items()}
    made = {name: run_passes(prefixed(graph, f"{name}/")) for name, graph in kept.items()}
    states = [state for graph in made.values() for state in graph.states]
    return Bundle(make_device(build_program(made, states, rows), threads), kept)


def write(device: CpuDevice, value: Value, array: np.ndarray, rows: int) -> None:
    """Fill the first `rows` rows of a state or an input slot."""
    slot = device.view(value, rows=rows)
    with np.errstate(over="ignore"):
        slot[...] = np.asarray(array).astype(slot.dtype)


def read(device: CpuDevice, entry: str, role: str, rows: int) -> np.ndarray:
    """An output in a type that NumPy computes with; conditions as booleans."""
    placed = device.program.entries[entry]
    _, offset = placed.output_of(role)
    value = placed.graph.values()[placed.graph.output(role)]
    if value.dtype == BIT:
        return read_bits(device.arena, offset, shape_at(value.shape, rows))
    array = device.view(value, offset, rows)
    wide = storage_type(value.dtype).itemsize == 2
    return array.astype(np.float32) if wide else array.copy()


def read_bits(arena: np.ndarray, offset: int, shape: Sequence[int]) -> np.ndarray:
    """A packed condition: every line along the last axis begins with a byte of its own."""
    if not shape:
        return np.asarray(bool(arena[offset] & 1))
    lines, width = int(np.prod(shape[:-1], dtype=np.int64)), -(-shape[-1] // 8)
    packed = arena[offset : offset + lines * width].reshape(lines, width)
    bits = np.unpackbits(packed, axis=1, bitorder="little")[:, : shape[-1]]
    return bits.astype(bool).reshape(shape)


def state_bytes(device: CpuDevice, states: Sequence[State]) -> dict[str, bytes]:
    """The bytes of every state."""
    return {state.name: device.read_state(state.name).tobytes() for state in states}


# -- whole networks -------------------------------------------------------------------------------


def open_net(path: Path, sets: Mapping[str, object] | None = None) -> Net:
    """A network for the compiled device, not planned yet."""
    return compile_net(path, set=sets, device="cpu")


def plan_net(net: Net, budget_bytes: int | None = None, least: bool = False) -> Planned:
    """The plan of a network's entry points under a budget."""
    return plan(net.entries, budget_bytes, least)


def share_library(programs: Sequence[Program]) -> list[CpuDevice]:
    """Devices for several plans of one network that load one library with all their functions.

    The same text serves a kernel whatever plan it is in, so one compiler run is enough.
    """
    kernels = [k for p in programs for entry in p.entries.values() for k in entry.kernels]
    source = generate("test", kernels, programs[0].rows)
    library, devices, first = build_once(source.text), [], 0
    for program in programs:
        count = sum(len(entry.kernels) for entry in program.entries.values())
        own = replace(source, index=source.index[first : first + count])
        devices.append(CpuDevice(program, own, library, 2))
        first += count
    return devices


def train_on(net: Net, device: CpuDevice, steps: int, folder: Path) -> dict[str, Any]:
    """Train from initial weights on a device; the run's result."""
    states = [*net.entries.states_of("parameter"), *net.entries.states_of("master")]
    for name, value in initial_values(states, net.spec.seed).items():
        device.write_state(name, value)
    return train(Job(net.spec, net.entries, device, net.data, NoProgress(), steps, folder))


def digest(net: Net, device: CpuDevice) -> dict[str, str]:
    """A digest of the bytes of every state."""
    held = state_bytes(device, net.entries.states)
    return {name: sha256(content).hexdigest() for name, content in held.items()}
