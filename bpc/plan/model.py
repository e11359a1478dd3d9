"""What the planning algorithms speak about: buffers, steps, storages, segments, actions.

Nothing here knows of ops, graphs or code generation. Bytes are integers, time is an index of a
launch (or step) in execution order, costs are integers in a unit of the caller's choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PlanFault(AssertionError):
    """A plan broke an invariant: bpc's own mistake, never the user's."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """`nbytes` needed from launch `first` to launch `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        assert self.nbytes >= 0, f"{self.name}: {self.nbytes} bytes"
        assert self.first <= self.last, f"{self.name}: ends before it begins"


class Kind(StrEnum):
    """The class of a tensor in reports and pictures."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    SAVED = "saved"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Placed:
    """A buffer of a known class at its offset in the arena."""

    name: str
    kind: Kind
    nbytes: int
    first: int
    last: int
    offset: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Step:
    """One executed launch: the storages it reads and the ones it writes."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes `offset` .. `offset + nbytes` of the arena.

    A persistent storage (a parameter, an input slot, an output that is read after the last step)
    owns its bytes before the first step and after the last one.
    """

    nbytes: int
    offset: int
    persistent: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """What an independent replay of a program found.

    `peak_bytes` is the arena that the program needs: the highest end of a storage that is alive
    at some step. `live_bytes` is the largest sum of live storages, reached first at `peak_step`
    (-1: before any step) with `alive_at_peak` (in order of offset); their difference is what
    packing lost. `touched_high_water` is the highest byte that a step itself read or wrote.
    """

    peak_bytes: int
    live_bytes: int
    peak_step: int
    alive_at_peak: tuple[str, ...]
    touched_high_water: int


@dataclass(frozen=True, slots=True)
class Saving:
    """One way to run a segment so that its backward can follow.

    Args:
        saved_bytes: held from the segment's forward to its backward, beside its input and output.
        forward_peak_bytes: most bytes of new tensors alive at one moment of that forward: the
            saved ones and the output included, the segment's input not.
        backward_peak_bytes: most bytes alive at one moment of the backward beyond those held at
            its start (input and output where needed, saved bytes, gradient of the output); the
            gradient of the input is included.
        needs_input: the backward reads the segment's input, which is held until then.
        needs_output: the backward reads the segment's output, which is held until then.
        extra_cost: work that only this way of saving adds (for example values repeated inside).
    """

    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    needs_input: bool = True
    needs_output: bool = False
    extra_cost: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the forward graph between two single-value cuts; value s enters segment s.

    Args:
        input_bytes: of value s, held if the segment is to be run again; 0 if it is held anyway.
        output_bytes: of value s + 1, the same as the next segment's `input_bytes`.
        gradient_bytes: of the gradient of the output, held from the backward of the next segment
            to the backward of this one. Not counted for the last segment, whose
            `backward_peak_bytes` counts it.
        forward_peak_bytes: most bytes of new tensors alive at one moment of a forward that saves
            nothing: the output included, the input not.
        forward_drop_peak_bytes: the same with the input counted, when the input may be freed
            after its last reader; None for `input_bytes + forward_peak_bytes`.
        forward_cost: of one run of the forward.
        savings: the ways to run it before its backward, at least one.
    """

    name: str
    input_bytes: int
    output_bytes: int
    gradient_bytes: int
    forward_peak_bytes: int
    forward_cost: int
    savings: tuple[Saving, ...]
    forward_drop_peak_bytes: int | None = None

    def __post_init__(self) -> None:
        assert self.savings, f"{self.name}: no way to run its backward"
        assert self.forward_cost >= 0, f"{self.name}: negative cost"
        assert self.forward_peak_bytes >= self.output_bytes, f"{self.name}: output above peak"
        for saving in self.savings:
            least = saving.saved_bytes + self.output_bytes
            assert saving.forward_peak_bytes >= least, f"{self.name}: saved bytes above peak"
            assert saving.backward_peak_bytes >= 0 and saving.extra_cost >= 0, self.name
        assert self.dropping_peak_bytes >= max(self.input_bytes, self.output_bytes), self.name

    @property
    def dropping_peak_bytes(self) -> int:
        """`forward_drop_peak_bytes`, or its upper bound where none is given."""
        if self.forward_drop_peak_bytes is None:
            return self.input_bytes + self.forward_peak_bytes
        return self.forward_drop_peak_bytes


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a chain's schedule.

    `kind` is `forward` (nothing saved), `forward_save` (in the way `saving`) or `backward`.
    `segment` counts from 0. `drops` names the values (s enters segment s) that are not read
    again, unless computed again, once the action is done. A backward also ends its segment's
    saved bytes and the gradient of its output.
    """

    kind: str
    segment: int
    drops: tuple[int, ...] = ()
    saving: int = 0
