"""What a budget that nothing fits would need, and what would help: planned, not guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bpc.data.describe import Description
from bpc.entries import Entries, build_entries
from bpc.errors import BudgetError, Diagnostic, LiveTensor, Note, Span, SpecError
from bpc.optimizer import OPTIMIZERS
from bpc.plan.choose import NO_PLAN_FITS
from bpc.report.timeline import Moment, find_moment
from bpc.runtime.cpu.build import plan
from bpc.spec.model import Spec
from bpc.types import PRECISIONS, format_bytes


def explain_budget(
    error: BudgetError, spec: Spec, description: Description, entries: Entries
) -> BudgetError:
    """The same error with its place, what is alive at the least peak, and what would help."""
    least = error.least_feasible_bytes
    moment = find_moment(plan(entries, least).program)
    wanted, possible = format_bytes(error.budget_bytes), format_bytes(least)
    if wanted == possible:
        wanted, possible = f"{error.budget_bytes:,} B", f"{least:,} B"
    message = f"no plan fits {wanted}; the least possible is {possible}"
    notes = [Note(_describe_alive(moment)), *_list_helps(spec, description, least)]
    help = f"give at least {least} bytes" + (", or change what helps" if len(notes) > 1 else "")
    place = spec.origins.get("train.memory")
    diagnostic = Diagnostic(
        NO_PLAN_FITS, message, place if isinstance(place, Span) else None, tuple(notes), help
    )
    alive = [LiveTensor(item.name, item.nbytes, item.kind.value) for item in moment.alive]
    ordered = sorted(alive, key=lambda tensor: (-tensor.nbytes, tensor.name))
    return BudgetError([diagnostic], error.budget_bytes, least, ordered)


def _describe_alive(moment: Moment) -> str:
    classes = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in moment.classes.items())
    return f"alive at that peak, {moment}: {classes}"


def _list_helps(spec: Spec, description: Description, least: int) -> Iterator[Note]:
    """Other settings whose least peak is smaller, with both figures."""
    for words, variant in _variants(spec):
        try:
            entries = build_entries(variant, description)
        except SpecError:
            continue
        found = plan(entries, find_least=True).least_feasible_bytes
        if found < least:
            figures = f"least possible {format_bytes(least)} -> {format_bytes(found)}"
            yield Note(f"helps: {words} ({figures})")


def _variants(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Changes that leave the model as it is, each in words and as a spec."""
    train = spec.train
    if spec.data.batch > 1 and spec.data.batch % 2 == 0:
        batch, accumulate = spec.data.batch // 2, train.accumulate * 2
        smaller = replace(spec.data, batch=batch)
        window = replace(train, accumulate=accumulate)
        words = f"data.batch {batch} with train.accumulate {accumulate}"
        yield words, replace(spec, data=smaller, train=window)
    if PRECISIONS[train.precision].bits > 32:
        yield "train.precision fp32", replace(spec, train=replace(train, precision="fp32"))
    if PRECISIONS[train.precision].bits > 16:
        yield "train.precision bf16", replace(spec, train=replace(train, precision="bf16"))
    if train.optimizer.kind != "sgd":
        options = {option.name: option.default for option in OPTIMIZERS["sgd"].options}
        plain = replace(train.optimizer, kind="sgd", options=options)
        words = "train.optimizer sgd without momentum"
        yield words, replace(spec, train=replace(train, optimizer=plain))
