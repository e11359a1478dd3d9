"""Which layer overflowed in a window whose gradients 16 bits could not hold, and the scale's floor.

The norms of gradients, one for each parameter, are known after every window, so that naming the
first parameter that a backward pass made not finite costs nothing.
"""

from __future__ import annotations

from math import isfinite

from bpc.clipping import norm_name
from bpc.entries import MICRO_STEP, Entries
from bpc.errors import Diagnostic, NonFiniteError, Note
from bpc.ir import State
from bpc.optimizer import gradient_name
from bpc.runtime.device import Device
from bpc.spec.model import Spec
from bpc.train.nonfinite import Fault

BELOW_FLOOR = "BPC0609"


def backward_order(entries: Entries) -> tuple[State, ...]:
    """The parameters in the order in which a step makes their gradients: the last layer first."""
    graph = entries.graphs[MICRO_STEP]
    made = dict(graph.updates)
    places = {value.name: k for k, node in enumerate(graph.nodes) for value in node.outputs}
    states = entries.states_of("parameter")
    return tuple(sorted(states, key=lambda state: places[made[gradient_name(state.name)]]))


def find_overflow(entries: Entries, device: Device) -> State | None:
    """The first parameter of the backward pass whose gradient is not finite after a window."""
    for state in backward_order(entries):
        if not isfinite(device.read_scalar(norm_name(state.name))):
            return state
    return None


def layer_of(state: State) -> str:
    """The layer that a parameter belongs to; a declared parameter stands for itself."""
    return state.name.rpartition(".")[0] or state.name


def list_backoffs(spec: Spec, scale: float) -> tuple[float, ...]:
    """What the scale may have been multiplied by after a skipped window, the likeliest first.

    Args:
        spec: says how the scale moves.
        scale: what it is now. Where it is held at its floor, it most likely was there before.
    """
    settings = spec.train.loss_scale
    if not spec.scales_loss:
        return (1.0,)
    held = spec.train.nonfinite == "skip" and scale <= settings.floor
    return (1.0, settings.backoff) if held else (settings.backoff,)


def make_floor_error(
    spec: Spec, fault: Fault, first: State | None, step: int, scale: float, kept: str
) -> NonFiniteError:
    """The error of a loss scale that no smaller value would help.

    Args:
        spec: says what the floor is.
        fault: the first value of the window that is not finite.
        first: the first parameter without a finite gradient, if there is one.
        step: the number of the step, from 1.
        scale: what the scale fell to.
        kept: what was saved, for the last note.
    """
    floor = spec.train.loss_scale.floor
    layer = fault.layer or (layer_of(first) if first else fault.node)
    message = (
        f"step {step}: the loss scale fell to {scale:g}, below its floor {floor:g}, "
        f"and {layer} still overflows: {fault.describe()}"
    )
    notes = [Note(text) for text in fault.operands]
    if first is not None:
        notes.append(Note(f"{first.name} has the first gradient that is not finite", first.span))
    notes.append(Note(kept))
    help = (
        f"give {layer} precision: fp32, take train.precision: bf16, or a smaller train.lr; "
        "train.nonfinite: skip holds the scale at the floor and goes on"
    )
    diagnostic = Diagnostic(BELOW_FLOOR, message, fault.span, tuple(notes), help)
    return NonFiniteError([diagnostic], fault.node, step, fault.element, fault.value)
