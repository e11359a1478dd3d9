"""What is measured on held-out rows, and when that ends a run: `metrics` and `early_stopping`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bpc.data.describe import Description
from bpc.errors import Diagnostic, Note, Span, SpecError
from bpc.spec import codes
from bpc.spec.found import describe
from bpc.spec.model import EarlyStoppingSpec, LossSpec, MetricSpec, Spec, TrainSpec
from bpc.spec.options import Scope
from bpc.spec.words import show, suggest
from bpc.spec.yamlnodes import Items, Node, Scalar, Table, is_null

CLASS_METRICS = ("accuracy", "top5")
LOGIT_METRICS = ("accuracy",)
VALUE_METRICS = ("mae", "rmse", "r2")
LOSSES = ("test_loss", "train_loss")
_NAMES = (*CLASS_METRICS, *VALUE_METRICS)
_TOP = re.compile("top([1-9][0-9]{0,8})")
_FALLING = ("mae", "rmse", "loss")
_HELD_OUT = "test_"
_HELP = "such as metrics: [accuracy, top5] for classes, or metrics: [mae, r2] for values"


def read_evaluation(scope: Scope, table: Table) -> dict[str, Any]:
    """`metrics` and what `early_stopping` watches, as fields of `TrainSpec`; faults are recorded.

    Whether a metric suits the target is checked by `check_metrics`, once the data is known.
    """
    node, stopping = table.get("metrics"), table.get("early_stopping")
    watched = stopping.get("metric") if isinstance(stopping, Table) else None
    if watched is not None and not is_null(watched):
        _check_watched(scope, watched)
    if node is None or is_null(node):
        return {}
    return {"metrics": tuple(_read_metrics(scope, node))}


def _read_metrics(scope: Scope, node: Node) -> Iterator[MetricSpec]:
    known: set[str] = set()
    for item in node.items if isinstance(node, Items) else (node,):
        if not isinstance(item, Scalar) or not isinstance(item.value, str):
            message = f"train.metrics must be a list of names, found {describe(item)}"
            scope.errors.add(codes.WRONG_TYPE, message, item.span, help=_HELP)
        elif not _is_metric(item.text):
            help = _suggest(item.text.removeprefix(_HELD_OUT), _NAMES)
            message = f"there is no metric {show(item.text)}"
            scope.errors.add(codes.NOT_A_CHOICE, message, item.span, help=help)
        elif item.text in known:
            message = f"the metric {item.text} is named twice"
            scope.errors.add(codes.CONFLICT, message, item.span, help="leave one of the two out")
        else:
            known.add(item.text)
            yield MetricSpec(item.text, item.span)


def _check_watched(scope: Scope, node: Node) -> None:
    """The metric of early stopping is a loss or, after `test_`, a metric."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        return  # said by the section's model
    text = node.text
    if text in LOSSES or (text.startswith(_HELD_OUT) and _is_metric(text[len(_HELD_OUT) :])):
        return
    message = f"train.early_stopping.metric: there is no {show(text)}"
    choices = (*LOSSES, *(f"{_HELD_OUT}{name}" for name in _NAMES))
    meant = text.replace("valid_", _HELD_OUT).replace("val_", _HELD_OUT)
    prefixed = meant if meant.startswith(_HELD_OUT) else f"{_HELD_OUT}{meant}"
    help = f"did you mean {prefixed}?" if prefixed in choices else _suggest(text, choices)
    scope.errors.add(codes.NOT_A_CHOICE, message, node.span, help=help)


def _suggest(text: str, known: tuple[str, ...]) -> str | None:
    return suggest(text, known, listed=8)


def _is_metric(name: str) -> bool:
    return name in _NAMES or _TOP.fullmatch(name) is not None


# -- what suits the data --------------------------------------------------------------------------


def top_of(name: str) -> int | None:
    """How many of the best classes a metric looks at; None for one of values."""
    match = _TOP.fullmatch(name)
    return int(match[1]) if match else (1 if name == "accuracy" else None)


def is_falling(watched: str) -> bool:
    """Whether less is better of `test_loss`, `test_accuracy` and their like."""
    return watched.split("_", 1)[1] in _FALLING


def suiting_metrics(loss: LossSpec, kind: str, classes: int | None) -> tuple[str, ...]:
    """All metrics that say something of such targets (`class` or `value`), the first ones first."""
    if kind == "class":
        return CLASS_METRICS if classes is None or classes > 5 else CLASS_METRICS[:1]
    return LOGIT_METRICS if loss.op == "bce_with_logits" else VALUE_METRICS


def metrics_of(spec: Spec, kind: str) -> tuple[str, ...]:
    """What is measured in each evaluation of a run: what the spec names, or by kind of target
    `accuracy`, or `mae` and `r2`; and what early stopping watches."""
    train = spec.train
    shares = kind == "class" or spec.loss.op == "bce_with_logits"
    names: tuple[str, ...] = ("accuracy",) if shares else ("mae", "r2")
    if train.metrics is not None:
        names = tuple(metric.name for metric in train.metrics)
    watched = train.early_stopping.metric if train.early_stopping else LOSSES[0]
    more = watched.removeprefix(_HELD_OUT)
    return names if watched in LOSSES or more in names else (*names, more)


def check_metrics(spec: Spec, description: Description) -> None:
    """Refuse metrics that say nothing of the target.

    Raises:
        SpecError: with each of them, at its place.
    """
    train = spec.train
    named = [(metric.name, metric.span) for metric in train.metrics or ()]
    stopping = train.early_stopping
    if stopping is not None and stopping.metric not in LOSSES:
        named.append((stopping.metric.removeprefix(_HELD_OUT), _place_of_watched(train, stopping)))
    faults = [_find_fault(spec, description, name, span) for name, span in named]
    found = [fault for fault in faults if fault is not None]
    if found:
        raise SpecError(found)


def _place_of_watched(train: TrainSpec, stopping: EarlyStoppingSpec) -> Span:
    return stopping.span or train.span


def _find_fault(spec: Spec, description: Description, name: str, span: Span) -> Diagnostic | None:
    target, top = description.target, top_of(name)
    suiting = suiting_metrics(spec.loss, target.kind, target.classes)
    notes = (Note(f"the loss {spec.loss.op} is", spec.loss.span),)
    if target.kind != "class" or top is None:
        if name in suiting:
            return None
        what = "classes" if target.kind == "class" else "values"
        if target.kind != "class" and suiting == LOGIT_METRICS:
            what = "logits"
        message = f"the metric {name} says nothing of {what}"
        help = f"those that do: {', '.join(suiting)}"
        return Diagnostic(codes.CONFLICT, message, span, notes, help)
    if target.classes is None or top <= target.classes:
        return None
    message = f"the metric {name} looks at {top} classes, the data has {target.classes}"
    notes = (Note("the data is", spec.data.span),)
    help = f"top{target.classes} would always be 1; such as top{max(target.classes - 1, 1)}"
    return Diagnostic(codes.OUT_OF_RANGE, message, span, notes, help)
