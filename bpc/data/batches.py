"""Which rows make up which batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.order import rows_at

_BLOCK = 1 << 16


class Batches:
    """The batches of one part of a data set, reachable in any order.

    The last batch of an epoch is short when the batch size does not divide the rows.
    """

    def __init__(
        self, part: Mapping[str, NDArray[Any]], batch: int, seed: int = 0, shuffle: bool = False
    ):
        assert batch >= 1, f"batch {batch}"
        self.part = part
        self.batch = batch
        self.seed = seed
        self.shuffle = shuffle
        self.row_count = len(part["target"])
        # Drawing an order costs more per call than per row, so it is drawn in blocks.
        self._block: tuple[int, int] = (-1, -1)
        self._block_rows: NDArray[np.int64] = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Batches in an epoch, the short one counted."""
        return -(-self.row_count // self.batch)

    def locate(self, step: int) -> tuple[int, int]:
        """Epoch and step within it of the step with this number, all from 0."""
        return divmod(step, len(self))

    def rows(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Row indices of one batch, int64 [batch] or shorter."""
        assert 0 <= step < len(self), f"step {step} of {len(self)}"
        start = step * self.batch
        stop = min(start + self.batch, self.row_count)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        parts = []
        while start < stop:
            block, offset = divmod(start, _BLOCK)
            taken = min(stop - start, _BLOCK - offset)
            parts.append(self._drawn(epoch, block)[offset : offset + taken])
            start += taken
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def take(self, epoch: int, step: int) -> dict[str, NDArray[Any]]:
        """The arrays of one batch by name, copied out of the part."""
        rows = self.rows(epoch, step)
        return {name: values[rows] for name, values in self.part.items()}

    def _drawn(self, epoch: int, block: int) -> NDArray[np.int64]:
        if self._block != (epoch, block):
            start = block * _BLOCK
            count = min(_BLOCK, self.row_count - start)
            self._block_rows = rows_at(self.seed, epoch, self.row_count, start, count)
            self._block_rows.flags.writeable = False
            self._block = (epoch, block)
        return self._block_rows
