"""Batches of rows that stay in files, read one ahead by a thread where that saves time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.batches import Batches
from bpc.data.stored import StoredRows

Array = NDArray[Any]
Rows = NDArray[np.int64]
Batch = dict[str, Array]

HANDOVER_SECONDS = 200e-6
"""A thread is used when taking a batch lasts longer: handing one over costs 50 to 100 us."""

_SLOW_ENOUGH = 4
_SLOWEST = 16


def iterate(part: Mapping[str, Any], source: Batches) -> Iterator[Batch]:
    """The batches of one pass over a part in its own order, read ahead where that saves time."""
    feeder = Feeder(part)
    arrays = {name: array for name, array in part.items() if isinstance(array, np.ndarray)}
    feeder.follow(source.rows(0, step) for step in range(len(source)))
    try:
        for step in range(len(source)):
            rows = source.rows(0, step)
            yield {name: array[rows] for name, array in arrays.items()} | feeder.take(rows)
    finally:
        feeder.close()


class Feeder:
    """Takes batches out of those columns of a part that are no arrays.

    Told which batches follow, it reads each while the one before it is used, at most one ahead.
    What comes out does not depend on that: a batch that was not foreseen is read at once, and a
    fault in a row shows when its batch is asked for, not before.
    """

    def __init__(self, part: Mapping[str, Any], threaded: bool | None = None):
        """`threaded`: always or never; None: as soon as batches take long enough."""
        self._columns: dict[str, StoredRows] = {
            n: rows for n, rows in part.items() if isinstance(rows, StoredRows)
        }
        self.needed = bool(self._columns)
        self._threaded = threaded
        self._slow = 0
        self._upcoming: Iterator[Rows] = iter(())
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: tuple[Rows, Future[tuple[Batch, float]]] | None = None

    @property
    def reads_ahead(self) -> bool:
        """Whether the thread is at work."""
        return self._executor is not None

    def follow(self, batches: Iterable[Rows]) -> None:
        """From here on these batches are asked for, in this order."""
        self._drop()
        self._upcoming = iter(batches)

    def take(self, rows: Rows) -> Batch:
        """The rows with these numbers of every column that is no array.

        Raises:
            DataError: a row cannot be used.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not np.array_equal(ahead[0], rows):  # others than were foretold
            ahead[1].cancel()
            self._upcoming, ahead = iter(()), None
        if ahead is None:
            batch, seconds = self._read(rows)
            next(self._upcoming, None)  # which was this batch
        else:
            batch, seconds = ahead[1].result()
        if self._is_worthwhile(seconds):
            self._send_next()
        return batch

    def close(self) -> None:
        """End the thread, after the batch that it reads; may be called again."""
        self._drop()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _read(self, rows: Rows) -> tuple[Batch, float]:
        started = time.perf_counter()
        batch = {name: column[rows] for name, column in self._columns.items()}
        return batch, time.perf_counter() - started

    def _is_worthwhile(self, seconds: float) -> bool:
        """Whether to read the next batch ahead, now that one took so long.

        Some in a row have to be slow, since the first one of a file always is.
        """
        if self._threaded is not None:
            return self._threaded
        self._slow += 1 if seconds > HANDOVER_SECONDS else -1
        self._slow = max(0, min(self._slow, _SLOWEST))
        return self._slow >= _SLOW_ENOUGH

    def _send_next(self) -> None:
        rows = next(self._upcoming, None)
        if rows is None:
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="bpc-data")
        self._ahead = (rows, self._executor.submit(self._read, rows))

    def _drop(self) -> None:
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None
