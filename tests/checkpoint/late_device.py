"""A device that works ahead, and as late as it may: what is asked of it waits until it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bpc.entries import UPDATE, Entries
from bpc.runtime.device import Scalars
from bpc.runtime.reference_device import ReferenceDevice

KINDS = ("metric", "control")


@dataclass
class Taken:
    """Values behind everything that was asked before; reading one runs all that."""

    device: LateDevice
    values: dict[str, float | int] = field(default_factory=dict)

    def read_scalar(self, name: str) -> float | int:
        self.device.run_until(self)
        return self.values[name]


class LateDevice:
    """The reference, behind a queue.

    `waits` has a number for each time that somebody read: how many updates were issued that had
    not run. `rests` counts the reads of anything but a snapshot.
    """

    name = "reference"
    summary = ReferenceDevice.summary
    works_ahead = True

    def __init__(self, entries: Entries):
        self.inner = ReferenceDevice(entries)
        self.scalars = [state.name for kind in KINDS for state in entries.states_of(kind)]
        self.queue: list[tuple[Any, Callable[[], None]]] = []
        self.taken: list[Taken] = []
        self.waits: list[int] = []
        self.rests = 0

    @property
    def rows(self) -> int:
        return self.inner.rows

    @property
    def planned_peak_bytes(self) -> int:
        return self.inner.planned_peak_bytes

    @property
    def arena_bytes(self) -> int:
        return self.inner.arena_bytes

    @property
    def companions(self) -> Any:
        return self.inner.companions

    def write_input(self, name: str, array: np.ndarray) -> None:
        copy = np.array(array)
        self._put(name, lambda: self.inner.write_input(name, copy))

    def write_rows(self, name: str, array: np.ndarray, rows: np.ndarray) -> None:
        self.write_input(name, array[rows])

    def write_state(self, name: str, array: np.ndarray) -> None:
        copy = np.array(array)
        self._put(name, lambda: self.inner.write_state(name, copy))

    def write_scalar(self, name: str, value: float | int) -> None:
        self._put(name, lambda: self.inner.write_scalar(name, value))

    def run(self, entry: str, rows: int) -> None:
        self._put(entry, lambda: self.inner.run(entry, rows))

    def snapshot(self) -> Scalars:
        made = Taken(self)
        self.taken = [*self.taken[-1:], made]  # the one before the last is no longer good
        self._put(made, lambda: self._fill(made))
        return made

    def read_state(self, name: str) -> np.ndarray:
        self._rest()
        return self.inner.read_state(name)

    def read_scalar(self, name: str) -> float | int:
        self._rest()
        return self.inner.read_scalar(name)

    def read_output(self, entry: str, role: str, rows: int) -> np.ndarray:
        self._rest()
        return self.inner.read_output(entry, role, rows)

    def close(self) -> None:
        self.queue.clear()
        self.inner.close()

    def _put(self, label: Any, action: Callable[[], None]) -> None:
        self.queue.append((label, action))

    def _fill(self, made: Taken) -> None:
        made.values = {name: self.inner.read_scalar(name) for name in self.scalars}

    def _rest(self) -> None:
        self.rests += 1
        while self.queue:
            self.queue.pop(0)[1]()

    def run_until(self, wanted: Taken) -> None:
        assert any(made is wanted for made in self.taken), "two more were taken"
        if not wanted.values:
            self.waits.append(sum(label == UPDATE for label, _ in self.queue))
            while not wanted.values:
                self.queue.pop(0)[1]()
