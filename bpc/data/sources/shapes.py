"""The extents of a row, as a file has them or as the spec would rather have them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from bpc.data.sources.faults import BAD_SHAPE, Where, fault


def fit_shape(
    found: tuple[int, ...], wished: Sequence[int] | None, what: str, where: Where
) -> tuple[int, ...]:
    """The wished extents, or those found.

    Raises:
        DataError: they have another number of elements.
    """
    if wished is None:
        return found
    shape = tuple(wished)
    if prod(shape) != prod(found):
        message = f"shape {list(shape)} has {prod(shape)} elements, a row of {what} {prod(found)}"
        raise fault(
            BAD_SHAPE, message, where.at("shape"), f"extents whose product is {prod(found)}"
        )
    return shape
