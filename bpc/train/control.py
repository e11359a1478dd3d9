"""The control block before the first step, and the number of terms in a window's loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.spec.model import Spec

SIGNED = 1 << 64

# What the spec says and no step changes; a resumed run takes these from the spec it is given.
FROM_SPEC = tuple(f"control.{name}" for name in ("base_lr", "warmup", "total", "final", "seed"))


def initial_control(spec: Spec, updates: int) -> dict[str, float | int]:
    """Values of `control.*` at the start of a run of `updates` updates."""
    train = spec.train
    scale = train.loss_scale.start if spec.scales_loss else 1.0
    warmup = train.warmup_steps
    if train.warmup_share is not None:
        warmup = round(train.warmup_share * updates)
    return {
        "control.scale": scale,
        "control.divisor": 1.0,
        "control.base_lr": train.lr,
        "control.warmup": float(warmup),
        "control.total": float(updates),
        "control.final": train.schedule.final,
        "control.lr": 0.0,
        "control.norm": 0.0,
        "control.loss": 0.0,
        "control.weight": 0.0,
        "control.seed": signed(spec.seed),
        "control.window": 0,
        "control.first_row": 0,
        "control.updates": 0,
        "control.good": 0,
        "control.found_inf": 0,
        "control.late": 0,
    }


def signed(seed: int) -> int:
    """The 64 bits of a seed as an i64 holds them."""
    return seed - SIGNED if seed >= SIGNED // 2 else seed


class LossTerms:
    """Counts the terms of the loss before it is computed, so that gradients need no second pass.

    A window's loss is a sum of terms over their number: one a row that counts for class targets
    (those whose target is the loss's `ignore_index` do not), one an element for value targets.
    """

    def __init__(self, spec: Spec, targets: NDArray[Any]):
        self._per_row = prod(targets.shape[1:])
        self._targets = targets
        self._ignored = ignored = spec.ignored_class
        self._counted: NDArray[np.int64] | None = None
        if ignored is not None and isinstance(targets, np.ndarray):
            self._counted = self._count_rows(targets)

    def count(self, batches: Sequence[NDArray[np.int64]]) -> int:
        """The number of terms of a window whose batches have these rows."""
        if self._ignored is None:
            return self._per_row * sum(len(rows) for rows in batches)
        if self._counted is None:  # targets that stay in their file
            return sum(int(self._count_rows(self._targets[rows]).sum()) for rows in batches)
        return sum(int(self._counted[rows].sum()) for rows in batches)

    def _count_rows(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        counted = (targets != self._ignored).reshape(len(targets), -1)
        counts: NDArray[np.int64] = counted.sum(axis=1, dtype=np.int64)
        return counts
