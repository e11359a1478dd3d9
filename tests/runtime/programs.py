"""Compiled programs from named graphs: many small cases share one file, one compiler run."""

from __future__ import annotations

import fcntl
import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from hashlib import sha256
from pathlib import Path

import numpy as np

from bpc.ir import Graph, Node, State, Value
from bpc.passes import run_passes
from bpc.plan.program import Program, build_program
from bpc.resources import cache_root
from bpc.runtime.cpu.build import write_source
from bpc.runtime.cpu.device import CpuDevice
from bpc.runtime.cpu.toolchain import build_library
from bpc.runtime.reference import storage_type
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
