"""Parts of `train` that have a form of their own: groups of parameters, and what must agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bpc.errors import Note, Span, SpecError
from bpc.spec import codes
from bpc.spec.found import describe
from bpc.spec.model import ClipGroup, GroupSpec, Pattern, TrainSpec
from bpc.spec.options import Scope, convert, read_options
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table, is_null, make_table
from bpc.types import LayerSchema, Option

GROUP = LayerSchema(
    "group",
    (
        Option("lr", "float", None, minimum=0.0, help="learning rate of its own"),
        Option("lr_factor", "float", None, minimum=0.0, help="of the learning rate of the run"),
        Option("weight_decay", "float", None, minimum=0.0, help="also of biases and norms"),
    ),
    help="settings of the parameters that a pattern matches",
)
_LIMIT = Option("norm", "float", None, required=True, minimum=0.0)
_LONGEST = 256
_GROUPS_HELP = 'such as groups: {"fc*.weight": {lr_factor: 0.1, weight_decay: 0}}'
_CLIP_HELP = 'such as groups: {"fc.*": 0.5}'


def read_training(scope: Scope, table: Table) -> dict[str, Any]:
    """`groups` and `clip.groups` of a train section as fields of `TrainSpec`; faults are recorded.

    A pattern is checked against the names of parameters later, once there are any.
    """
    found: dict[str, Any] = {}
    groups, clip = table.get("groups"), table.get("clip")
    if groups is not None and not is_null(groups):
        found["groups"] = tuple(_read_groups(scope, groups))
    limits = clip.get("groups") if isinstance(clip, Table) else None
    if limits is not None and not is_null(limits):
        found["clip_groups"] = tuple(_read_limits(scope, limits))
    return found


def _read_groups(scope: Scope, node: Node) -> Iterator[GroupSpec]:
    if isinstance(node, Table):
        for entry in node.entries:
            yield from _read_group(scope, (_pattern(scope, entry.key, entry.key_span),), entry)
    elif isinstance(node, Items):
        for item in node.items:
            yield from _read_item(scope, item)
    else:
        _refuse(scope, "train.groups must be a mapping or a list", node, _GROUPS_HELP)


def _read_item(scope: Scope, item: Node) -> Iterator[GroupSpec]:
    """An entry of a list, with its patterns under `match`."""
    match = item.find("match") if isinstance(item, Table) else None
    if not isinstance(item, Table) or match is None:
        help = 'such as - {match: "fc*.weight", lr_factor: 0.1}'
        _refuse(scope, "an entry of train.groups needs match, a pattern of names", item, help)
        return
    nodes = match.value.items if isinstance(match.value, Items) else (match.value,)
    patterns = []
    for node in nodes:
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            _refuse(scope, "match must be a pattern of names", node, 'such as match: "fc*.weight"')
            return
        patterns.append(_pattern(scope, node.text, node.span))
    if not patterns:
        _refuse(scope, "match names nothing", match.value, 'such as match: "fc*.weight"')
        return
    rest = make_table([entry for entry in item.entries if entry.key != "match"], item.span)
    yield from _read_group(scope, tuple(patterns), Entry("match", match.key_span, rest))


def _pattern(scope: Scope, text: str, span: Span) -> Pattern:
    if not 0 < len(text) <= _LONGEST:
        message = f"a pattern of names has 1 to {_LONGEST} characters, found {len(text)}"
        scope.errors.add(codes.BAD_NAME, message, span)
    return Pattern(text, span)


def _read_group(scope: Scope, patterns: tuple[Pattern, ...], entry: Entry) -> Iterator[GroupSpec]:
    body = entry.value
    if not isinstance(body, Table):
        _refuse(scope, "a group of parameters needs a mapping", body, _GROUPS_HELP)
        return
    found = read_options(scope, GROUP, body, entry.key_span)
    if not found.spans:
        message = "a group of parameters changes nothing"
        help = f"give it {', '.join(option.name for option in GROUP.options)}"
        scope.errors.add(codes.MISSING_KEY, message, entry.key_span, help=help)
        return
    if all(found.values.get(name) is not None for name in ("lr", "lr_factor")):
        notes = [Note("lr is here", found.spans["lr"])]
        message = "a group has either lr or lr_factor"
        scope.errors.add(
            codes.CONFLICT, message, found.spans["lr_factor"], notes, "keep one of them"
        )
    values = [found.values.get(option.name) for option in GROUP.options]
    lr, factor, decay = (value if isinstance(value, float) else None for value in values)
    yield GroupSpec(patterns, lr, factor, decay, entry.key_span)


def _read_limits(scope: Scope, node: Node) -> Iterator[ClipGroup]:
    if not isinstance(node, Table):
        _refuse(scope, "train.clip.groups must be a mapping", node, _CLIP_HELP)
        return
    for entry in node.entries:
        pattern = _pattern(scope, entry.key, entry.key_span)
        try:
            limit = convert(scope, _LIMIT, entry.value, f"the limit of {entry.key[:40]}")
        except SpecError as fault:
            scope.errors.found.extend(fault.diagnostics)
            continue
        if limit == 0.0:
            message = f"the limit of {entry.key[:40]} must be more than 0, found 0"
            help = "lr_factor: 0 in train.groups leaves parameters as they are"
            scope.errors.add(codes.OUT_OF_RANGE, message, entry.value.span, help=help)
        assert isinstance(limit, float)
        yield ClipGroup(pattern, limit)


def _refuse(scope: Scope, message: str, node: Node, help: str) -> None:
    text = f"{message}, found {describe(node)}"
    scope.errors.add(codes.WRONG_TYPE, text, node.span, help=help)


# -- what must agree ------------------------------------------------------------------------------


def check_training(scope: Scope, train: TrainSpec, table: Table) -> TrainSpec:
    """The section itself, after recording settings that exclude or need each other."""
    _check_nesterov(scope, train)
    _check_steps(scope, train)
    _check_pair(scope, table, "warmup", ("steps", "share"))
    for other in ("global_norm", "groups"):
        _check_pair(scope, table, "clip", ("value", other))
    if train.precision == "fp64" and train.gradients == "fp32":
        message = "gradients: fp32 would be narrower than the weights, which are fp64"
        span = train.spans["gradients"]
        scope.errors.add(codes.CONFLICT, message, span, help="leave train.gradients out")
    _check_floor(scope, train, table)
    return train


def _check_floor(scope: Scope, train: TrainSpec, table: Table) -> None:
    """A floor that is written lies at most where the scale starts."""
    node, scale = table.get("loss_scale"), train.loss_scale
    entry = node.find("floor") if isinstance(node, Table) else None
    if entry is not None and scale.floor > scale.start:
        message = f"train.loss_scale.floor is {scale.floor:g}, the scale starts at {scale.start:g}"
        help = f"a floor of at most {scale.start:g}, or a higher start"
        scope.errors.add(codes.CONFLICT, message, entry.value.span, help=help)


def _check_pair(scope: Scope, table: Table, section: str, keys: tuple[str, str]) -> None:
    """Record that two keys of a section are both given."""
    node = table.get(section)
    entries = [node.find(key) for key in keys] if isinstance(node, Table) else []
    first, second = (e if e and not is_null(e.value) else None for e in entries or (None, None))
    if first is None or second is None:
        return
    message = f"train.{section} has either {keys[0]} or {keys[1]}"
    notes = [Note(f"{keys[0]} is here", first.key_span)]
    scope.errors.add(codes.CONFLICT, message, second.key_span, notes, "keep one of them")


def _check_nesterov(scope: Scope, train: TrainSpec) -> None:
    options = train.optimizer.options
    if options.get("nesterov") and not options.get("momentum"):
        message = f"{train.optimizer.kind}: nesterov needs a momentum"
        span = train.optimizer.spans["nesterov"]
        scope.errors.add(codes.CONFLICT, message, span, help="such as momentum: 0.9")


def _check_steps(scope: Scope, train: TrainSpec) -> None:
    """A step schedule has one of `every` and `milestones`, and milestones ascend."""
    schedule = train.schedule
    if schedule.kind != "step":
        return
    every, milestones = schedule.options.get("every"), schedule.options.get("milestones")
    if (every is None) == (milestones is None):
        message = "the schedule step needs one of every and milestones"
        help = "such as {step: {every: 100, factor: 0.5}} or {step: {milestones: [100, 150]}}"
        scope.errors.add(codes.CONFLICT, message, schedule.span, help=help)
    if isinstance(milestones, tuple) and list(milestones) != sorted(set(milestones)):
        message = f"step: milestones must ascend, found {list(milestones)}"
        scope.errors.add(codes.OUT_OF_RANGE, message, schedule.span)
