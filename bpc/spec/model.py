"""What a spec says once it is read: frozen, resolved, every part with its place in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bpc.errors import Span
from bpc.spec.yamlnodes import Table

Origin = Span | Literal["default"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a spec as it was read."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class InitSpec:
    """How a parameter starts: `kind` is a row of `INITS`, or `values` for a literal array.

    `values` has one option, `values`: numbers in nested tuples, a rectangle.
    """

    kind: str
    options: Mapping[str, object]
    span: Span


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where examples come from. `options` are those of the source, defaults filled in.

    For `synthetic`, `options["inputs"]` maps each input's name to its shape without the batch.
    `inputs` names the inputs that the model can read, the default one first.
    """

    source: str
    batch: int
    shuffle: bool
    options: Mapping[str, object]
    inputs: tuple[str, ...]
    spans: Mapping[str, Span]
    span: Span


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A weight that the spec declares by name, to be used by several layers."""

    name: str
    shape: tuple[int, ...]
    init: InitSpec
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """An element-wise function. `span` is the place of the formula's first character."""

    name: str
    formula: str
    arguments: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer after expansion.

    `name` is local to `scope` (`query` in `blocks.3.attention`). `inputs` are full names of
    layers, names of data inputs, or names of declared parameters. `spans` holds the options that
    were written; the others have their default. `named`: the user chose the name. `precision`
    is that of this layer alone, None where it is the run's.
    """

    op: str
    name: str
    scope: str
    inputs: tuple[str, ...]
    options: Mapping[str, object]
    spans: Mapping[str, Span]
    span: Span
    named: bool
    precision: str | None = None

    @property
    def full_name(self) -> str:
        """The name with its scope: `blocks.3.attention.query`."""
        return f"{self.scope}.{self.name}" if self.scope else self.name


@dataclass(frozen=True, slots=True)
class LossSpec:
    """The loss. `inputs` are the predictions; targets come from the data."""

    op: str
    name: str
    options: Mapping[str, object]
    spans: Mapping[str, Span]
    span: Span
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The optimizer and its options without the learning rate, which is `TrainSpec.lr`."""

    kind: str
    options: Mapping[str, object]
    spans: Mapping[str, Span]
    span: Span


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """How the learning rate goes on after warmup; `final` is the share of lr left at the end."""

    kind: str
    final: float
    span: Span
    options: Mapping[str, object] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What names of parameters may be like: `fc*.weight`, `?`, `[ab]`."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Settings of the parameters that fit any of some patterns; None: as the others have it.

    `lr` is a rate of its own, `lr_factor` a share of the run's; one of them at most is given.
    """

    patterns: tuple[Pattern, ...]
    lr: float | None
    lr_factor: float | None
    weight_decay: float | None
    span: Span


@dataclass(frozen=True, slots=True)
class ClipGroup:
    """A limit for the common norm of the gradients of some parameters."""

    pattern: Pattern
    norm: float


@dataclass(frozen=True, slots=True)
class LossScaleSpec:
    """Dynamic loss scaling for fp16: where the scale starts and how it moves."""

    start: float = 65536.0
    growth_interval: int = 2000
    backoff: float = 0.5
    growth: float = 2.0
    floor: float = 1.0


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """A checkpoint every so many steps (None: at the end of each epoch); how many are kept.

    `best`: the weights with the least held-out loss are kept too.
    """

    every: int | None = None
    keep: int = 2
    best: bool = True


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A measure of held-out rows: accuracy, top5, mae, rmse, r2."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class EarlyStoppingSpec:
    """The run ends once `patience` evaluations in a row did not improve on the best one.

    `metric` is test_loss, train_loss or `test_` and a metric; an improvement is more than
    `min_delta`. `span`: where the metric is written, None if it is not.
    """

    metric: str = "test_loss"
    patience: int = 3
    min_delta: float = 0.0
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """How training runs. With both `epochs` and `steps`, whichever ends first ends the run.

    `clip` bounds the norm of the gradients that belong to no group of `clip_groups`, `clip_value`
    each element of all. `warmup_share` of the run stands in for `warmup_steps`. `gradients` is
    `storage`, the type of the weights, or `fp32`, which is at least that. Without `metrics`, those
    that suit the target are measured. With `tensorboard`, the run writes event files too.
    """

    epochs: float | None
    steps: int | None
    precision: str
    optimizer: OptimizerSpec
    lr: float
    clip: float | None
    warmup_steps: int
    schedule: ScheduleSpec
    accumulate: int
    memory_bytes: int | None
    loss_scale: LossScaleSpec
    nonfinite: str
    log_every: int | None
    eval_every: int | None
    checkpoint: CheckpointSpec | None
    spans: Mapping[str, Span]
    span: Span
    warmup_share: float | None = None
    groups: tuple[GroupSpec, ...] = ()
    clip_groups: tuple[ClipGroup, ...] = ()
    clip_value: float | None = None
    gradients: str = "storage"
    metrics: tuple[MetricSpec, ...] | None = None
    early_stopping: EarlyStoppingSpec | None = None
    tensorboard: bool = False


def ignored_by(options: Mapping[str, object]) -> int | None:
    """The class that a loss with these options leaves out, if it does."""
    found = options.get("ignore_index")
    return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole spec, resolved. `origins` maps `train.lr` and its like to where the value is from.

    `files` are the file and what it extends, the nearest first; `tree` is all of them in one, with
    what the command line sets.
    """

    path: str
    name: str
    seed: int
    data: DataSpec
    parameters: tuple[ParameterSpec, ...]
    functions: tuple[FunctionSpec, ...]
    layers: tuple[LayerSpec, ...]
    loss: LossSpec
    train: TrainSpec
    origins: Mapping[str, Origin]
    span: Span
    files: tuple[SourceFile, ...] = ()
    tree: Table | None = field(default=None, compare=False, repr=False)

    @property
    def ignored_class(self) -> int | None:
        """The class that the loss leaves out, if it does."""
        return ignored_by(self.loss.options)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are scaled so that 16 bits hold the small ones."""
        return "fp16" in (self.train.precision, *(layer.precision for layer in self.layers))
