"""Registers, spills and shared memory of each kernel, as each architecture's assembler says."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bpc.runtime.sim.nvrtc import ARCHITECTURES, DETAILS, compile_nvrtc

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_STACK = re.compile(r"(\d+) bytes stack frame")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes on one architecture; sizes in bytes, registers of 32 bits a thread."""

    function: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def measure_resources(
    text: str, name: str = "network.cu", architectures: Sequence[str] = ARCHITECTURES
) -> tuple[Resources, ...]:
    """Compile for each architecture and read what the assembler reports.

    Raises:
        ToolError: NVRTC is missing or refuses the text.
    """
    with ThreadPoolExecutor(min(len(architectures), os.cpu_count() or 1)) as pool:
        made = pool.map(lambda arch: compile_nvrtc(text, arch, DETAILS, name), architectures)
        logs = zip(architectures, [result.log for result in made], strict=True)
    return tuple(item for arch, log in logs for item in _read_log(log, arch))


def _read_log(log: str, arch: str) -> list[Resources]:
    parts = _ENTRY.split(log)
    return [
        Resources(
            function,
            arch,
            _number(_REGISTERS, body),
            _number(_SPILL, body) + _number(_SPILL, body, 2),
            _number(_STACK, body),
            _number(_SHARED, body),
        )
        for function, body in zip(parts[1::3], parts[3::3], strict=True)
    ]


def _number(pattern: re.Pattern[str], text: str, group: int = 1) -> int:
    found = pattern.search(text)
    return int(found[group]) if found else 0
