"""The fixed sections of a spec: data, declared parameters, loss and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from bpc.data.describe import SOURCES, describe
from bpc.errors import DataError, Note, Span, SpecError
from bpc.spec import codes
from bpc.spec import schema as models
from bpc.spec.dataoptions import places_of
from bpc.spec.entries import read_sources
from bpc.spec.evaluation import read_evaluation
from bpc.spec.model import (
    CheckpointSpec,
    DataSpec,
    EarlyStoppingSpec,
    InitSpec,
    LossScaleSpec,
    LossSpec,
    OptimizerSpec,
    ParameterSpec,
    ScheduleSpec,
    TrainSpec,
)
from bpc.spec.names import Names
from bpc.spec.options import Options, Scope, convert, read_options, refuse_key
from bpc.spec.training import check_training, read_training
from bpc.spec.words import check_name, show, suggest
from bpc.spec.yamlnodes import Entry, Node, Scalar, Table, is_null, make_table
from bpc.types import LayerSchema, Option

_DEFAULT_BATCH = 32
_SHAPE = Option("shape", "shape")
_INIT = Option("init", "init", required=True)
_LR = Option("lr", "float", minimum=0.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """One alternative of a table and what stands under it."""

    schema: LayerSchema
    body: Node | None
    span: Span


def choose(
    scope: Scope,
    node: Node,
    known: Mapping[str, LayerSchema],
    what: str,
    beside: Sequence[str] = (),
) -> Choice | None:
    """Read `adam` or `{adam: {...}}`; a fault is recorded and gives None."""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return _check_choice(scope, node.text, None, node.span, known, what)
    entries = [e for e in node.entries if e.key not in beside] if isinstance(node, Table) else []
    if len(entries) == 1:
        entry = entries[0]
        return _check_choice(scope, entry.key, entry.value, entry.key_span, known, what)
    first = next(iter(known), "...")
    notes = [Note(f"{entry.key[:40]} is here", entry.key_span) for entry in entries[:4]]
    help = f"such as {what}: {first}, or {what}: {{{first}: {{...}}}}"
    scope.errors.add(codes.WRONG_TYPE, f"{what} must name one kind", node.span, notes, help)
    return None


def _check_choice(
    scope: Scope,
    kind: str,
    body: Node | None,
    span: Span,
    known: Mapping[str, LayerSchema],
    what: str,
) -> Choice | None:
    if kind in known:
        return Choice(known[kind], body, span)
    help = suggest(kind, known)
    scope.errors.add(codes.UNKNOWN_LAYER, f"there is no {what} {show(kind)}", span, help=help)
    return None


def read_data(scope: Scope, entry: Entry | None, ignored: int | None = None) -> DataSpec | None:
    """The data section; faults, those of the source's own description too, are recorded.

    `ignored` is a class target that the loss leaves out.
    """
    if entry is None or not models.check_kind(
        entry.value, Table, "data", entry.key_span, scope.errors
    ):
        return None
    table = entry.value
    assert isinstance(table, Table)
    common = tuple(models.Data.model_fields)
    own = make_table([e for e in table.entries if e.key not in common], table.span)
    before = len(scope.errors.found)
    section = models.validate(models.Data, table, own.keys(), "data", scope.errors)
    source = table.get("source")
    if not isinstance(source, Scalar) or not isinstance(source.value, str):
        return None
    if source.text not in SOURCES:
        help = _name_apart(source.text) or suggest(source.text, SOURCES)
        message = f"there is no data source {show(source.text)}"
        scope.errors.add(codes.NOT_A_CHOICE, message, source.span, help=help)
        return None
    options = _read_source(scope, source.text, own, entry.key_span)
    if len(scope.errors.found) > before or section is None:
        return None
    return _make_data(scope, section, options, table, entry.key_span, ignored)


_ENDINGS = {".csv": "csv", ".npz": "npz", ".txt": "text"}


def _name_apart(text: str) -> str | None:
    """What to write for a file in the place of the kind of data."""
    kind = _ENDINGS.get(PurePath(text).suffix.lower())
    return f"name the file apart: {{source: {kind}, file: {text}}}" if kind else None


def _read_source(scope: Scope, source: str, own: Table, span: Span) -> Options:
    schema = LayerSchema(source, SOURCES[source])
    known = (*models.Data.model_fields, *(option.name for option in schema.options))
    good = [e for e in own.entries if e.key in known]
    for entry in own.entries:
        if entry.key not in known:
            refuse_key(scope.errors, entry, known, f"the data source {source}")
    return read_options(scope, schema, make_table(good, own.span), span, fill=False)


def _make_data(
    scope: Scope,
    section: models.Data,
    options: Options,
    table: Table,
    span: Span,
    ignored: int | None,
) -> DataSpec | None:
    values = {name: value for name, value in options.values.items() if value is not None}
    spans = places_of(table)
    try:
        found = describe(section.source, values, span, spans, ignored)
    except DataError as fault:
        scope.errors.found.extend(fault.diagnostics)
        return None
    batch = section.batch or min(_DEFAULT_BATCH, found.train_rows)
    return DataSpec(
        section.source, batch, section.shuffle, values, tuple(found.inputs), spans, span
    )


def read_parameters(scope: Scope, node: Node | None) -> tuple[ParameterSpec, ...]:
    """Declared weights; faults are recorded."""
    if node is None or is_null(node):
        return ()
    if not models.check_kind(node, Table, "parameters", node.span, scope.errors):
        return ()
    assert isinstance(node, Table)
    found: list[ParameterSpec] = []
    for entry in node.entries:
        try:
            found.append(_read_parameter(scope, entry))
        except SpecError as fault:
            scope.errors.found.extend(fault.diagnostics)
    return tuple(found)


def _read_parameter(scope: Scope, entry: Entry) -> ParameterSpec:
    name = check_name(entry.key, entry.key_span, "the name of a parameter")
    help = f"such as {name}: {{shape: [256, 10], init: he}}"
    if not isinstance(entry.value, Table):
        message = f"the parameter {name} needs a shape and an init"
        raise SpecError.at(codes.WRONG_TYPE, message, entry.value.span, help=help)
    for inner in entry.value.entries:
        if inner.key not in ("shape", "init"):
            refuse_key(scope.errors, inner, ("shape", "init"), f"the parameter {name}")
    written = entry.value.get("init")
    if written is None:
        message = f"the parameter {name} needs an init"
        raise SpecError.at(codes.MISSING_KEY, message, entry.key_span, help=help)
    init = convert(scope, _INIT, written, f"{name}: init")
    assert isinstance(init, InitSpec)
    return ParameterSpec(name, _parameter_shape(scope, entry, init), init, entry.key_span)


def _parameter_shape(scope: Scope, entry: Entry, init: InitSpec) -> tuple[int, ...]:
    assert isinstance(entry.value, Table)
    node = entry.value.get("shape")
    measured = measure_values(init)
    if node is None or is_null(node):
        if measured is not None:
            return measured
        message = f"the parameter {entry.key} needs a shape"
        raise SpecError.at(
            codes.MISSING_KEY, message, entry.key_span, help="such as shape: [256, 10]"
        )
    shape = convert(scope, _SHAPE, node, f"{entry.key}: shape")
    assert isinstance(shape, tuple)
    if measured is not None and measured != shape:
        message = f"{entry.key}: shape {list(shape)} differs from its values, {list(measured)}"
        raise SpecError.at(codes.CONFLICT, message, node.span, [Note("the values are", init.span)])
    return shape


def measure_values(init: InitSpec) -> tuple[int, ...] | None:
    """The shape of a literal array, None for every other initialiser."""
    if init.kind != "values":
        return None
    shape: list[int] = []
    value = init.options["values"]
    while isinstance(value, tuple):
        shape.append(len(value))
        value = value[0]
    return tuple(shape)


def read_loss(
    scope: Scope,
    node: Node | None,
    known: Mapping[str, LayerSchema],
    names: Names,
    last: str,
) -> LossSpec | None:
    """The loss; it takes the model's last value unless `from:` names others."""
    if node is None:
        return None
    choice = choose(scope, node, known, "loss", ("from",))
    if choice is None:
        return None
    found = read_options(scope, choice.schema, choice.body, choice.span)
    inputs: tuple[str, ...] = (last,)
    written = node.get("from") if isinstance(node, Table) else None
    if written is not None:
        try:
            sources = read_sources(written)
        except SpecError as fault:
            scope.errors.found.extend(fault.diagnostics)
            return None
        values = [names.find(source, "") for source in sources]
        inputs = tuple(value for value in values if value is not None)
    return LossSpec(choice.schema.name, "loss", found.values, found.spans, choice.span, inputs)


def read_train(
    scope: Scope,
    entry: Entry | None,
    optimizers: Mapping[str, LayerSchema],
    files: Sequence[str],
    whole: Span,
) -> TrainSpec | None:
    """The train section with defaults filled in; faults are recorded.

    `files` ranks where a value comes from, the nearest file first: of two learning rates the
    nearer counts, and two from one file must agree.
    """
    node = entry.value if entry is not None and not is_null(entry.value) else None
    span = entry.key_span if entry is not None else whole
    if node is not None and not models.check_kind(node, Table, "train", span, scope.errors):
        return None
    table = node if isinstance(node, Table) else make_table((), span)
    skip = ("optimizer", "schedule", "groups", "metrics")
    section = models.validate(models.Train, table, skip, "train", scope.errors)
    more = read_training(scope, table) | read_evaluation(scope, table)
    optimizer, inner_lr = _read_optimizer(scope, table, optimizers, span)
    schedule = _read_schedule(scope, table, span)
    if section is None or optimizer is None or schedule is None:
        return None
    spans = {e.key: e.value.span for e in table.entries}
    lr = _settle_lr(scope, section.lr, spans.get("lr"), inner_lr, optimizer, files)
    if lr is None:
        return None
    if lr[1] is not None:
        spans["lr"] = lr[1]
    made = _make_train(section, optimizer, schedule, lr[0], spans, span)
    more["early_stopping"] = _make_stopping(section.early_stopping, table)
    return check_training(scope, replace(made, **more), table)


def _make_train(
    section: models.Train,
    optimizer: OptimizerSpec,
    schedule: ScheduleSpec,
    lr: float,
    spans: Mapping[str, Span],
    span: Span,
) -> TrainSpec:
    endless = section.epochs is None and section.steps is None
    return TrainSpec(
        epochs=1.0 if endless else section.epochs,
        steps=section.steps,
        precision=section.precision,
        optimizer=optimizer,
        lr=lr,
        clip=section.clip.global_norm if section.clip else None,
        warmup_steps=section.warmup.steps or 0,
        schedule=schedule,
        accumulate=section.accumulate,
        memory_bytes=section.memory,
        loss_scale=LossScaleSpec(**section.loss_scale.model_dump()),
        nonfinite=section.nonfinite,
        log_every=section.log_every,
        eval_every=section.eval_every,
        checkpoint=_make_checkpoint(section.checkpoint),
        spans=spans,
        span=span,
        warmup_share=section.warmup.share,
        clip_value=section.clip.value if section.clip else None,
        gradients=section.gradients,
        tensorboard=section.tensorboard,
    )


def _make_checkpoint(section: models.Checkpoint | None) -> CheckpointSpec | None:
    return CheckpointSpec(**section.model_dump()) if section is not None else None


def _make_stopping(section: models.EarlyStopping | None, table: Table) -> EarlyStoppingSpec | None:
    node = table.get("early_stopping")
    if section is None or not isinstance(node, Table):
        return None
    metric = node.get("metric")
    return EarlyStoppingSpec(**section.model_dump(), span=metric.span if metric else node.span)


@dataclass(frozen=True, slots=True)
class _Rate:
    value: float
    span: Span | None


def _read_optimizer(
    scope: Scope, table: Table, known: Mapping[str, LayerSchema], span: Span
) -> tuple[OptimizerSpec | None, _Rate | None]:
    """The optimizer without its rate, and the rate that was written in it or is its default."""
    node = table.get("optimizer")
    if node is None or is_null(node):
        kind = "adam" if "adam" in known else next(iter(known))
        choice: Choice | None = Choice(known[kind], None, span)
    else:
        choice = choose(scope, node, known, "optimizer")
    if choice is None:
        return None, None
    schema = _with_rate(choice.schema)
    found = read_options(scope, schema, choice.body, choice.span)
    options = {name: value for name, value in found.values.items() if name != "lr"}
    optimizer = OptimizerSpec(schema.name, options, found.spans, choice.span)
    value = found.values.get("lr")
    rate = _Rate(value, found.spans.get("lr")) if isinstance(value, int | float) else None
    return optimizer, rate


def _with_rate(schema: LayerSchema) -> LayerSchema:
    """The optimizer's options with a rate, which may have a default but no bounds of its own."""
    given = next((option for option in schema.options if option.name == "lr"), _LR)
    rate = replace(_LR, default=given.default)
    return replace(schema, options=(*(o for o in schema.options if o.name != "lr"), rate))


def _read_schedule(scope: Scope, table: Table, span: Span) -> ScheduleSpec | None:
    node = table.get("schedule")
    if node is None or is_null(node):
        return ScheduleSpec("constant", 0.0, span)
    choice = choose(scope, node, models.SCHEDULES, "schedule")
    if choice is None:
        return None
    found = read_options(scope, choice.schema, choice.body, choice.span)
    final = found.values.get("final", 0.0)
    kept = final if isinstance(final, float) else 0.0
    return ScheduleSpec(choice.schema.name, kept, choice.span, found.values, found.spans)


def _settle_lr(
    scope: Scope,
    outer: float | None,
    outer_span: Span | None,
    inner: _Rate | None,
    optimizer: OptimizerSpec,
    files: Sequence[str],
) -> tuple[float, Span | None] | None:
    """The one learning rate of `train.lr` and the optimizer's `lr`, and where it is written."""
    if outer is None or outer_span is None:
        if inner is not None:
            return inner.value, inner.span
        message = "the learning rate is missing"
        scope.errors.add(
            codes.MISSING_KEY, message, optimizer.span, help="such as train: {lr: 1e-3}"
        )
        return None
    if inner is None or inner.span is None or inner.value == outer:
        return outer, outer_span
    ranks = _rank(outer_span, files), _rank(inner.span, files)
    if ranks[0] == ranks[1]:
        message = f"two learning rates, {outer:g} here and {inner.value:g} in {optimizer.kind}"
        notes = [Note(f"the rate of {optimizer.kind} is", inner.span)]
        scope.errors.add(codes.CONFLICT, message, outer_span, notes, "keep one of them")
        return None
    return (outer, outer_span) if ranks[0] < ranks[1] else (inner.value, inner.span)


def _rank(span: Span, files: Sequence[str]) -> int:
    """-1 for a value from the command line, else how far its file is up the chain of bases."""
    return files.index(span.file) if span.file in files else -1
