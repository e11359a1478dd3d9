"""The fixed sections of a spec as pydantic models: what is checked, and what editors are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from bpc.errors import Collector, Span
from bpc.spec import codes
from bpc.spec.found import describe, number_help
from bpc.spec.sizes import EXAMPLES, SizeFault, parse_size
from bpc.spec.words import join, show, suggest
from bpc.spec.yamlnodes import Entry, Items, Node, Scalar, Table
from bpc.types import LayerSchema, Option

_NUMBER = {"type": "number", "minimum": 0}
_GROUP = {
    "type": "object",
    "properties": {"lr": _NUMBER, "lr_factor": _NUMBER, "weight_decay": _NUMBER},
}
_MATCHED = {"type": "object", "required": ["match"]}
GROUPS = {
    "description": "pattern of parameter names: settings of its own; or a list with match: in each",
    "anyOf": [
        {"type": "object", "additionalProperties": _GROUP},
        {"type": "array", "items": _MATCHED},
        {"type": "null"},
    ],
}
CLIP_GROUPS = {
    "description": "pattern of parameter names: limit of the norm of these gradients together",
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
        {"type": "null"},
    ],
}
_METRIC = {"type": "string", "pattern": "^(accuracy|top[1-9][0-9]*|mae|rmse|r2)$"}
METRICS = {
    "description": "what each evaluation measures beside the loss",
    "anyOf": [_METRIC, {"type": "array", "items": _METRIC}, {"type": "null"}],
}
_STRICT = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
_LARGEST = 2**63 - 1


def _read_size(value: object) -> object:
    if value is None:
        return None
    try:
        return parse_size(value)
    except SizeFault as fault:
        raise PydanticCustomError(
            "size", "{why}", {"why": str(fault), "help": fault.help}
        ) from None


_Count = Annotated[int, Field(ge=1, le=_LARGEST)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Size = Annotated[
    int | None,
    BeforeValidator(_read_size),
    WithJsonSchema({"type": ["string", "integer", "null"], "description": EXAMPLES}),
]


class _Section(BaseModel):
    model_config = _STRICT


class Clip(_Section):
    """Gradient clipping; `groups` has a reader of its own."""

    global_norm: _Positive | None = None
    value: _Positive | None = None
    groups: Annotated[Any, WithJsonSchema(CLIP_GROUPS)] = None


class Warmup(_Section):
    """Updates over which the rate rises linearly to lr."""

    steps: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    share: Annotated[float, Field(ge=0, le=1)] | None = None


class LossScale(_Section):
    """Dynamic loss scaling, used with fp16."""

    start: _Positive = 65536.0
    growth_interval: _Count = 2000
    backoff: Annotated[float, Field(gt=0, lt=1)] = 0.5
    growth: Annotated[float, Field(gt=1, le=65536)] = 2.0
    floor: _Positive = 1.0


class Checkpoint(_Section):
    """What a run keeps to continue from."""

    every: _Count | None = None
    keep: _Count = 2
    best: bool = True


class EarlyStopping(_Section):
    """When a run ends before its time; `metric` has a check of its own."""

    metric: str = "test_loss"
    patience: _Count = 3
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class Train(_Section):
    """How training runs. `optimizer` and `schedule` have tables of their own."""

    epochs: _Positive | None = None
    steps: _Count | None = None
    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    gradients: Literal["storage", "fp32"] = "storage"
    optimizer: Any = None
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    groups: Annotated[Any, WithJsonSchema(GROUPS)] = None
    clip: Clip | None = None
    warmup: Warmup = Warmup()
    schedule: Any = None
    accumulate: _Count = 1
    memory: _Size = None
    loss_scale: LossScale = LossScale()
    nonfinite: Literal["stop", "skip"] = "stop"
    log_every: _Count | None = None
    eval_every: _Count | None = None
    metrics: Annotated[Any, WithJsonSchema(METRICS)] = None
    early_stopping: EarlyStopping | None = None
    tensorboard: bool = False
    checkpoint: Checkpoint | None = None


class Data(BaseModel):
    """What every data source takes; each has further options of its own."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)

    source: str
    batch: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    shuffle: bool = True


class Head(_Section):
    """The keys at the top of a spec; sections are checked one by one, so that all are."""

    bpc: Any = None
    name: Any = None
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    extends: Any = None
    data: Any = None
    parameters: Any = None
    functions: Any = None
    blocks: Any = None
    model: Any = None
    loss: Any = None
    train: Any = None


SCHEDULES: Mapping[str, LayerSchema] = {
    "constant": LayerSchema("constant", help="the rate stays"),
    "cosine": LayerSchema(
        "cosine",
        (Option("final", "float", 0.0, minimum=0.0, maximum=1.0, help="share of lr at the end"),),
        shorthand="final",
        help="the rate falls along half a cosine",
    ),
    "linear": LayerSchema(
        "linear",
        (Option("final", "float", 0.0, minimum=0.0, maximum=1.0, help="share of lr at the end"),),
        shorthand="final",
        help="the rate falls along a line",
    ),
    "step": LayerSchema(
        "step",
        (
            Option("every", "int", None, minimum=1, help="updates between two falls"),
            Option("milestones", "ints", None, minimum=1, help="updates after which it falls"),
            Option("factor", "float", 0.1, minimum=0.0, help="of the rate, at each fall"),
        ),
        shorthand="every",
        help="the rate falls by a factor every so many updates, or at milestones",
    ),
    "inverse_sqrt": LayerSchema(
        "inverse_sqrt", help="the rate falls with the root of the updates, from the end of warmup"
    ),
}

Section = TypeVar("Section", bound=BaseModel)


def validate(
    model: type[Section], table: Table, skip: Sequence[str], where: str, errors: Collector
) -> Section | None:
    """The section as its model, or None after recording every fault with its place.

    Args:
        model: the pydantic class.
        table: the section as written.
        skip: keys that other tables check.
        where: the name of the section, for messages.
        errors: where faults go.
    """
    plain = {entry.key: to_plain(entry.value) for entry in table.entries if entry.key not in skip}
    try:
        return model.model_validate(plain)
    except ValidationError as fault:
        for detail in fault.errors(include_url=False):
            _record(detail, model, table, where, errors)
        return None


def to_plain(node: Node) -> Any:
    """The node as plain Python data."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Items):
        return [to_plain(item) for item in node.items]
    return {entry.key: to_plain(entry.value) for entry in node.entries}


def _record(
    detail: ErrorDetails, model: type[BaseModel], table: Table, where: str, errors: Collector
) -> None:
    keys = [str(part) for part in detail["loc"] if _is_key(model, str(part), table)]
    entry, path = _locate(table, keys, where)
    kind = detail["type"]
    if kind == "extra_forbidden" and entry is not None:
        _record_unknown(entry, model, keys, where, errors)
    elif kind == "missing":
        message = f"{path or 'the spec'} needs the key {show(str(detail['loc'][-1]))}"
        span = entry.key_span if entry else table.span
        errors.add(codes.MISSING_KEY, message, span)
    elif entry is not None:
        code, message, help = _explain(kind, detail.get("ctx", {}), entry.value)
        if kind == "model_type":
            first = next(iter(_model_at(model, keys).model_fields))
            help = f"such as {entry.key}: {{{first}: ...}}"
        errors.add(code, f"{path} {message}", entry.value.span, help=help)
    else:
        errors.add(codes.WRONG_TYPE, f"{where or 'the spec'} must be a mapping", table.span)


def _is_key(model: type[BaseModel], part: str, table: Table) -> bool:
    """Whether a part of pydantic's location is a key, not the tag of a union's member."""
    return not part.startswith(("function-", "constrained-", "lax-or-", "nullable", "literal["))


def _locate(table: Table, keys: Sequence[str], where: str) -> tuple[Entry | None, str]:
    entry: Entry | None = None
    node: Node = table
    path = where
    for key in keys:
        found = node.find(key) if isinstance(node, Table) else None
        if found is None:
            break
        entry, node, path = found, found.value, f"{path}.{key}" if path else key
    return entry, path


def _record_unknown(
    entry: Entry, model: type[BaseModel], keys: Sequence[str], where: str, errors: Collector
) -> None:
    known = _model_at(model, keys[:-1])
    parent = ".".join(part for part in (where, *keys[:-1]) if part) or "a spec"
    message = f"{parent} has no key {show(entry.key)}"
    help = suggest(entry.key, known.model_fields, listed=16)
    errors.add(codes.UNKNOWN_KEY, message, entry.key_span, help=help)


def _model_at(model: type[BaseModel], keys: Sequence[str]) -> type[BaseModel]:
    """The model of the section that the keys lead to."""
    for key in keys:
        inner = _parts(model.model_fields[key].annotation)
        model = next(part for part in inner if issubclass(part, BaseModel))
    return model


def _parts(annotation: Any) -> list[type]:
    found = [annotation, *getattr(annotation, "__args__", ())]
    return [part for part in found if isinstance(part, type)]


_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _explain(kind: str, context: Mapping[str, Any], node: Node) -> tuple[str, str, str | None]:
    found = f"found {describe(node)}"
    if kind == "size":
        return codes.BAD_SIZE, f"must be a size, {found}: {context['why']}", context["help"]
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        text = node.text if isinstance(node, Scalar) else ""
        help = suggest(text, choices, listed=0)
        return codes.NOT_A_CHOICE, f"must be {join(choices)}, {found}", help
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return codes.OUT_OF_RANGE, f"must be {words} {context[key]:g}, {found}", None
    if kind == "finite_number":
        return codes.OUT_OF_RANGE, f"must be a finite number, {found}", None
    needed = _TYPES.get(kind, "another kind of value")
    return codes.WRONG_TYPE, f"must be {needed}, {found}", _type_help(kind, node)


def _type_help(kind: str, node: Node) -> str | None:
    if not isinstance(node, Scalar):
        return None
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(node.text.lower())
    if kind == "bool_type" and meant:
        return f"in YAML 1.2 {show(node.text)} is text; write {meant}"
    if kind == "string_type" and len(node.text) < 40:
        return f'write "{node.text}" for text'
    return number_help(node) if kind in ("int_type", "int_from_float", "float_type") else None


def check_kind(node: Node | None, kind: type, what: str, span: Span, errors: Collector) -> bool:
    """Whether a section is of the needed node type; otherwise the fault is recorded."""
    if isinstance(node, kind):
        return True
    needed = "a mapping" if kind is Table else "a list"
    found = f", found {describe(node)}" if node is not None else ""
    place = node.span if node is not None else span
    errors.add(codes.WRONG_TYPE, f"{what} must be {needed}{found}", place)
    return False
