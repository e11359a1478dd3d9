"""Inputs shifted and scaled, by numbers that are given or that the training part has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.sources.faults import BAD_OPTION, Where, fault
from bpc.errors import BpcError

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """(x - shift) / divisor in f64; both broadcast over a row. No divisor is 0."""

    shift: Floats
    divisor: Floats

    def apply(self, raw: Array) -> Floats:
        """Rows [rows, ...] scaled."""
        scaled: Floats = raw.astype(np.float64)
        scaled -= self.shift
        scaled /= self.divisor
        return scaled

    def to_json(self) -> dict[str, object]:
        """Both as nested lists, whose numbers read back exactly."""
        return {"shift": self.shift.tolist(), "divisor": self.divisor.tolist()}


def scale_from_json(found: Mapping[str, Any]) -> Scale:
    """What `Scale.to_json` wrote."""
    return Scale(np.asarray(found["shift"], float), np.asarray(found["divisor"], float))


class Statistics:
    """Mean, variance, least and largest of rows, gathered piece by piece in f64.

    Sums are taken of differences from the first row, which a column that never changes leaves
    at exactly 0. Source of the way pieces are joined: Chan, Golub and LeVeque 1983, "Algorithms
    for computing the sample variance".
    """

    def __init__(self, shape: tuple[int, ...], shared: str):
        """`shared`: element, channel (the first axis of a row) or all: what has one mean."""
        axes = range(1, len(shape) + 1)
        self._axes = (0, *{"element": (), "channel": axes[1:], "all": axes}[shared])
        self._shape = tuple(1 if axis + 1 in self._axes else n for axis, n in enumerate(shape))
        self.count = 0
        self.low = np.full((1, *self._shape), np.inf)
        self.high = np.full((1, *self._shape), -np.inf)
        self._origin: Floats | None = None
        self._mean = np.zeros((1, *self._shape))
        self._squares = np.zeros((1, *self._shape))

    def add(self, raw: Array) -> None:
        """Take in rows [rows, ...], at least one."""
        values = raw.astype(np.float64)
        if self._origin is None:
            inner = tuple(slice(0, extent) for extent in (1, *self._shape))
            self._origin = values[inner].copy()
        self.low = np.minimum(self.low, values.min(axis=self._axes, keepdims=True))
        self.high = np.maximum(self.high, values.max(axis=self._axes, keepdims=True))
        values -= self._origin
        mean = values.mean(axis=self._axes, keepdims=True)
        values -= mean
        squares = np.square(values, out=values).sum(axis=self._axes, keepdims=True)
        count = values.size // mean.size
        total = self.count + count
        apart = mean - self._mean
        self._mean = self._mean + apart * (count / total)
        self._squares = self._squares + squares + apart * apart * (self.count * count / total)
        self.count = total

    @property
    def mean(self) -> Floats:
        """The mean, with axes of 1 where it is shared and no axis of rows."""
        assert self._origin is not None, "no rows"
        mean: Floats = (self._origin + self._mean)[0]
        return np.where(self.low[0] == self.high[0], self.low[0], mean)

    @property
    def deviation(self) -> Floats:
        """The root of the mean squared difference from the mean."""
        deviation: Floats = np.sqrt(self._squares / self.count)[0]
        return deviation


def measure(raws: Iterable[Array], shape: tuple[int, ...], kind: str, shared: str) -> Scale:
    """The scale of rows that come piece by piece: `standard` or `minmax`.

    What never changes is shifted to 0 and not divided.
    """
    found = Statistics(shape, shared)
    for raw in raws:
        found.add(raw)
    if kind == "standard":
        return Scale(found.mean, _without_zeros(found.deviation))
    low, high = found.low[0], found.high[0]
    return Scale(low, _without_zeros(high - low))


def _without_zeros(divisor: Floats) -> Floats:
    return np.where(divisor > 0, divisor, 1.0)


def read_given(given: Mapping[str, Any], shape: tuple[int, ...], name: str, where: Where) -> Scale:
    """The scale that the spec gives: `mean` (0 without it) and `std` (1 without it).

    Raises:
        DataError: they do not fit a row, or a std is not above 0.
    """
    shift, divisor = (
        _fit(given.get(key, default), shape, f"{key} of {name}", where)
        for key, default in (("mean", 0.0), ("std", 1.0))
    )
    if not (divisor > 0).all():
        message = f"normalise: a std of {name} is {divisor.min():g}"
        raise fault(BAD_OPTION, message, where.at("normalise"), "it has to be above 0")
    return Scale(shift, divisor)


def _fit(value: Any, shape: tuple[int, ...], what: str, where: Where) -> Floats:
    found = np.asarray(value, np.float64)
    if len(shape) > 1 and found.shape == shape[:1]:
        return found.reshape(shape[0], *[1] * (len(shape) - 1))
    try:
        fits = np.broadcast_shapes(found.shape, shape) == shape
    except ValueError:
        fits = False
    if fits:
        return found
    raise _wrong_shape(found.shape, shape, what, where)


def _wrong_shape(
    found: tuple[int, ...], shape: tuple[int, ...], what: str, where: Where
) -> BpcError:
    message = f"normalise: {what} has shape {list(found)}, a row has {list(shape)}"
    help = "one number, one for each of the first axis, or one for each element"
    return fault(BAD_OPTION, message, where.at("normalise"), help)
