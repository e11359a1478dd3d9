"""Addresses in a kernel library as lines of the .cu file, and its shared variables by name."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from bpc.runtime.sim.elf import Library, Symbol
from bpc.runtime.sim.reports import Place
from bpc.runtime.sim.source import DYNAMIC_SHARED, KernelText, SharedArray

TRANSLATED = "translated"  # the file that line numbers of translated kernels refer to
_NOT_KERNEL_TEXT = ("sim_", "ptx_")  # the simulator's own headers
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
        if number.isdigit() and not Path(file).name.startswith(_NOT_KERNEL_TEXT):
            found.append(Place(os.path.normpath(file), int(number)))
    return tuple(found)


def place_shared(library: Library, kernels: KernelText) -> tuple[tuple[Symbol, SharedArray], ...]:
    """The shared variables of a library in order of offset, with what their declarations say."""
    declared = {array.symbol: array for array in kernels.shared}
    aliases = {array.symbol for array in kernels.shared if array.symbol in _names(library)}
    found = []
    for symbol in library.symbols:
        if not symbol.thread_local or symbol.name == "sim_anchor":
            continue
        if symbol.name == DYNAMIC_SHARED:
            assert kernels.dynamic is not None
            found.append((symbol, declared[kernels.dynamic]))
        elif symbol.nbytes and not (symbol.name in aliases and _is_alias(symbol, library)):
            plain = plain_name(symbol.name)
            known = declared.get(symbol.name) or declared.get(plain)
            found.append((symbol, known or SharedArray(symbol.name, plain, 16)))
    return tuple(sorted(found, key=lambda item: item[0].value))


def _names(library: Library) -> set[str]:
    return {symbol.name for symbol in library.symbols}


def _is_alias(symbol: Symbol, library: Library) -> bool:
    """Whether the symbol is a name of the dynamic shared memory."""
    return any(
        other.name == DYNAMIC_SHARED and other.value == symbol.value for other in library.symbols
    )


def plain_name(symbol: str) -> str:
    """The source name of a static variable of a function: `_ZZ4gemmE4tile` is `tile`."""
    found = _NESTED.match(symbol)
    if not found:
        return symbol
    return found[2][: int(found[1])]
