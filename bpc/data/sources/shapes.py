"""The extents of a row, as a file has them or as the spec would rather have them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from bpc.data.sources.faults import BAD_OPTION, BAD_SHAPE, Where, fault


def fit_shape(
    found: tuple[int, ...], wished: Sequence[int] | None, name: str, inputs: int, where: Where
) -> tuple[int, ...]:
    """The wished extents of a row of an input, or those found.

    Raises:
        DataError: they have another number of elements, or there are several inputs.
    """
    if wished is None:
        return found
    if inputs > 1:
        message = f"shape is for a single input, here are {inputs}"
        raise fault(BAD_OPTION, message, where.at("shape"), "a layer reshape changes one of them")
    shape = tuple(wished)
    if prod(shape) != prod(found):
        message = f"shape {list(shape)} has {prod(shape)} elements, a row of {name} {prod(found)}"
        raise fault(
            BAD_SHAPE, message, where.at("shape"), f"extents whose product is {prod(found)}"
        )
    return shape
