"""What the host knows of a run so far, and its form in a checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from bpc.errors import Span
from bpc.train.evaluate import Evaluation
from bpc.train.saved import (
    SavedBest,
    SavedEvaluation,
    SavedLoop,
    SavedPatience,
    SavedUnits,
    decode_real,
    encode_real,
)
from bpc.train.stopping import Patience
from bpc.train.units import ZeroUnits

_TIMES_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Best:
    """The evaluation with the least held-out loss, or the best one by another metric."""

    step: int
    loss: float
    metric: str
    value: float


@dataclass(slots=True)
class Tally:
    """Counters, the last evaluation and sums since then; `times` of this process alone."""

    step: int = 0
    skipped: int = 0
    traced: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    recent: list[float] = field(default_factory=list)
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))
    train_loss: float | None = None
    evaluation: Evaluation | None = None
    units: list[ZeroUnits] = field(default_factory=list)
    best: Best | None = None
    patience: Patience | None = None

    def add_time(self, seconds: float) -> None:
        """Count the time of a step."""
        self.seconds += seconds
        self.recent.append(seconds)
        self.times.append(seconds)

    def add_loss(self, loss: float) -> None:
        """Count a loss that the host has read."""
        self.loss_sum += loss
        self.loss_count += 1

    def close_losses(self) -> None:
        """Make `train_loss` the mean of the losses read since the last call, if there were any."""
        if self.loss_count:
            self.train_loss = self.loss_sum / self.loss_count
            self.loss_sum, self.loss_count = 0.0, 0

    def save(self) -> SavedLoop:
        """The form in a checkpoint."""
        best = self.best
        return SavedLoop(
            skipped=self.skipped,
            traced=self.traced,
            seconds=encode_real(self.seconds),
            loss_sum=encode_real(self.loss_sum),
            loss_count=self.loss_count,
            train_loss=_encode(self.train_loss),
            evaluation=_save_evaluation(self.evaluation) if self.evaluation else None,
            units=tuple(
                SavedUnits(layer=unit.layer, share=encode_real(unit.share)) for unit in self.units
            ),
            best=SavedBest(
                step=best.step,
                loss=encode_real(best.loss),
                metric=best.metric,
                value=encode_real(best.value),
            )
            if best
            else None,
            patience=_save_patience(self.patience) if self.patience else None,
        )


def restore_tally(step: int, loop: SavedLoop, places: Mapping[str, Span]) -> Tally:
    """The tally after `step`; `places` are those of the layers whose units are counted."""
    found, best, wait = loop.evaluation, loop.best, loop.patience
    return Tally(
        step,
        loop.skipped,
        loop.traced,
        decode_real(loop.seconds),
        decode_real(loop.loss_sum),
        loop.loss_count,
        train_loss=_decode(loop.train_loss),
        evaluation=_restore_evaluation(found) if found else None,
        units=[
            ZeroUnits(unit.layer, decode_real(unit.share), places[unit.layer])
            for unit in loop.units
            if unit.layer in places
        ],
        best=_restore_best(best) if best else None,
        patience=Patience(wait.metric, wait.step, _decode(wait.value), wait.waited)
        if wait
        else None,
    )


def _save_evaluation(found: Evaluation) -> SavedEvaluation:
    return SavedEvaluation(
        loss=encode_real(found.loss),
        accuracy=_encode(found.accuracy),
        rows=found.rows,
        metrics={name: _encode(value) for name, value in found.metrics.items()},
    )


def _restore_evaluation(found: SavedEvaluation) -> Evaluation:
    metrics = {name: _decode(value) for name, value in found.metrics.items()}
    return Evaluation(decode_real(found.loss), _decode(found.accuracy), found.rows, metrics)


def _restore_best(best: SavedBest) -> Best:
    loss = decode_real(best.loss)
    value = loss if best.value is None else decode_real(best.value)
    return Best(best.step, loss, best.metric, value)


def _save_patience(state: Patience) -> SavedPatience:
    value = _encode(state.value)
    return SavedPatience(metric=state.metric, step=state.step, value=value, waited=state.waited)


def _encode(value: float | None) -> float | str | None:
    return None if value is None else encode_real(value)


def _decode(value: float | str | None) -> float | None:
    return None if value is None else decode_real(value)
