"""The training loop: windows of batches in, weights and metrics out."""

from __future__ import annotations

import os
import shlex
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bpc.clipping import norm_name
from bpc.data.batches import Batches
from bpc.data.dataset import Dataset, Facts
from bpc.entries import PREDICT, Entries
from bpc.errors import DataError, Interrupted, Note, Span
from bpc.runtime.device import Device
from bpc.spec.model import Spec
from bpc.train.changes import digest_contents
from bpc.train.checkpoint import Checkpoint, load_checkpoint
from bpc.train.control import FROM_SPEC, initial_control
from bpc.train.evaluate import evaluate
from bpc.train.files import Files
from bpc.train.interrupt import StopRequest
from bpc.train.keeper import Keeper, Source
from bpc.train.logical import capture, model_slots
from bpc.train.metrics import MetricsFile
from bpc.train.nonfinite import Fault, find_fault, find_unexplained, make_error
from bpc.train.outcome import describe_start, limit_steps, make_notes
from bpc.train.overflow import find_overflow, layer_of, list_backoffs, make_floor_error
from bpc.train.pipeline import Pipeline, Settled
from bpc.train.progress import Progress
from bpc.train.run_folder import RunFolder, make_run_folder
from bpc.train.saved import SavedRun
from bpc.train.stepper import Stepper, mean_loss, terms_of
from bpc.train.stopping import describe_end, is_over, watch
from bpc.train.tally import Tally, restore_tally
from bpc.train.tensorboard import FOLDER, Events, NoEvents, open_events
from bpc.train.units import UnitCounter
from bpc.train.windows import Window, Windows, plan_windows

LOG_EVERY = 10
NOT_EVALUATED = {"test_loss": None, "test_accuracy": None}
INTERRUPTED = "BPC0003"  # the command line prints this code's message as one line
_MOST_OVERFLOWS_TRACED = 8


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint that a run goes on from, and its folder, which this process has locked."""

    folder: RunFolder
    found: Checkpoint


@dataclass(frozen=True, slots=True)
class Job:
    """What a run is given: a program on a device whose weights are set, data, and wishes.

    `origin` is what a checkpoint says of the run's start. The run stops after window `stop_after`
    as if it had been interrupted there. `metrics` are measured in each evaluation.
    `tensorboard` is a folder for event files, where they are wished elsewhere than in the run's.
    """

    spec: Spec
    entries: Entries
    device: Device
    data: Dataset
    progress: Progress
    steps: int | None = None
    run_dir: str | os.PathLike[str] | None = None
    notes: tuple[Note, ...] = ()
    origin: SavedRun | None = None
    resume: Resume | None = None
    stop_after: int | None = None
    metrics: tuple[str, ...] = ()
    tensorboard: Path | None = None
    files: Files = field(default_factory=Files)


def train(job: Job) -> dict[str, Any]:
    """Train from the weights that the device holds, with fresh moments and counters, or go on.

    Returns:
        The facts of the run, as `--json` prints them.

    Raises:
        NonFiniteError: a step made inf or NaN, and the spec says to stop there; the weights are
            those before it.
        Interrupted: a signal asked for the end; the step at hand was finished and all is saved.
        UsageError: the folder for the run is not empty.
        CheckpointError: the checkpoint to go on from does not fit the network.
    """
    resume = job.resume
    name, wished = job.spec.name, job.run_dir
    folder = resume.folder if resume else make_run_folder(name, wished, job.files)
    try:
        return _Run(job, folder).go()
    finally:
        folder.release()


class _Run:
    """One run with its folder open."""

    def __init__(self, job: Job, folder: RunFolder):
        self.job = job
        self.folder = folder
        self.device = job.device
        spec = job.spec
        part = job.data.train
        source, foretold = (
            Batches(part, spec.data.batch, spec.seed, spec.data.shuffle) for _ in range(2)
        )
        self.windows: Windows = plan_windows(source, spec.train, job.steps)
        self.stepper = Stepper(spec, job.entries, job.device, part)
        told = replace(self.windows, source=foretold)
        self.pipeline = Pipeline(self.stepper, job.device, self.windows, told)
        self.units = UnitCounter(job.entries.graphs[PREDICT], job.data.test)
        self.norms = {s.name: norm_name(s.name) for s in job.entries.states_of("parameter")}
        self.log_every = spec.train.log_every or LOG_EVERY
        self.tally = Tally()
        self.troubles: list[str] = []
        path = str(Path(spec.path).absolute())
        origin = job.origin or SavedRun(spec=spec.path, absolute=path, steps=job.steps)
        contents = digest_contents(job.data)
        kept = Source(spec, job.entries, job.device, self.windows, origin, contents, folder.path)
        self.keeper = Keeper(kept, job.files, self._tell)
        self.metrics = MetricsFile(folder.metrics_path, self._tell)
        self.events: Events = NoEvents()

    def go(self) -> dict[str, Any]:
        """Run to the end, or to what stops it; the folder says which."""
        self.stepper.reset(len(self.windows))
        if self.job.resume is not None:
            self._restore(self.job.resume.found)
        try:
            self._open()
            self.job.progress.on_start(self._describe())
            self._tell_of_data()
            with StopRequest() as stop:
                self._steps(stop)
        except DataError as error:
            raise self._stop_at_record(error) from None
        finally:
            self.stepper.close()
            self.metrics.close()
            self.events.close()
        return self._finish("done")

    def _restore(self, found: Checkpoint) -> None:
        """Set everything as it was; only what follows from the spec is the spec's."""
        state, spec = found.state, self.job.spec
        load_checkpoint(found, self.job.entries, self.device)
        fresh = FROM_SPEC
        if state.values.get("train.precision") != f'"{spec.train.precision}"':
            fresh = (*fresh, "control.scale", "control.good")
        initial = initial_control(spec, len(self.windows))
        for name in fresh:
            self.device.write_scalar(name, initial[name])
        self.tally = restore_tally(state.step, state.loop, self.units.places())

    def _open(self) -> None:
        """Open all that the run writes to, and only then change what its folder has."""
        self.events = open_events(self._events_folder(), self.tally.step)
        self.metrics.open(self.tally.step)
        self.folder.begin(limit_steps(self.job.spec, self.job.steps), self.device.companions)
        if self.job.resume is not None:
            self.keeper.resume(self.job.resume.found)

    def _tell_of_data(self) -> None:
        """Keep what the training part said of the data, and log which rows were left out."""
        data = self.job.data
        if data.facts != Facts():
            self.folder.write_data(data.facts.to_json())
        if data.left_out:
            row = {"step": 0, "event": "rows left out", "rows": data.left_out}
            self.metrics.write({**row, "notes": [note.text for note in data.notes]})

    def _stop_at_record(self, error: DataError) -> Exception:
        """The error of a row that cannot be used, after saving the weights."""
        self.metrics.write({"step": self.tally.step, "event": "stopped"})
        diagnostic = error.diagnostics[0]
        kept = Note(f"the weights after step {self.tally.step} are in {self.folder.path}")
        self._finish("bad-record", error=diagnostic.to_json())
        return DataError([replace(diagnostic, notes=(*diagnostic.notes, kept))])

    def _steps(self, stop: StopRequest) -> None:
        """Settle window after window; whatever touches the device's states waits for its rest."""
        total = len(self.windows)
        if self._is_over():
            return
        run = self.pipeline.run(self.tally.step, lambda window: self._pauses(window, stop))
        with closing(run):
            for settled in run:
                window = settled.window
                self._settle(settled)
                self._report(settled, total)
                last = window.number == total or self._is_over()
                if last and window.number < total:
                    self._tell_of_early_end()
                if self.keeper.is_due(window, last):
                    self.keeper.save(self.tally)
                if last:
                    return
                if settled.rests and (stop.asked or window.number == self.job.stop_after):
                    raise self._interrupt()

    def _pauses(self, window: Window, stop: StopRequest) -> bool:
        """Whether the device has to rest after a window that is not the run's last one."""
        due = self._is_evaluated(window) or self.keeper.is_due(window, last=False)
        return due or stop.asked or window.number == self.job.stop_after

    def _is_evaluated(self, window: Window) -> bool:
        every = self.job.spec.train.eval_every
        return window.number % every == 0 if every else window.ends_epoch

    def _events_folder(self) -> Path | None:
        wished = self.folder.path / FOLDER if self.job.spec.train.tensorboard else None
        return self.job.tensorboard or wished

    def _is_over(self) -> bool:
        """Whether early stopping ends the run before its last step."""
        stopping = self.job.spec.train.early_stopping
        return self.tally.step < len(self.windows) and is_over(self.tally.patience, stopping)

    def _early_end(self) -> dict[str, Any] | None:
        stopping, state = self.job.spec.train.early_stopping, self.tally.patience
        if stopping is None or state is None or not self._is_over():
            return None
        return describe_end(state, stopping, self.tally.step)

    def _tell_of_early_end(self) -> None:
        end = self._early_end()
        assert end is not None, "the run is over"
        self.metrics.write({**end, "event": "stopped early"})

    def _settle(self, settled: Settled) -> None:
        """Count a window, and look into one that is not finite."""
        self.tally.step = settled.window.number
        self.tally.add_time(settled.seconds)
        if not settled.moved:
            self._handle_bad(settled.window)

    # -- steps that are not finite ----------------------------------------------------------------

    def _handle_bad(self, window: Window) -> None:
        """Stop, or count the skipped step and say what overflowed; the device rests."""
        train, tally = self.job.spec.train, self.tally
        tally.skipped += 1
        scaled, scale = self.job.spec.scales_loss, self.device.read_scalar("control.scale")
        hopeless = not scaled or scale < train.loss_scale.floor
        if train.nonfinite == "stop" and hopeless:
            raise self._stop_at(window, self._find(window))
        row: dict[str, Any] = {"step": window.number, "event": "skipped", "epoch": window.epoch}
        first = find_overflow(self.job.entries, self.device)
        if first is not None:
            row |= {"parameter": first.name, "layer": layer_of(first), "place": str(first.span)}
        if tally.traced < _MOST_OVERFLOWS_TRACED:
            tally.traced += 1
            fault = self._find(window)
            row |= {"node": fault.node, "layer": fault.layer, "place": str(fault.span)}
            row["element"] = list(fault.element)
            if fault.batch is not None:
                row["batch"] = fault.batch + 1
                row["row"] = fault.data_row([batch.tolist() for batch in window.batches])
            text = f"step {window.number}, skipped: {fault.describe()} ({fault.span})"
            self.job.progress.on_note(text)
        self.metrics.write({**row, "scale": scale})

    def _find(self, window: Window) -> Fault:
        job, part = self.job, self.job.data.train
        batches = [{name: values[rows] for name, values in part.items()} for rows in window.batches]
        span: Span = job.spec.data.span
        for backoff in list_backoffs(job.spec, self.device.read_scalar("control.scale")):
            fault = find_fault(job.entries, self.device, batches, span, backoff)
            if fault is not None:
                return fault
        return find_unexplained(job.entries, self.device, job.spec.loss.span)

    def _stop_at(self, window: Window, fault: Fault) -> Exception:
        """The error of a step that is not finite, after saving the weights."""
        rows = [batch.tolist() for batch in window.batches]
        kept = f"the weights before this step are in {self.folder.path}"
        error = make_error(fault, window.number, rows, kept)
        scale = self.device.read_scalar("control.scale")
        if self.job.spec.scales_loss:
            first = find_overflow(self.job.entries, self.device)
            error = make_floor_error(self.job.spec, fault, first, window.number, scale, kept)
        self.metrics.write({"step": window.number, "event": "stopped", "node": fault.node})
        diagnostic = error.diagnostics[0]
        found = {"node": fault.node, "element": list(fault.element), "value": fault.value}
        self._finish("non-finite", **found, error=diagnostic.to_json())
        return error

    def _interrupt(self) -> Exception:
        saved = self.keeper.save(self.tally)
        self._finish("interrupted")
        step, total, path = self.tally.step, len(self.windows), self.folder.path
        message = f"interrupted after step {step} of {total}"
        if saved:
            message += f"; go on with: bpc train --resume {shlex.quote(str(path))}"
        else:
            message += f"; its checkpoint could not be written, the weights are in {path}"
        return Interrupted.at(INTERRUPTED, message, None)

    def _tell(self, text: str) -> None:
        """Say what went wrong while the run goes on, and keep it for the end."""
        self.troubles.append(text)
        self.job.progress.on_note(text)

    # -- what people and files are told -----------------------------------------------------------

    def _report(self, settled: Settled, total: int) -> None:
        """Log and evaluate where it is time; the host reads the loss at no other time."""
        window = settled.window
        due = window.number == total or self._is_evaluated(window)
        loss: float | None = None
        if due or window.number % self.log_every == 0:
            row = self._read(settled)
            loss = row["train_loss"]
            if due:
                self._evaluate(row)
            self.metrics.write(row)
            self.events.write(row)
        self.job.progress.on_step(window.number, total, loss)

    def _read(self, settled: Settled) -> dict[str, Any]:
        """The metrics of one step."""
        window, read, tally = settled.window, settled.values.read_scalar, self.tally
        loss = mean_loss(settled.values)
        tally.add_loss(loss)
        row = {
            "step": window.number,
            "epoch": window.epoch,
            "train_loss": loss,
            "terms": terms_of(settled.values),
            "lr": read("control.lr"),
            "gradient_norm": read("control.norm"),
            "scale": read("control.scale"),
            "skipped": tally.skipped,
            "step_ms": 1000 * sum(tally.recent) / len(tally.recent),
            "gradient_norms": {name: read(norm) for name, norm in self.norms.items()},
        }
        tally.recent.clear()
        return row

    def _evaluate(self, row: dict[str, Any]) -> None:
        """Add what the held-out part says to a row, and show it."""
        tally, spec, held_out = self.tally, self.job.spec, self.job.data.test
        tally.evaluation = evaluate(self.device, held_out, spec.loss, self.job.metrics)
        tally.units = self.units.count(self._read_parameters())
        row |= tally.evaluation.results()
        row["zero_units"] = {unit.layer: unit.share for unit in tally.units}
        tally.close_losses()
        seen = {**row, "train_loss": tally.train_loss}
        self.keeper.consider(tally, seen)
        if spec.train.early_stopping is not None:
            tally.patience = watch(tally.patience, spec.train.early_stopping, tally.step, seen)
        self.job.progress.on_evaluation(seen)

    def _read_parameters(self) -> dict[str, Any]:
        return {name: self.device.read_state(name) for name in self.norms}

    def _describe(self) -> dict[str, Any]:
        """What `on_start` is told."""
        return {
            **describe_start(self.job.spec, self.job.entries, self.device),
            "steps": len(self.windows),
            "run_dir": str(self.folder.path),
            "resumed_after": self.tally.step if self.job.resume else None,
            "metrics": self.job.metrics,
        }

    def _finish(self, status: str, **more: object) -> dict[str, Any]:
        """Save weights and result."""
        tally, evaluation, best = self.tally, self.tally.evaluation, self.tally.best
        result: dict[str, Any] = {
            "status": status,
            "steps": tally.step,
            "skipped_steps": tally.skipped,
            "device": self.device.name,
            "device_summary": self.device.summary,
            "planned_peak_bytes": self.device.planned_peak_bytes,
            "arena_bytes": self.device.arena_bytes,
            "step_ms_median": 1000 * median(tally.times) if tally.times else None,
            "final": {
                "train_loss": tally.train_loss,
                **(evaluation.results() if evaluation else NOT_EVALUATED),
            },
            "test_rows": len(self.job.data.test["target"]),
            "best": best and {"step": best.step, "test_loss": best.loss, best.metric: best.value},
            "stopped_early": self._early_end() if status == "done" else None,
            "checkpoint_step": self.keeper.saved_step,
            "rows_left_out": self.job.data.left_out,
            "run_dir": str(self.folder.path),
            "seconds": tally.seconds,
            "notes": make_notes(self.job.notes, tally, self.troubles),
            **more,
        }
        try:
            self.folder.write_model(capture(self.device, model_slots(self.job.entries)))
            self.folder.write_result(result)
        except OSError as error:
            if status == "done":
                raise
            self._tell(f"{error.filename or self.folder.path}: {error.strerror}")
        return result
