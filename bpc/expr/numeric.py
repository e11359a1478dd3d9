"""NumPy implementations that NumPy itself lacks. Each keeps the dtype of its arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Rational approximations of erf and erfc, each below 1e-16 in relative error.
# Source: Cody, "Rational Chebyshev approximations for the error function", 1969.
_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e00, 1.13864154151050156e02,
     3.77485237685302021e02, 3.20937758913846947e03),
    (1.0, 2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03,
     2.84423683343917062e03),
)  # fmt: skip
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e00,
     6.61191906371416295e01, 2.98635138197400131e02, 8.81952221241769090e02,
     1.71204761263407058e03, 2.05107837782607147e03, 1.23033935479799725e03),
    (1.0, 1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02,
     1.62138957456669019e03, 3.29079923573345963e03, 4.36261909014324716e03,
     3.43936767414372164e03, 1.23033935480374942e03),
)  # fmt: skip
_LARGE = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
     1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242e00, 1.87295284992346725e00, 5.27905102951428412e-1,
     6.05183413124413191e-2, 2.33520497626869185e-3),
)  # fmt: skip


def _ratio(table: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    return np.asarray(np.polyval(table[0], x) / np.polyval(table[1], x))


def _erfc_tail(a: Array) -> Array:
    """erfc of a >= 0.46875."""
    inverse = 1 / np.square(a)
    large = (1 / np.sqrt(np.pi) - inverse * _ratio(_LARGE, inverse)) / a
    return np.asarray(np.exp(-np.square(a)) * np.where(a <= 4, _ratio(_MIDDLE, a), large))


def erf(x: Array) -> Array:
    """The error function, computed in float64."""
    wide = np.asarray(x, dtype=np.float64)
    a = np.abs(wide)
    near = wide * _ratio(_SMALL, np.square(np.minimum(a, 0.5)))
    far = np.sign(wide) * (1 - _erfc_tail(np.clip(a, 0.46875, 6.0)))
    return np.asarray(np.where(a <= 0.46875, near, far).astype(np.asarray(x).dtype))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); an overflow of exp gives the right 0."""
    return np.asarray(1 / (1 + np.exp(-x)))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def masked_mul(g: Array, d: Array) -> Array:
    """g * d, and exactly 0 where g is 0, whatever d is."""
    return np.asarray(np.where(g == 0, np.zeros_like(g), g * d))


def clip(x: Array, low: Array, high: Array) -> Array:
    """min(max(x, low), high); a NaN in any argument is passed on."""
    return np.asarray(np.minimum(np.maximum(x, low), high))


def select(condition: Array, a: Array, b: Array) -> Array:
    """`a` where the condition holds, else `b`."""
    return np.asarray(np.where(condition, a, b))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Product and its exact error, by Dekker's splitting (float64)."""
    product = a * b
    a_high, b_high = (item * 134217729.0 - (item * 134217729.0 - item) for item in (a, b))
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _add_to_odd(a: Array, b: Array) -> Array:
    """a + b rounded to odd, so that rounding it once more rounds correctly."""
    total, error = (np.asarray(item, dtype=np.float64) for item in _two_sum(a, b))
    even = (total.view(np.int64) & 1) == 0
    toward = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    inexact = np.isfinite(error) & (error != 0)
    return np.asarray(np.where(inexact & even, toward, total))


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding, unless float64 over- or underflows on the way.

    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    dtype = np.result_type(a, b, c)
    a, b, c = (np.asarray(item, dtype=np.float64) for item in (a, b, c))
    if dtype == np.float32:
        return _add_to_odd(a * b, c).astype(np.float32)
    product, error = _two_product(a, b)
    upper, lower = _two_sum(c, error)
    total, rest = _two_sum(product, upper)
    exact = total + _add_to_odd(rest, lower)
    return np.asarray(np.where(np.isfinite(exact), exact, a * b + c))
