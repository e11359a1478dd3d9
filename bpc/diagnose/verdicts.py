"""What a failed check says as diagnostics, in the form of every other error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bpc.errors import Diagnostic, Note

if TYPE_CHECKING:
    from bpc.diagnose.gradients import GradientCheck, ParameterCheck
    from bpc.diagnose.session import Checked

WRONG_GRADIENT = "BPC0670"
WRONG_KERNEL = "BPC0671"
SPILLS = "BPC0672"


def gradient_errors(check: GradientCheck) -> tuple[Diagnostic, ...]:
    """One for each parameter whose gradient is not within its bounds, at its layer."""
    return tuple(_say_wrong(item) for item in check.parameters if not item.ok)


def _say_wrong(item: ParameterCheck) -> Diagnostic:
    pairs = (
        ("as the code computes it", item.error, item.bound),
        ("as its rule gives it in float64", item.rule_error, item.rule_bound),
    )
    off = tuple(
        Note(f"{how}, it is off by {error:.1e} of its largest element, bound {bound:.1e}")
        for how, error, bound in pairs
        if not error <= bound
    )
    return Diagnostic(WRONG_GRADIENT, f"the gradient of {item.name} is wrong", item.span, off)


def kernel_errors(checked: Checked) -> tuple[Diagnostic, ...]:
    """One for each finding of a kernel, and one for each kernel that spills."""
    return tuple(_say_kernels(checked))


def _say_kernels(checked: Checked) -> Iterator[Diagnostic]:
    places = {}
    for kernel in checked.kernels:
        places[kernel.function] = kernel.places[0] if kernel.places else None
        for item in kernel.findings:
            message = f"{item.function} ({item.entry}, {item.run}): {item.text}"
            first, *others = item.places or (None,)
            notes = [Note(f"nodes {', '.join(item.nodes)}")]
            notes += [Note("it also serves", place) for place in others]
            yield Diagnostic(WRONG_KERNEL, message, first, tuple(notes))
    for taken in checked.spilling:
        message = f"{taken.function} on {taken.arch}: registers spill to local memory"
        size = Note(f"{taken.spill_bytes} bytes a thread")
        yield Diagnostic(SPILLS, message, places.get(taken.function), (size,))


def errors_json(found: Sequence[Diagnostic]) -> dict[str, Any]:
    """`errors` as `--json` has them; nothing where nothing was found."""
    return {"errors": [item.to_json() for item in found]} if found else {}
