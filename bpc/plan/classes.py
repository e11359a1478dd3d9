"""Sums of bytes by class of tensor."""

from __future__ import annotations

from collections.abc import Sequence

from bpc.plan.model import Kind, Placed


def find_peak(tensors: Sequence[Placed]) -> int:
    """The first launch at which the live tensors reach the highest end in the arena; 0 if none."""
    top = max((tensor.end for tensor in tensors), default=0)
    return min((tensor.first for tensor in tensors if tensor.end == top), default=0)


def find_fullest(tensors: Sequence[Placed]) -> int:
    """The first launch at which most bytes are alive; 0 if there are none."""
    change: dict[int, int] = {}
    for tensor in tensors:
        change[tensor.first] = change.get(tensor.first, 0) + tensor.nbytes
        change[tensor.last + 1] = change.get(tensor.last + 1, 0) - tensor.nbytes
    live = best = moment = 0
    for launch in sorted(change):
        live += change[launch]
        if live > best:
            best, moment = live, launch
    return moment


def sum_classes(tensors: Sequence[Placed], launch: int) -> dict[Kind, int]:
    """Bytes alive at a launch, by class; every class is present."""
    sums = dict.fromkeys(Kind, 0)
    for tensor in tensors:
        if tensor.first <= launch <= tensor.last:
            sums[tensor.kind] += tensor.nbytes
    return sums
