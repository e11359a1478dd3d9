"""When a run saves itself, and what happens if it cannot.

A checkpoint that fails is said and counted, and the run goes on: its memory has the only copy of
what was learnt since the last one, which is still whole. The next one is tried when it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from bpc import __version__
from bpc.entries import Entries
from bpc.runtime.device import Device
from bpc.spec.flat import flatten, shorten
from bpc.spec.model import Spec
from bpc.train.changes import CONTENTS
from bpc.train.checkpoint import (
    BEST,
    Checkpoint,
    Contents,
    list_checkpoints,
    prune,
    write_checkpoint,
)
from bpc.train.files import ASIDE, Files, Written, copy_file, swap_in
from bpc.train.logical import capture, model_slots, optimizer_slots, scalar_states
from bpc.train.saved import SavedPlan, SavedRun, SavedState, encode_real
from bpc.train.stopping import is_better
from bpc.train.tally import Best, Tally
from bpc.train.tensorfile import encode_tensors
from bpc.train.windows import Window, Windows

TEST_LOSS = "test_loss"


@dataclass(frozen=True, slots=True)
class Source:
    """What is saved, and where."""

    spec: Spec
    entries: Entries
    device: Device
    windows: Windows
    run: SavedRun
    contents: str  # of the data, from `digest_contents`
    folder: Path


class Keeper:
    """Saves a run's states; `told` hears of what could not be saved."""

    def __init__(self, source: Source, files: Files, told: Callable[[str], None]):
        self._source = source
        self._files = files
        self._told = told
        self._settings = source.spec.train.checkpoint
        self._values = shorten({**flatten(source.spec), CONTENTS: source.contents})
        self._best_written: Written | None = None
        self.saved_step: int | None = None
        self.failures = 0

    def is_due(self, window: Window, last: bool) -> bool:
        """Whether a checkpoint belongs after this window."""
        if self._settings is None:
            return False
        every = self._settings.every
        return last or (window.number % every == 0 if every else window.ends_epoch)

    def save(self, tally: Tally) -> bool:
        """Write a checkpoint of the step at hand, unless there is one; whether there is one now."""
        if self.saved_step == tally.step:
            return True
        run = self._source.folder
        try:
            write_checkpoint(self._files, run, self._collect(tally))
        except OSError as error:
            self._fail(f"the checkpoint of step {tally.step} could not be written", error)
            return False
        self.saved_step = tally.step
        try:
            prune(self._files, run, self._settings.keep if self._settings else 1, tally.step)
        except OSError as error:
            self._fail("an old checkpoint could not be removed", error)
        return True

    def consider(self, tally: Tally, row: Mapping[str, Any]) -> None:
        """Keep the weights if no evaluation so far was as good, by what early stopping watches or
        else by the held-out loss; `row`: what was measured."""
        if self._settings is None or not self._settings.best:
            return
        source = self._source
        stopping = source.spec.train.early_stopping
        metric = stopping.metric if stopping else TEST_LOSS
        known = tally.best.value if tally.best and tally.best.metric == metric else None
        value = row[metric]
        if not is_better(metric, value, known) or value in (inf, -inf):
            return
        model = capture(source.device, model_slots(source.entries))
        try:
            path = source.folder / BEST
            # Its name is not synced: the next checkpoint has the file too, and brings it back.
            self._best_written = swap_in(self._files, path, encode_tensors(model))
        except OSError as error:
            self._fail(f"the best model, of step {tally.step}, could not be written", error)
        else:
            tally.best = Best(tally.step, row[TEST_LOSS], metric, value)

    def resume(self, found: Checkpoint) -> None:
        """Go on from a checkpoint: its best model is the run's, whatever came after it."""
        self.saved_step = found.state.step
        path, saved = self._source.folder / BEST, found.state.files.get(BEST)
        if saved is None:
            self._files.remove(path)
            return
        self._best_written = Written(saved.bytes, saved.sha256)
        aside = path.with_name(f"{ASIDE}{path.name}")
        self._files.remove(aside)
        copy_file(self._files, found.path / BEST, aside)
        self._files.rename(aside, path)

    def _collect(self, tally: Tally) -> Contents:
        source = self._source
        device, entries = source.device, source.entries
        return Contents(
            self._describe(tally),
            capture(device, model_slots(entries)),
            capture(device, optimizer_slots(entries)),
            source.folder / BEST if self._best_written else None,
            self._best_written,
        )

    def _describe(self, tally: Tally) -> SavedState:
        source = self._source
        device, windows = source.device, source.windows
        kinds = scalar_states(source.entries)
        read = device.read_scalar
        epoch, batch = windows.source.locate(tally.step * windows.accumulate)
        return SavedState(
            format=1,
            bpc=__version__,
            step=tally.step,
            total=len(windows),
            epoch=epoch,
            batch=batch,
            integers={name: int(read(name)) for name, whole in kinds.items() if whole},
            reals={name: encode_real(read(name)) for name, whole in kinds.items() if not whole},
            loop=tally.save(),
            run=source.run,
            values=self._values,
            plan=SavedPlan(
                device=device.name,
                summary=device.summary,
                rows=device.rows,
                planned_peak_bytes=device.planned_peak_bytes,
                arena_bytes=device.arena_bytes,
            ),
            files={},
        )

    def _fail(self, what: str, error: OSError) -> None:
        self.failures += 1
        reason = error.strerror or str(error)
        where = f"{error.filename}: " if error.filename else ""
        kept = list_checkpoints(self._source.folder)
        last = f"the last checkpoint is that of step {kept[0][0]}" if kept else "there is none yet"
        self._told(f"{what}: {where}{reason}; {last}")
