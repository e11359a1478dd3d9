"""Batches of rows that stay in files, read one ahead by a thread where that saves time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.stored import StoredRows

Array = NDArray[Any]
Rows = NDArray[np.int64]
Batch = dict[str, Array]

HANDOVER_SECONDS = 200e-6
"""A thread is used when taking a batch lasts longer: handing one over costs 50 to 100 us."""

_WEIGHT = 0.1  # of the latest batch in the mean of what taking one lasts


class Feeder:
    """Takes batches out of those columns of a part that are no arrays.

    Told which batches follow, it reads each while the one before it is used, at most one ahead.
    What comes out does not depend on that: a batch that was not foreseen is read at once, and a
    fault in a row shows when its batch is asked for, not before.
    """

    def __init__(self, part: Mapping[str, Any], threaded: bool | None = None):
        """`threaded`: always or never; None: as soon as batches take long enough."""
        self._columns = {n: rows for n, rows in part.items() if isinstance(rows, StoredRows)}
        self._threaded = threaded
        self._mean_seconds = 0.0
        self._upcoming: Iterator[Rows] = iter(())
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: tuple[Rows, Future[Batch]] | None = None

    @property
    def needed(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._columns)

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
        if ahead is not None and np.array_equal(ahead[0], rows):
            batch = ahead[1].result()
            self._send_next()
            return batch
        if ahead is not None:  # something else is asked for than was told
            ahead[1].cancel()
            self._upcoming = iter(())
            return self._read(rows)
        started = time.perf_counter()
        batch = self._read(rows)
        self._note(time.perf_counter() - started)
        next(self._upcoming, None)  # that was this one
        if self._threaded or (self._threaded is None and self._mean_seconds > HANDOVER_SECONDS):
            self._send_next()
        return batch

    def close(self) -> None:
        """End the thread, after the batch that it reads; may be called again."""
        self._drop()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _read(self, rows: Rows) -> Batch:
        return {name: column[rows] for name, column in self._columns.items()}

    def _note(self, seconds: float) -> None:
        weight = _WEIGHT if self._mean_seconds else 1.0
        self._mean_seconds += weight * (seconds - self._mean_seconds)

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
