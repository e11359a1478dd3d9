"""The Python interface: `net = bpc.compile("spec.yaml")`, then train, predict, look inside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bpc.arrays import (
    BAD_ARRAY,
    check_shapes,
    read_batch,
    read_inputs,
    refuse_unknown,
    to_numpy,
)
from bpc.data.batches import Batches
from bpc.data.describe import Description, describe
from bpc.data.read import Dataset, read
from bpc.entries import PREDICT, Entries, build_entries
from bpc.errors import BudgetError, Diagnostic, Note, UsageError
from bpc.gradients import GradientGraph, build_forward, build_gradients, names_of
from bpc.ir import Graph
from bpc.lower import find_faults
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS, master_name
from bpc.runtime.device import Device
from bpc.runtime.select import Choice, RunGraph, Wishes, check_device, choose, graph_runner
from bpc.spec.evaluation import check_metrics, metrics_of, suiting_metrics
from bpc.spec.load import IncompleteSpec, load_spec
from bpc.spec.model import Spec
from bpc.train.checkpoint import find_model
from bpc.train.control import initial_control
from bpc.train.evaluate import evaluate
from bpc.train.files import Files, replace_file
from bpc.train.hints import find_hints
from bpc.train.initial import by_way_of_master, check_initials, initial_values
from bpc.train.logical import capture, model_slots, restore, types_of
from bpc.train.loop import Job, Resume, train
from bpc.train.progress import NoProgress, Progress
from bpc.train.saved import SavedRun, describe_origin
from bpc.train.stepper import Stepper
from bpc.train.tensorboard import check_installed
from bpc.train.tensorfile import encode_tensors, read_tensors
from bpc.train.windows import plan_windows
from bpc.types import Rows, shape_at

if TYPE_CHECKING:
    from bpc.plan.choose import Planned

Array = NDArray[Any]


def compile(
    spec: str | os.PathLike[str],
    *,
    set: Mapping[str, object] | None = None,
    device: str = "auto",
    memory: str | int | None = None,
    threads: int | None = None,
    seed: int | None = None,
    products: str | os.PathLike[str] | None = None,
) -> Net:
    """Read a spec and build its graphs.

    Args:
        spec: the YAML file.
        set: dotted keys to values that override the file, as `--set` does; text is read as YAML.
        device: auto, cuda, cpu, reference or sim.
        memory: a budget for the whole arena, `64MiB` or bytes; the same as `train.memory`.
        threads: threads of the CPU.
        seed: seed of all draws; the same as `seed` in the spec.
        products: a file of products that a library computes on a GPU; else BPC_CUBLASLT names it.

    Raises:
        SpecError: with every fault of the file.
        DataError: the data section makes no sense.
        UsageError: there is no such device.
    """
    check_device(device)
    sets, places = dict(set or {}), {}
    if memory is not None:
        sets["train.memory"], places["train.memory"] = memory, "--memory"
    if seed is not None:
        sets["seed"], places["seed"] = seed, "--seed"
    loaded = _load(os.fspath(spec), sets, places)
    description = describe_data(loaded)
    check_metrics(loaded, description)
    entries = build_entries(loaded, description)
    check_initials(entries.states_of("parameter"))
    origin = describe_origin(loaded.path, sets, device)
    file = None if products is None else Path(products)
    return Net(loaded, description, entries, device, threads, origin=origin, products=file)


def _load(path: str, sets: Mapping[str, object], places: Mapping[str, str]) -> Spec:
    """The spec; where it is at fault, what lowering says of its good parts is told as well."""
    try:
        layers, losses = layer_schemas(), loss_schemas()
        return load_spec(path, layers, losses, OPTIMIZERS, sets, places=places)
    except IncompleteSpec as fault:
        if fault.spec is None:
            raise
        found = find_faults(fault.spec, describe_data(fault.spec))
        raise fault.with_more(found) from None


def describe_data(spec: Spec) -> Description:
    """What the data of a spec looks like, and which of its classes the loss leaves out."""
    data = spec.data
    return describe(data.source, data.options, data.span, data.spans, spec.ignored_class)


class Net:
    """A compiled network. Its device, with the weights, is made when it is first needed."""

    def __init__(
        self,
        spec: Spec,
        description: Description,
        entries: Entries,
        device: str = "auto",
        threads: int | None = None,
        run_gradients: RunGraph | None = None,
        origin: SavedRun | None = None,
        products: Path | None = None,
    ):
        self.spec = spec
        self.description = description
        self.entries = entries
        self._wished = device
        self._threads = threads
        self._run_gradients = run_gradients
        self._origin = origin
        self._products = products
        self._choice: Choice | None = None
        self._data: Dataset | None = None
        self._forward: Graph | None = None
        self._gradient_graphs: dict[tuple[str, ...], GradientGraph] = {}

    @property
    def device(self) -> Device:
        """What runs the network, made with initial weights on first use.

        Raises:
            ToolError: the machine lacks what the wished device needs.
            BudgetError: no plan fits the budget.
        """
        return self._chosen().device

    @property
    def data(self) -> Dataset:
        """The spec's data, read on first use.

        Raises:
            DataError: the data is missing or unreadable.
        """
        if self._data is None:
            source = self.spec.data
            seed, ignored = self.spec.seed, self.spec.ignored_class
            self._data = read(
                source.source, source.options, source.span, seed, source.spans, ignored
            )
        return self._data

    def train(
        self,
        steps: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        stop_after: int | None = None,
        resume: Resume | None = None,
        files: Files | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Train from the weights at hand, with fresh moments and counters.

        Args:
            steps: run so many steps, in place of `train.epochs` and `train.steps`.
            run_dir: a new or empty folder for the run; without it, `runs/<name>-<n>`.
            progress: told of what goes on.
            stop_after: stop after this step as Ctrl-C does, with a checkpoint.
            resume: what to go on from in place of all that; see `bpc.continued.resume`.
            files: writes the run's files; the system's calls, unless a test gives others.
            tensorboard: a folder for event files; with `train.tensorboard` and without it, the
                folder `tensorboard` of the run.

        Returns:
            steps, device, planned_peak_bytes, arena_bytes, step_ms_median, final (train_loss,
            test_loss, test_accuracy and other metrics), best, stopped_early, checkpoint_step,
            run_dir, seconds, notes.

        Raises:
            NonFiniteError, Interrupted, DataError, UsageError, ToolError: see each.
        """
        if tensorboard is not None or self.spec.train.tensorboard:
            check_installed()
        if steps is not None and steps < 1:
            raise UsageError.at(BAD_ARRAY, f"steps is {steps}, at least 1 is needed", None)
        choice = self._chosen()
        watcher = NoProgress() if progress is None else progress
        notes = (Note(choice.reason), *self._hints()) if choice.reason else self._hints()
        notes = (*self.data.notes, *notes)
        origin = self._origin.model_copy(update={"steps": steps}) if self._origin else None
        return train(
            Job(
                *(self.spec, self.entries, choice.device, self.data, watcher, steps, run_dir),
                notes=notes,
                origin=origin,
                resume=resume,
                stop_after=stop_after,
                files=files or Files(),
                metrics=self._metrics(),
                tensorboard=None if tensorboard is None else Path(tensorboard),
            )
        )

    def stepper(self, data: Any = None, updates: int | None = None) -> Stepper:
        """Single steps, for a loop of one's own; the same steps that `train` takes.

        Args:
            data: a mapping of inputs and `target`, or a pair (x, target); without it, the training
                part of the spec's data.
            updates: how many steps the schedule of the learning rate is stretched over; without
                it, those of the spec.

        Returns:
            A `Stepper` with fresh moments and counters: `step(rows)` updates the weights from the
            rows with these numbers, `loss()` is the loss of the last step.

        Raises:
            UsageError, DataError: arrays do not fit; the spec's data cannot be read.
        """
        part = self.data.train if data is None else read_batch(data, self.description)
        if updates is None:
            source = Batches(part, self.spec.data.batch)
            updates = len(plan_windows(source, self.spec.train, None))
        made = Stepper(self.spec, self.entries, self.device, part)
        made.reset(updates)
        return made

    def evaluate(self) -> dict[str, Any]:
        """Mean loss and metrics over the held-out part, dropout off.

        Returns:
            test_loss, test_accuracy, test_rows, metrics (by name: those of `train.metrics`, or
            all that suit the target).
        """
        named, target = self.spec.train.metrics, self.description.target
        suiting = suiting_metrics(self.spec.loss, target.kind, target.classes)
        names = suiting if named is None else tuple(metric.name for metric in named)
        found = evaluate(self.device, self.data.test, self.spec.loss, names)
        return {
            "test_loss": found.loss,
            "test_accuracy": found.accuracy,
            "test_rows": found.rows,
            "metrics": dict(found.metrics),
        }

    def predict(self, x: Any) -> Array:
        """The model's result for any number of rows, dropout off.

        Args:
            x: an array [rows, ...], or a mapping of arrays where the model has several inputs.

        Raises:
            UsageError: names or shapes do not fit.
        """
        inputs = read_inputs(x, self.description)
        rows, planned = len(next(iter(inputs.values()))), self.device.rows
        self._check_rows(rows, planned)
        parts = []
        for start in range(0, max(rows, 1), planned):
            batch = {name: array[start : start + planned] for name, array in inputs.items()}
            parts.append(self._predict_batch(batch))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def gradients(self, batch: Any, of: Sequence[str]) -> dict[str, Array]:
        """d (mean loss over the batch) by each name, in training mode.

        Dropout draws as in the first step of a run.

        Args:
            batch: a mapping of inputs and `target`, or a pair (x, target); any number of rows.
            of: names of parameters, inputs, layers or any other value of the forward graph.

        Raises:
            UsageError: a name is unknown, or arrays do not fit.
        """
        arrays = read_batch(batch, self.description)
        if self._forward is None:
            self._forward = build_forward(self.spec, self.description)
        names = [of] if isinstance(of, str) else list(of)
        refuse_unknown(names, names_of(self._forward), "parameter, input or layer")
        key = tuple(names)
        if key not in self._gradient_graphs:
            self._gradient_graphs[key] = build_gradients(self._forward, self.spec, key)
        return self._run_gradient_graph(self._gradient_graphs[key], arrays)

    def parameters(self) -> dict[str, Array]:
        """A copy of every weight by name; 16-bit weights come as float32."""
        states = self.entries.states_of("parameter")
        return {state.name: self.device.read_state(state.name) for state in states}

    def load_parameters(self, values: Mapping[str, Any]) -> None:
        """Replace weights by name; those that are not named stay.

        Nothing changes unless every name and shape fits.

        Raises:
            UsageError: with every name that is unknown and every shape that differs.
        """
        states = {state.name: state for state in self.entries.states_of("parameter")}
        refuse_unknown(values, states, "parameter")
        arrays = {name: to_numpy(value, name) for name, value in values.items()}
        check_shapes(arrays, {name: shape_at(s.value.shape, 1) for name, s in states.items()})
        masters = {state.name for state in self.entries.states_of("master")}
        for name, array in arrays.items():
            self.device.write_state(name, by_way_of_master(states[name], array))
            master = master_name(name, states[name].value.dtype)
            if master in masters:
                self.device.write_state(master, array)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights by name as a safetensors file, in full precision.

        Raises:
            OSError: what the system says; a file that was there before is still whole.
        """
        slots = model_slots(self.entries)
        replace_file(Files(), Path(path), encode_tensors(capture(self.device, slots)))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Set all weights from a file of `save`, a run's folder or a checkpoint.

        Raises:
            CheckpointError: the file is damaged, or names, shapes or types differ; nothing was
                changed.
            OSError: what the system says.
        """
        slots = model_slots(self.entries)
        file = find_model(Path(path))
        restore(self.device, slots, read_tensors(file, types_of(slots)))

    def write(
        self,
        target: str = "cpu",
        out: str | os.PathLike[str] | None = None,
        dump: str | os.PathLike[str] | None = None,
        debug_lines: bool = False,
    ) -> dict[str, Any]:
        """Write the readable source, its headers, plan, manifest and a page about them.

        Args:
            target: what to write source for: cpu, cuda or all.
            out: a folder; without it, `generated/<name>`.
            dump: a folder for the text of every stage of the compiler.
            debug_lines: put `#line` at each statement, so that compilers, debuggers and the
                simulator name the spec's line.

        Returns:
            files, kernels, launches_per_step, arena_bytes, profile, target.

        Raises:
            BudgetError, UsageError, OSError: see each.
        """
        from bpc.report.artifacts import write_artifacts

        planned = self._planned()
        return write_artifacts(self.spec, self.entries, planned, target, out, dump, debug_lines)

    def plan_memory(self, svg: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """What a training step keeps in memory: sizes, lifetimes, places, reasons.

        Args:
            svg: a file for a picture of the arena over time.

        Raises:
            BudgetError: no plan fits the budget.
        """
        from bpc.report.files import write_text
        from bpc.report.memory import draw_memory, report_memory

        planned = self._planned(find_least=True)
        if svg is not None:
            write_text(Path(svg), draw_memory(planned, self.spec.name))
        notes = [{"text": n.text, "place": n.span and n.span.to_json()} for n in self._hints()]
        return {**report_memory(planned), "notes": notes}

    def inspect(
        self,
        kernel: str | None = None,
        target: str = "cpu",
        arch: str = "sm_90",
        ptx: bool = False,
        sass: bool = False,
    ) -> dict[str, Any]:
        """All kernels with what they move and compute, or one with its formulas and source.

        Args:
            kernel: a function of the text, or a kernel that it serves.
            target: cpu or cuda; for cuda also registers, spills, shared memory and the bound of
                the occupancy.
            arch: a CUDA architecture.
            ptx: of one kernel, its PTX with the lines of the source.
            sass: of one kernel, its machine code with the lines of the source.

        Raises:
            BudgetError: no plan fits the budget.
            UsageError: there is no such kernel.
            ToolError: for cuda, NVRTC or the disassembler is missing.
        """
        from bpc.report.artifacts import generate_sources
        from bpc.report.inspect import list_kernels, show_kernel

        planned, accumulate = self._planned(), self.spec.train.accumulate
        sources = generate_sources(self.spec, planned.program, target)
        if sources.cpu is not None:
            if kernel is not None:
                return show_kernel(planned, sources.cpu, kernel)
            return list_kernels(planned, sources.cpu, accumulate)
        from bpc.report.inspect_cuda import list_cuda, show_cuda

        assert sources.cuda is not None
        if kernel is not None:
            return show_cuda(planned, sources.cuda, kernel, arch, ptx, sass)
        return list_cuda(planned, sources.cuda, accumulate, arch)

    def lint(self) -> list[Diagnostic]:
        """What the spec says and is seldom meant, in order of place; see `docs/lints.md`."""
        from bpc.diagnose.lints import find_lints

        return find_lints(self.spec, self.description)

    def check_kernels(
        self, rows: int | None = None, told: Callable[[str], None] = lambda text: None
    ) -> dict[str, Any]:
        """Every CUDA kernel compiled, run with all checks in the simulator, and compared.

        Args:
            rows: of the batch that is checked; without it, 20 or what the spec has.
            told: progress.

        Returns:
            ok, rows, kernels, findings, spilling; errors where it is not ok.

        Raises:
            ToolError: NVRTC or g++ is missing.
        """
        from bpc.diagnose.session import CHECKED_ROWS, check_network, to_json
        from bpc.diagnose.verdicts import errors_json, kernel_errors

        wanted = rows or CHECKED_ROWS
        done = check_network(self.spec, self.description, self.data, wanted, told=told)
        return {"ok": done.ok, **errors_json(kernel_errors(done)), **to_json(done)}

    def close(self) -> None:
        """Free the device; it is made anew, with initial weights, if it is needed again."""
        if self._choice is not None:
            self._choice.device.close()
            self._choice = None

    def _chosen(self) -> Choice:
        if self._choice is None:
            wishes = Wishes(self.spec.train.memory_bytes, self._threads, self._products)
            with self._budget_explained():
                self._choice = choose(self._wished, self.entries, wishes)
            self._set_initial(self._choice.device)
        return self._choice

    def _metrics(self) -> tuple[str, ...]:
        return metrics_of(self.spec, self.description.target.kind)

    def _hints(self) -> tuple[Note, ...]:
        return find_hints(self.spec, self.description, self.entries)

    def _planned(self, find_least: bool = False) -> Planned:
        """The program under the spec's budget; needs no compiler."""
        from bpc.runtime.cpu.build import plan

        with self._budget_explained():
            return plan(self.entries, self.spec.train.memory_bytes, find_least)

    @contextmanager
    def _budget_explained(self) -> Iterator[None]:
        """Gives a budget that nothing fits its place and what would help."""
        try:
            yield
        except BudgetError as error:
            from bpc.report.budget import explain_budget

            raise explain_budget(error, self.spec, self.description, self.entries) from None

    def _set_initial(self, device: Device) -> None:
        states = [*self.entries.states_of("parameter"), *self.entries.states_of("master")]
        for name, value in initial_values(states, self.spec.seed).items():
            device.write_state(name, value)
        for name, number in initial_control(self.spec, 0).items():
            device.write_scalar(name, number)

    def _check_rows(self, rows: int, planned: int) -> None:
        """A result without a row axis cannot be put together from batches."""
        graph = self.entries.graphs[PREDICT]
        shape = graph.values()[graph.output("prediction")].shape
        if rows > planned and not (shape and isinstance(shape[0], Rows)):
            raise UsageError.at(
                BAD_ARRAY,
                f"the model's result has no row axis: at most {planned} rows at once, found {rows}",
                None,
                help="raise data.batch",
            )

    def _predict_batch(self, batch: Mapping[str, Array]) -> Array:
        rows = len(next(iter(batch.values())))
        for value in self.entries.graphs[PREDICT].inputs:
            self.device.write_input(value.name, batch[value.name])
        self.device.run(PREDICT, rows)
        return self.device.read_output(PREDICT, "prediction", rows)

    def _run_gradient_graph(
        self, made: GradientGraph, batch: Mapping[str, Array]
    ) -> dict[str, Array]:
        rows = len(batch["target"])
        control = {name: np.asarray(x) for name, x in initial_control(self.spec, 0).items()}
        if self._run_gradients is None:
            self._run_gradients = graph_runner(self.device, self._threads)
        values = self._run_gradients(made.graph, {**control, **self.parameters(), **batch}, rows)
        roles = dict(made.graph.outputs)
        found = {}
        for name, (value, role) in made.found.items():
            shape = shape_at(value.shape, rows)
            found[name] = np.zeros(shape) if role is None else np.array(values[roles[role]])
        return found
