"""Writes the tables of docs/spec.md from the code that reads a spec.

    python docs/make_tables.py

A table lies between `<!-- table: NAME -->` and `<!-- end of table -->`. Types, defaults and bounds
come from the code; the meanings of the fixed sections, which the code does not hold, are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bpc.data.describe import SOURCES
from bpc.expr import COMPOSITES, CONSTANTS, FUNCTIONS, render_formula
from bpc.ops import OPS
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.spec import INITS, SCHEDULES, codes, schema
from bpc.spec.training import GROUP
from bpc.types import LayerSchema, Option

SPEC_PAGE = Path(__file__).resolve().parent / "spec.md"
_BOUNDS = (
    *(("minimum", ">="), ("exclusiveMinimum", ">")),
    *(("maximum", "<="), ("exclusiveMaximum", "<")),
)
_LARGE = 1e9  # a bound beyond it is what machine numbers hold, which goes without saying
_TABLE = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

MEANINGS = {
    "bpc": "the version of the language; needed",
    "name": "of the network: up to 64 letters, digits, `_`, `.`, `-`; without it, the file's name",
    "seed": "of all draws: weights, order of rows, dropout, synthetic data",
    "extends": "the path of a spec that this one is laid over, relative to this file",
    "data": "where examples come from; needed",
    "parameters": "weights that several layers share",
    "functions": "element-wise functions by formula",
    "blocks": "sub-models, with arguments",
    "model": "the list of layers; needed",
    "loss": "what is made small; needed",
    "train": "how training runs",
    "data.source": "which source; needed",
    "data.batch": "rows of a batch; without it 32, or all training rows if there are fewer",
    "data.shuffle": "draw a new order of rows for every epoch",
    "train.epochs": "passes over the training rows, parts of one too; 1 if `steps` is missing too. "
    "With both, what ends first ends the run",
    "train.steps": "updates of the weights",
    "train.precision": "type of weights, activations and gradients in memory; a layer may have its "
    "own",
    "train.gradients": "type of the gradients of weights: that of the weights, or at least f32",
    "train.optimizer": "see [Optimizers](#optimizers); without it, `adam`",
    "train.lr": "learning rate; may stand in the optimizer instead. One of the two is needed",
    "train.groups": "settings of parameters by their names, see [Groups](#groups-of-parameters)",
    "train.clip": "a mapping with the keys below; without it, nothing is clipped",
    "train.clip.global_norm": "scale all gradients so that their common norm is at most this",
    "train.clip.value": "bound of each element of all gradients; alone",
    "train.clip.groups": "pattern of names: limit of the common norm of these gradients; "
    "`global_norm` limits all after that",
    "train.warmup": "a mapping with `steps` or `share`",
    "train.warmup.steps": "updates over which the rate rises linearly; without it, 0",
    "train.warmup.share": "the same as a share of all updates of the run",
    "train.schedule": "what the rate does after that, see [Schedules](#schedules)",
    "train.accumulate": "batches whose gradients one update uses",
    "train.memory": "budget for the whole arena, a [size](#sizes); without it, everything is kept",
    "train.loss_scale": "a mapping with the keys below; used with `fp16` only",
    "train.loss_scale.start": "scale of the first step",
    "train.loss_scale.growth_interval": "good updates in a row after which the scale grows",
    "train.loss_scale.backoff": "factor of the scale after a step that is not finite",
    "train.loss_scale.growth": "factor of the scale when it grows",
    "train.loss_scale.floor": "a scale below it ends the run, with the layer that overflows",
    "train.nonfinite": "when a step makes inf or NaN: end the run, or pass over the step",
    "train.log_every": "steps between two lines of `metrics.jsonl`; without it, 10",
    "train.eval_every": "steps between two evaluations; without it, one at the end of each epoch",
    "train.metrics": "what an evaluation measures beside the loss, see [Metrics](#metrics): a list "
    "of names",
    "train.early_stopping": "end the run when held-out rows tell no better; a mapping with the "
    "keys below",
    "train.early_stopping.metric": "`test_loss`, `train_loss`, or `test_` and a metric, such as "
    "`test_accuracy`",
    "train.early_stopping.patience": "evaluations in a row without an improvement that end the run",
    "train.early_stopping.min_delta": "an improvement is more than this",
    "train.tensorboard": "write event files for TensorBoard, in the run's folder; needs "
    "`pip install \"bpc[tensorboard]\"`",
    "train.checkpoint": "a mapping with the three keys below; without it, a run keeps a checkpoint "
    "only when it is interrupted, see [checkpoints](checkpoints.md)",
    "train.checkpoint.every": "steps between two checkpoints; without it, one at the end of each "
    "epoch",
    "train.checkpoint.keep": "how many checkpoints are kept, the newest",
    "train.checkpoint.best": "keep the weights of the evaluation with the least held-out loss too",
}


def embed(text: str) -> str:
    """The text with every table written anew."""
    made = make_tables()
    return _TABLE.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def make_tables() -> Mapping[str, str]:
    """All tables by name, as Markdown."""
    layers, losses = layer_schemas(), loss_schemas()
    train = {"clip": schema.Clip, "warmup": schema.Warmup, "loss_scale": schema.LossScale}
    train |= {"checkpoint": schema.Checkpoint, "early_stopping": schema.EarlyStopping}
    return {
        "top": _sections("", schema.Head, {}),
        "data": _sections("data.", schema.Data, {}),
        "train": _sections("train.", schema.Train, train),
        "layers": _kinds(layers.values()),
        "layer options": _options(layers.values()),
        "losses": _kinds(losses.values(), inputs=False),
        "loss options": _options(losses.values()),
        "optimizer options": _options(OPTIMIZERS.values()),
        "group options": _options([GROUP]),
        "schedules": _kinds(SCHEDULES.values(), inputs=False),
        "schedule options": _options(SCHEDULES.values()),
        "initialisers": _kinds(INITS.values(), inputs=False),
        "initialiser options": _options(INITS.values()),
        "sources": _options(LayerSchema(name, options) for name, options in SOURCES.items()),
        "functions": _functions(),
        "codes": _codes(),
    }


def _sections(prefix: str, model: type[BaseModel], inner: Mapping[str, type[BaseModel]]) -> str:
    """The keys of a fixed section and of the sections inside it."""
    return _table(("key", "type", "default", "meaning"), _section_rows(prefix, model, inner))


def _section_rows(
    prefix: str, model: type[BaseModel], inner: Mapping[str, type[BaseModel]]
) -> list[tuple[str, str, str, str]]:
    properties = model.model_json_schema()["properties"]
    rows = []
    for name, field in model.model_fields.items():
        path = prefix + name
        rows.append((f"`{path}`", _type(properties[name]), _default(field), MEANINGS[path]))
        if name in inner:
            rows += _section_rows(f"{path}.", inner[name], {})
    return rows


def _type(found: Mapping[str, Any]) -> str:
    """The type and bounds of a pydantic field, from its JSON Schema."""
    if "anyOf" in found:
        found = next(part for part in found["anyOf"] if part.get("type") != "null")
    if "enum" in found:
        return ", ".join(f"`{word}`" for word in found["enum"])
    if isinstance(found.get("type"), list):
        return "size"
    words = {"integer": "int", "number": "float", "boolean": "bool", "string": "text"}
    word = words.get(found.get("type", ""), "")
    bounds = [
        f"{sign} {found[key]:g}"
        for key, sign in _BOUNDS
        if key in found and found[key] < _LARGE
    ]
    return f"{word} {', '.join(bounds)}".strip()


def _default(field: Any) -> str:
    value = field.default
    if field.is_required() or value is None or isinstance(value, BaseModel):
        return ""
    return _value(value)


def _kinds(schemas: Iterable[LayerSchema], inputs: bool = True) -> str:
    """One row a kind: how many inputs, which option a bare value sets, what it is."""
    rows = []
    for row in schemas:
        cells = [f"`{row.name}`", _inputs(row), f"`{row.shorthand}`" if row.shorthand else ""]
        rows.append((*(cells if inputs else (cells[0], cells[2])), _meaning(row)))
    header = ("kind", "inputs", "bare value sets", "meaning")
    return _table(header if inputs else (header[0], *header[2:]), rows)


def _inputs(row: LayerSchema) -> str:
    least, most = row.least_inputs, row.most_inputs
    if most is None:
        return f"{least} or more"
    return str(least) if least == most else f"{least} or {most}"


def _meaning(row: LayerSchema) -> str:
    """The help of the row; of an element-wise layer without one, its formula."""
    op = OPS.get(row.name)
    if row.help or op is None or op.body is None:
        return row.help
    return f"`{render_formula(op.body, {})}`"


def _options(schemas: Iterable[LayerSchema]) -> str:
    rows = [
        (f"`{row.name}`", f"`{option.name}`", _kind(option), _option_default(option), option.help)
        for row in schemas
        for option in row.options
    ]
    return _table(("of", "option", "type", "default", "meaning"), rows)


def _kind(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{word}`" for word in option.choices)
    bounds = []
    if option.minimum is not None:
        bounds.append(f">= {option.minimum:g}")
    if option.maximum is not None:
        bounds.append(f"<= {option.maximum:g}")
    if option.below is not None:
        bounds.append(f"< {option.below:g}")
    return f"{option.kind} {', '.join(bounds)}".strip()


def _option_default(option: Option) -> str:
    if option.required:
        return "needed"
    return "" if option.default is None else _value(option.default)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, int | float):
        return f"`{value:.6g}`"
    return f"`{value}`"


def _functions() -> str:
    """What formulas may call: the functions of the table and the composed ones."""
    plain = [
        f"{name}({', '.join('abc'[: row.arity])})"
        for name, row in FUNCTIONS.items()
        if name in ("pow", "square") or row.formula.pattern.startswith(f"{name}(")
    ]
    hidden = ("uniform", "masked_mul")  # with keys of their own, and for derivatives
    shown = [item for item in plain if not item.startswith(hidden)]
    rows = [
        ("functions", ", ".join(f"`{item}`" for item in (*shown, "where(c, a, b)"))),
        ("composed", ", ".join(f"`{n}({', '.join(a)})`" for n, (a, _) in COMPOSITES.items())),
        ("constants", ", ".join(f"`{name}`" for name in CONSTANTS)),
    ]
    return _table(("what", "names"), rows)


def _codes() -> str:
    """The codes of faults in a file, with the line of meaning that each has in the code."""
    text = Path(str(codes.__file__)).read_text(encoding="utf-8")
    found = re.findall(r'^[A-Z_0-9]+ = "(BPC\d{4})"  # (.+)$', text, re.MULTILINE)
    return _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in found])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([cell.replace("|", "\\|") or " " for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


if __name__ == "__main__":
    SPEC_PAGE.write_text(embed(SPEC_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
