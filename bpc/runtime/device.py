"""What the training loop and the Python API ask of whatever runs a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PRODUCTS_FILE = "cublaslt.json"
"""In a run's folder: which products of matrices a library computed on the GPU, and how."""


class Scalars(Protocol):
    """States without axes as they are, or were at some moment."""

    def read_scalar(self, name: str) -> float | int:
        """A state without axes."""


class Device(Scalars, Protocol):
    """A compiled program with its memory: inputs and states go in, entry points run.

    Names of states are full names (`linear1.weight`, `control.loss`, `norm.linear1.weight`).
    Floats come out in a type that NumPy computes with: 16-bit types as float32.
    """

    @property
    def name(self) -> str:
        """`reference` or `cpu`."""

    @property
    def summary(self) -> str:
        """What runs the program, for people: `cpu (2 threads, AVX-512)`."""

    @property
    def rows(self) -> int:
        """The number of rows that a batch may have at most."""

    @property
    def arena_bytes(self) -> int:
        """Bytes that the program's memory takes."""

    @property
    def planned_peak_bytes(self) -> int:
        """Bytes that the plan said it would take."""

    @property
    def works_ahead(self) -> bool:
        """Whether it works while the host goes on, so that more may be asked before it is done."""

    @property
    def companions(self) -> Mapping[str, str]:
        """Files by name, with their text, that another run needs to give the same bits."""

    def write_input(self, name: str, array: Array) -> None:
        """Fill the first rows of an input slot, floats converted to the slot's type."""

    def write_rows(self, name: str, array: Array, rows: NDArray[np.integer[Any]]) -> None:
        """`write_input` of `array[rows]`, without a copy in between where that is possible."""

    def read_state(self, name: str) -> Array:
        """A copy of a state."""

    def write_state(self, name: str, array: Array) -> None:
        """Replace a state by an array of its shape, rounded to its type."""

    def write_scalar(self, name: str, value: float | int) -> None:
        """Replace a state without axes."""

    def run(self, entry: str, rows: int) -> None:
        """Run an entry point on the first `rows` rows of its input slots."""

    def snapshot(self) -> Scalars:
        """Metrics and control values as they are once all that was asked so far is done.

        Good until two more were taken; where the device does not work ahead, until it is asked
        for anything else.
        """

    def read_output(self, entry: str, role: str, rows: int) -> Array:
        """A copy of a result of the entry point's last call, which had `rows` rows."""

    def close(self) -> None:
        """Free what the program holds; nothing else may be called afterwards."""
