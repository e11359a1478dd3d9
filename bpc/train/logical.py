"""A network's states as a file has them: by logical name, in full precision.

A weight that is stored in 16 bits goes by its full-precision copy, under the weight's name.
Gradients are left out: every step makes them anew before it reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from bpc.entries import Entries
from bpc.ir import State
from bpc.optimizer import master_name
from bpc.runtime.device import Device
from bpc.train.tensorfile import TensorType
from bpc.types import F32, F64, I64, shape_at

Arrays = dict[str, NDArray[Any]]

_SCALARS = ("metric", "control")
_OF_THE_HOST = ("control.late",)  # how the host reads; says nothing of the run
_CODES = {F64: "F64", F32: "F32", I64: "I64"}


@dataclass(frozen=True, slots=True)
class Slot:
    """A logical tensor: its type in a file, the state that has it, and its 16-bit copy."""

    type: TensorType
    state: str
    rounded: str | None = None


def model_slots(entries: Entries) -> dict[str, Slot]:
    """Weights, and whatever else evaluation reads, by name."""
    masters = {state.name: state for state in entries.states_of("master")}
    slots = {}
    for state in entries.states:
        if state.kind in ("master", "moment", "gradient", *_SCALARS):
            continue
        master = masters.get(master_name(state.name, state.value.dtype))
        if master is None:
            slots[state.name] = _slot(state)
        else:
            slots[state.name] = Slot(_slot(master).type, master.name, state.name)
    return slots


def optimizer_slots(entries: Entries) -> dict[str, Slot]:
    """Moments by name."""
    return {state.name: _slot(state) for state in entries.states_of("moment")}


def scalar_states(entries: Entries) -> dict[str, bool]:
    """Names of the control block and of metrics; whether each is an integer."""
    found = [state for kind in _SCALARS for state in entries.states_of(kind)]
    kept = [state for state in found if state.name not in _OF_THE_HOST]
    return {state.name: state.value.dtype.kind == "int" for state in kept}


def types_of(slots: Mapping[str, Slot]) -> dict[str, TensorType]:
    """What a file with these slots holds."""
    return {name: slot.type for name, slot in slots.items()}


def capture(device: Device, slots: Mapping[str, Slot]) -> Arrays:
    """Copies of the slots' tensors."""
    return {name: device.read_state(slot.state) for name, slot in slots.items()}


def restore(device: Device, slots: Mapping[str, Slot], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set states from tensors that `read_tensors` has checked against these slots."""
    for name, slot in slots.items():
        device.write_state(slot.state, arrays[name])
        if slot.rounded is not None:
            device.write_state(slot.rounded, arrays[name])


def _slot(state: State) -> Slot:
    """Types of 16 bits are float32 outside a device."""
    dtype = state.value.dtype
    outside = F32 if dtype.kind == "float" and dtype.bits < 32 else dtype
    return Slot(TensorType(_CODES[outside], shape_at(state.value.shape, 1)), state.name)
