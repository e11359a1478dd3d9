"""What the simulator found: typed reports with both parties' threads, blocks and source lines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What is wrong. The values are what people read."""

    RACE = "RACE"
    OUT_OF_BOUNDS = "OUT-OF-BOUNDS"
    UNINITIALISED = "UNINITIALISED"
    MISALIGNED = "MISALIGNED"
    DIVERGENT_BARRIER = "DIVERGENT-BARRIER"
    DEADLOCK = "DEADLOCK"
    READ_ONLY = "READ-ONLY"
    UNDEFINED = "UNDEFINED"
    BUDGET = "BUDGET"
    TRAP = "TRAP"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the kernel's source; `#line` makes it a line of another file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def to_json(self) -> dict[str, object]:
        """The place as plain data."""
        return {"file": self.file, "line": self.line}


@dataclass(frozen=True, slots=True)
class Party:
    """One CUDA thread at one place.

    `through` holds the callers of an inlined function, innermost first; `access` is read, write
    or atomic, and empty where memory plays no part.
    """

    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    place: Place | None
    through: tuple[Place, ...] = ()
    access: str = ""

    def __str__(self) -> str:
        what = f"{self.access} by " if self.access else ""
        where = f" at {self.place}" if self.place else ""
        called = "".join(f" (called at {place})" for place in self.through[:1])
        return f"{what}thread {_index(self.thread)} of block {_index(self.block)}{where}{called}"

    def to_json(self) -> dict[str, object]:
        """The party as plain data."""
        return {
            "thread": list(self.thread),
            "block": list(self.block),
            "place": self.place.to_json() if self.place else None,
            "through": [place.to_json() for place in self.through],
            "access": self.access,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """The memory that an access met: which buffer or shared array, and which byte of it."""

    memory: str  # "global", "shared", "constant", "local" or "none"
    name: str
    byte: int
    index: int | None = None
    nbytes: int | None = None

    def __str__(self) -> str:
        if self.memory == "none":
            return f"address {self.byte:#x}"
        if self.index is None:
            return f"{self.memory} `{self.name}` byte {self.byte}"
        of = f" of {self.nbytes}" if self.nbytes is not None else ""
        return f"{self.memory} `{self.name}`[{self.index}] (byte {self.byte}{of})"

    def to_json(self) -> dict[str, object]:
        """The target as plain data."""
        return {
            "memory": self.memory,
            "name": self.name,
            "byte": self.byte,
            "index": self.index,
            "nbytes": self.nbytes,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """One finding. `count` tells how often it was met; the first time is described."""

    kind: Kind
    message: str
    kernel: str
    first: Party
    second: Party | None = None
    target: Target | None = None
    nbytes: int = 0
    count: int = 1

    def __str__(self) -> str:
        what = f"{self.kind.value} in {self.kernel}: {self.message}"
        size = f"{self.nbytes} bytes at " if self.nbytes else ""
        on = f", {size}{self.target}" if self.target else ""
        other = f"; unordered with {self.second}" if self.second else ""
        if self.second and self.kind is not Kind.RACE:
            other = f"; and {self.second}"
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{what}{on}: {self.first}{other}{times}"

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {
            "kind": self.kind.value,
            "message": self.message,
            "kernel": self.kernel,
            "first": self.first.to_json(),
            "second": self.second.to_json() if self.second else None,
            "target": self.target.to_json() if self.target else None,
            "nbytes": self.nbytes,
            "count": self.count,
        }


def _index(of: tuple[int, int, int]) -> str:
    """`7`, or `(7, 1)` where more than one axis is used."""
    used = of if of[2] else of[:2] if of[1] else of[:1]
    return str(used[0]) if len(used) == 1 else "(" + ", ".join(map(str, used)) + ")"
