"""Early stopping: which evaluation was the best, and how many since then were no better.

The state is part of a checkpoint, so that a run that goes on ends where it would have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

from bpc.spec.evaluation import is_falling
from bpc.spec.model import EarlyStoppingSpec
from bpc.types import count_of


@dataclass(frozen=True, slots=True)
class Patience:
    """`step` and `value` of the best evaluation of `metric` (None before the first that is a
    number), and how many `waited` since then in vain."""

    metric: str
    step: int = 0
    value: float | None = None
    waited: int = 0


def is_better(metric: str, value: float | None, best: float | None, least: float = 0.0) -> bool:
    """Whether a value is better than the best by more than `least`; what is no number never is."""
    if value is None or isnan(value):
        return False
    if best is None:
        return True
    return value < best - least if is_falling(metric) else value > best + least


def watch(
    before: Patience | None, settings: EarlyStoppingSpec, step: int, row: Mapping[str, Any]
) -> Patience:
    """The state after the evaluation of a step.

    Args:
        before: the state until then; one of another metric counts no more.
        settings: which metric counts, and what an improvement is.
        step: the step at hand.
        row: what was measured, by the names that `settings.metric` may have.
    """
    metric = settings.metric
    known = before if before is not None and before.metric == metric else Patience(metric)
    value = row.get(metric)
    if is_better(metric, value, known.value, settings.min_delta):
        return Patience(metric, step, value)
    return Patience(metric, known.step, known.value, known.waited + 1)


def is_over(state: Patience | None, settings: EarlyStoppingSpec | None) -> bool:
    """Whether the run has waited long enough."""
    if state is None or settings is None or state.metric != settings.metric:
        return False
    return state.waited >= settings.patience


def describe_end(state: Patience, settings: EarlyStoppingSpec, step: int) -> dict[str, Any]:
    """Why a run ended early, as its result and log say it."""
    return {
        "step": step,
        "metric": state.metric,
        "best": state.value,
        "best_step": state.step,
        "evaluations": state.waited,
        "min_delta": settings.min_delta,
    }


def say_end(end: Mapping[str, Any]) -> str:
    """`stopped early after step 120: test_loss was 0.0825 at step 84, and no better in ...`."""
    later = f"{count_of(end['evaluations'], 'evaluation')} since"
    if end["best"] is None:
        return f"stopped early after step {end['step']}: {end['metric']} was no number in {later}"
    better = f"better by more than {end['min_delta']:g}" if end["min_delta"] else "better"
    best = f"{end['metric']} was {end['best']:.6g} at step {end['best_step']}"
    return f"stopped early after step {end['step']}: {best} and not {better} in {later}"
