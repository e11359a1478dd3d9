"""Arrays that come in through the Python interface: from any library, checked and converted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.describe import Description
from bpc.data.read import find_outside
from bpc.errors import Diagnostic, UsageError

Array = NDArray[Any]

BAD_ARRAY = "BPC0605"
UNKNOWN_NAME = "BPC0606"


def to_numpy(value: Any, name: str) -> Array:
    """NumPy's view of an array, of nested lists, or of anything with DLPack on a CPU.

    Raises:
        UsageError: it is none of these, or does not hold numbers.
    """
    try:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
            found = _from_dlpack(value)
        else:
            found = np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise _fault(f"{name} cannot be read as an array: {error}") from None
    if found.dtype.kind not in "fiub" and found.dtype.name != "bfloat16":
        raise _fault(f"{name} holds {found.dtype}, not numbers")
    return found


def _from_dlpack(value: Any) -> Array:
    """Libraries refuse what NumPy has no type for (bfloat16) or what tracks gradients."""
    try:
        return np.from_dlpack(value)
    except (TypeError, BufferError, RuntimeError):
        if not hasattr(value, "__array__"):
            raise
        return np.asarray(value)


def read_inputs(value: Any, description: Description) -> dict[str, Array]:
    """Inputs by name from one array, or from a mapping where there are several.

    Raises:
        UsageError: names, shapes or numbers of rows do not fit.
    """
    shapes = {name: info.shape for name, info in description.inputs.items()}
    if not isinstance(value, Mapping):
        if len(shapes) > 1:
            raise _fault(
                f"the model has {len(shapes)} inputs, found one array",
                f"pass a mapping with {', '.join(shapes)}",
            )
        value = {next(iter(shapes)): value}
    return _read_named(value, shapes)


def read_batch(value: Any, description: Description) -> dict[str, Array]:
    """Inputs and `target` from a mapping of names, or from a pair (x, target).

    Raises:
        UsageError: names, shapes or numbers of rows do not fit, or a class is out of range.
    """
    shapes = {name: info.shape for name, info in description.inputs.items()}
    if isinstance(value, tuple) and len(value) == 2 and len(shapes) == 1:
        value = {next(iter(shapes)): value[0], "target": value[1]}
    if not isinstance(value, Mapping):
        raise _fault(
            "a batch is a mapping of inputs and target",
            f"such as {{{', '.join(repr(name) for name in (*shapes, 'target'))}: ...}}",
        )
    batch = _read_named(value, {**shapes, "target": description.target.shape})
    classes = description.target.classes
    if classes is not None:
        batch["target"] = _read_classes(batch["target"], classes, description.target.ignored)
    return batch


def _read_named(
    value: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    refuse_unknown(value, shapes, "input")
    for name in shapes:
        if name not in value:
            raise _fault(f"{name} is missing", f"needed are {', '.join(shapes)}")
    arrays = {name: convert(value[name], name, shapes[name]) for name in shapes}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise _fault(f"numbers of rows differ: {told}")
    return arrays


def convert(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    """An array of rows of `shape`.

    Raises:
        UsageError: a row has another shape.
    """
    array = to_numpy(value, name)
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        told = "".join(f", {size}" for size in shape)
        raise _fault(
            f"{name} has shape {list(array.shape)}, needed is [rows{told}]",
            "add a leading axis for a single row" if array.shape == shape else None,
        )
    return array


def _read_classes(target: Array, classes: int, ignored: int | None) -> NDArray[np.int64]:
    with np.errstate(invalid="ignore"):  # NaN and infinities are found by the comparison
        numbers = target.astype(np.int64)
    broken = np.flatnonzero(numbers != target)
    wrong = broken if len(broken) else find_outside(numbers, classes, ignored)
    if len(wrong):
        row = int(wrong[0])
        also = "" if ignored is None else f" nor ignore_index {ignored}"
        raise _fault(
            f"target, row {row}: {target[row]} is not a class number in 0..{classes - 1}{also}"
        )
    return numbers


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse names that do not exist, all at once, each with the nearest that does.

    Raises:
        UsageError: at least one name is unknown.
    """
    names = list(known)
    wrong = [name for name in given if name not in names]
    if wrong:
        raise UsageError([_unknown(str(name), names, what) for name in wrong])


def _unknown(name: str, known: list[str], what: str) -> Diagnostic:
    near = difflib.get_close_matches(name, known, n=1)
    few = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    help = f"did you mean '{near[0]}'?" if near else f"known are {few}"
    return Diagnostic(UNKNOWN_NAME, f"there is no {what} called '{name}'", None, (), help)


def check_shapes(given: Mapping[str, Array], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays of the wrong shape, all at once.

    Raises:
        UsageError: at least one shape differs.
    """
    wrong = [
        Diagnostic(
            BAD_ARRAY,
            f"{name} is {list(wanted[name])}, the array given is {list(array.shape)}",
            None,
        )
        for name, array in given.items()
        if array.shape != wanted[name]
    ]
    if wrong:
        raise UsageError(wrong)


def _fault(message: str, help: str | None = None) -> UsageError:
    error = UsageError.at(BAD_ARRAY, message, None, help=help)
    assert isinstance(error, UsageError)
    return error
