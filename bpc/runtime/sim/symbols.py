"""Addresses in a kernel library as lines of the .cu file, and its shared variables by name."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bpc.runtime.sim.elf import Library, Symbol
from bpc.runtime.sim.reports import Place
from bpc.runtime.sim.source import DISPLACED, DYNAMIC_SHARED, KernelText, SharedArray

TRANSLATED = "translated"  # the file that line numbers of translated kernels refer to
_NOT_KERNEL_TEXT = ("sim_", "ptx_")  # the simulator's own headers
_DISPLACED = re.compile(rf"^{DISPLACED}(\d+)_(\w+)$")
_NESTED = re.compile(r"^_ZZ.*?E(\d+)(\w+?)(?:_\d+)?$")


class AddressMap:
    """Looks addresses of one library up, each once."""

    def __init__(self, library: Path, lines: Sequence[tuple[Place, ...]] = ()):
        self._library = library
        self._lines = lines
        self._chains: dict[int, tuple[Place, ...]] = {}

    def chains(self, addresses: Iterable[int]) -> dict[int, tuple[Place, ...]]:
        """For each return address its line and the lines that it was inlined into."""
        wanted = {address for address in addresses if address}
        missing = sorted(wanted - self._chains.keys())
        if missing:
            self._chains.update(self._look_up(missing))
        return {address: self._chains[address] for address in wanted}

    def _look_up(self, addresses: list[int]) -> dict[int, tuple[Place, ...]]:
        # A return address lies behind the call; one byte earlier is inside it.
        command = ["addr2line", "-a", "-i", "-e", str(self._library)]
        command += [hex(address - 1) for address in addresses]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        groups = re.split(r"^0x[0-9a-f]+\n", done.stdout, flags=re.M)[1:]
        assert len(groups) == len(addresses)
        return {
            address: self._expand(_read_chain(group.splitlines()))
            for address, group in zip(addresses, groups, strict=True)
        }

    def _expand(self, chain: tuple[Place, ...]) -> tuple[Place, ...]:
        """The source lines behind an instruction of a translation."""
        if chain and chain[0].file == TRANSLATED:
            return self._lines[chain[0].line]
        return chain


def _read_chain(lines: list[str]) -> tuple[Place, ...]:
    found = []
    for line in lines:
        file, _, number = line.partition(" (")[0].rpartition(":")
        if number.isdigit() and file != "??" and not Path(file).name.startswith(_NOT_KERNEL_TEXT):
            found.append(Place(os.path.normpath(file), int(number)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """A shared array at its offset in the block of thread-local variables."""

    offset: int
    nbytes: int
    array: SharedArray
    dynamic: bool


def place_shared(library: Library, kernels: KernelText) -> tuple[PlacedArray, ...]:
    """The shared variables of a library in order of offset, with what their declarations say."""
    symbols = [symbol for symbol in library.symbols if symbol.thread_local and symbol.nbytes]
    dynamic = next((symbol for symbol in symbols if symbol.name == DYNAMIC_SHARED), None)
    found = []
    if dynamic:
        assert kernels.dynamic is not None
        found.append(PlacedArray(dynamic.value, dynamic.nbytes, kernels.dynamic, True))
    taken = {library.address("sim_anchor"), dynamic.value if dynamic else -1}
    found += [_place(symbol, kernels) for symbol in symbols if symbol.value not in taken]
    return tuple(sorted(found, key=lambda item: item.offset))


def _place(symbol: Symbol, kernels: KernelText) -> PlacedArray:
    name = plain_name(symbol.name)
    displaced = _DISPLACED.match(name)
    if displaced:  # the element's size is the array's gap and its alignment
        gap, name = int(displaced[1]), displaced[2]
        array = SharedArray(symbol.name, name, gap)
        return PlacedArray(symbol.value + gap, symbol.nbytes - gap, array, False)
    declared = {array.symbol: array for array in kernels.shared}
    array = declared.get(symbol.name) or declared.get(name) or SharedArray(symbol.name, name, 16)
    return PlacedArray(symbol.value, array.nbytes or symbol.nbytes, array, False)


def plain_name(symbol: str) -> str:
    """The source name of a static variable of a function: `_ZZ4gemmE4tile` is `tile`."""
    found = _NESTED.match(symbol)
    if not found:
        return symbol
    return found[2][: int(found[1])]
