"""Steps of the optimizer on a device, of which the training loop is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bpc.data.feeder import Feeder
from bpc.entries import MICRO_STEP, MICRO_STEP_ADD, UPDATE, Entries
from bpc.errors import UsageError
from bpc.runtime.device import Device, Scalars
from bpc.spec.model import Spec
from bpc.train.control import LossTerms, initial_control

BAD_ROWS = "BPC0607"

Part = Mapping[str, NDArray[Any]]
RowNumbers = NDArray[np.int64]


class Stepper:
    """Takes steps over one part of a data set, whose rows are copied straight to the device."""

    def __init__(self, spec: Spec, entries: Entries, device: Device, part: Part):
        self._spec = spec
        self._entries = entries
        self._device = device
        self._feeder = Feeder(part)
        self._arrays = tuple(item for item in part.items() if isinstance(item[1], np.ndarray))
        self._terms = LossTerms(spec, part["target"])
        self._row_count = len(part["target"])

    def reset(self, updates: int) -> None:
        """Zero moments, gradients and metrics; set the control block for a run of `updates`."""
        device, entries = self._device, self._entries
        for kind in ("moment", "gradient", "metric"):
            for state in entries.states_of(kind):
                device.write_state(state.name, np.zeros_like(device.read_state(state.name)))
        known = {state.name for state in entries.states_of("control")}
        for name, value in initial_control(self._spec, updates).items():
            assert name in known, f"{name} is no control value"
            device.write_scalar(name, value)

    def step(self, *batches: ArrayLike) -> bool:
        """One update of the weights from the rows with these numbers.

        Args:
            batches: int [n] each, n at most the planned batch; as many as `train.accumulate`
                says, or fewer.

        Returns:
            False if the gradients were not finite, so that the weights stayed as they were.

        Raises:
            UsageError: too many batches or rows, or rows that the data does not have.
        """
        most = self._spec.train.accumulate
        if not 1 <= len(batches) <= most:
            raise _fault(f"{len(batches)} batches in a step, from 1 to {most} are possible")
        values = self.issue([self._check(np.asarray(rows)) for rows in batches])
        return not values.read_scalar("control.found_inf")

    def issue(self, batches: Sequence[RowNumbers]) -> Scalars:
        """Have the device take a step, without waiting for it.

        Args:
            batches: numbers of rows that are known to be right.

        Returns:
            Metrics and control values after the step.
        """
        device = self._device
        device.write_scalar("control.divisor", float(max(1, self._terms.count(batches))))
        entry, first_row = MICRO_STEP, 0
        for rows in batches:
            for name, array in self._arrays:
                device.write_rows(name, array, rows)
            if self._feeder.needed:
                for name, array in self._feeder.take(rows).items():
                    device.write_input(name, array)
            device.write_scalar("control.first_row", first_row)
            device.run(entry, len(rows))
            entry, first_row = MICRO_STEP_ADD, first_row + len(rows)
        device.run(UPDATE, device.rows)
        return device.snapshot()

    def set_late(self, late: bool) -> None:
        """Say whether steps are issued before the last one's values are read.

        If so, nothing changes any more from a step on that is not finite, until this is called.
        """
        self._device.write_scalar("control.found_inf", 0)
        self._device.write_scalar("control.late", int(late))

    def follow(self, batches: Iterable[RowNumbers]) -> None:
        """Say which batches come next, so that what lies in files can be read ahead."""
        self._feeder.follow(batches)

    def close(self) -> None:
        """Stop reading ahead."""
        self._feeder.close()

    def loss(self) -> float:
        """Mean loss of the last step, from before its update; 0 if no term counted."""
        return mean_loss(self._device)

    def terms(self) -> float:
        """What the sum of the last step's losses was divided by: their number, or total weight."""
        return terms_of(self._device)

    def _check(self, rows: NDArray[Any]) -> RowNumbers:
        planned, count = self._device.rows, self._row_count
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise _fault(f"row numbers are {rows.dtype} {list(rows.shape)}, not integers [n]")
        if not 1 <= len(rows) <= planned:
            raise _fault(f"{len(rows)} rows in a batch, from 1 to {planned} are planned")
        if rows.min() < 0 or rows.max() >= count:
            raise _fault(f"row numbers from {rows.min()} to {rows.max()}, rows are 0..{count - 1}")
        return rows.astype(np.int64, copy=False)


def mean_loss(values: Scalars) -> float:
    """Mean loss of a step, from before its update; 0 if no term counted."""
    weight = terms_of(values)
    return values.read_scalar("control.loss") / weight if weight else 0.0


def terms_of(values: Scalars) -> float:
    """What the sum of a step's losses is divided by."""
    return float(values.read_scalar("control.weight"))


def _fault(message: str) -> UsageError:
    error = UsageError.at(BAD_ROWS, message, None)
    assert isinstance(error, UsageError)
    return error
