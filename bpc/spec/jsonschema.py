"""The language of specs as JSON Schema (draft 7), which editors complete and check with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bpc.data.describe import SOURCES
from bpc.spec.inits import INITS
from bpc.spec.schema import SCHEDULES, Data, Head, Train
from bpc.types import PRECISIONS, LayerSchema, Option

Json = dict[str, Any]

_NAME: Json = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}
_DOTTED: Json = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*(\\.[A-Za-z0-9_]+)*$"}
_EXPRESSION: Json = {"type": "string", "pattern": "^\\s*\\$\\{.*\\}\\s*$"}
_NUMBERS: Json = {"type": ["number", "array"], "items": {"$ref": "#/definitions/numbers"}}
_NOTHING: Json = {"type": "null"}
_LAYERS: Json = {"type": "array", "items": {"$ref": "#/definitions/layer"}, "minItems": 1}
_SOURCES: Json = {"anyOf": [_DOTTED, {"type": "array", "items": _DOTTED, "minItems": 1}]}
_PRECISION: Json = {"enum": [*PRECISIONS, None], "description": "instead of train.precision"}
_BESIDE: Json = {"name": _NAME, "from": _SOURCES, "precision": _PRECISION}


def json_schema(
    layers: Mapping[str, LayerSchema],
    losses: Mapping[str, LayerSchema] | None = None,
    optimizers: Mapping[str, LayerSchema] | None = None,
) -> Json:
    """The schema for the layers, losses and optimizers of these tables; without one, any goes."""
    definitions: Json = {
        "numbers": _NUMBERS,
        "init": _describe_init(),
        "layer": _describe_layer(layers),
        "train": _describe_train(optimizers or {}),
    }
    definitions |= definitions["train"].pop("$defs", {})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A bpc spec",
        "type": "object",
        "properties": _describe_top(losses or {}),
        "anyOf": [{"required": ["bpc", "data", "model", "loss"]}, {"required": ["extends"]}],
        "additionalProperties": False,
        "definitions": definitions,
    }


def _describe_top(losses: Mapping[str, LayerSchema]) -> Json:
    head = Head.model_json_schema()["properties"]
    return {
        "bpc": {"const": 1, "description": "version of the language"},
        "name": {"type": ["string", "null"], "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"},
        "seed": head["seed"],
        "extends": {"type": ["string", "null"], "description": "a file that this one overrides"},
        "data": _describe_data(),
        "parameters": {**_map_names(_describe_parameter()), "type": ["object", "null"]},
        "functions": {**_map_names(_describe_function()), "type": ["object", "null"]},
        "blocks": {**_map_names(_describe_block()), "type": ["object", "null"]},
        "model": _LAYERS,
        "loss": _choose(losses, {"from": _SOURCES}),
        "train": {"$ref": "#/definitions/train"},
    }


def _map_names(value: Json) -> Json:
    names = {"pattern": _NAME["pattern"]}
    return {"type": "object", "propertyNames": names, "additionalProperties": value}


def _describe_data() -> Json:
    schema = Data.model_json_schema()
    options = {option.name: option for source in SOURCES.values() for option in source}
    schema["properties"]["source"] = {"enum": list(SOURCES)}
    schema["properties"] |= {name: describe_option(option) for name, option in options.items()}
    return {**schema, "additionalProperties": False}


def _describe_parameter() -> Json:
    shape = describe_option(Option("shape", "shape"))
    properties = {"shape": shape, "init": {"$ref": "#/definitions/init"}}
    return _close({"properties": properties, "required": ["init"]})


def _describe_function() -> Json:
    names = {"type": "array", "items": _NAME}
    formula: Json = {"type": ["string", "number"]}
    return {"anyOf": [formula, _close({"properties": {"args": names, "formula": formula}})]}


def _describe_block() -> Json:
    names = {"type": "array", "items": _NAME}
    defaults = _map_names({"anyOf": [{"type": "integer"}, _EXPRESSION, _NOTHING]})
    properties = {"args": {"anyOf": [names, defaults]}, "inputs": names, "layers": _LAYERS}
    return {"anyOf": [_LAYERS, _close({"properties": properties, "required": ["layers"]})]}


def _describe_train(optimizers: Mapping[str, LayerSchema]) -> Json:
    schema = Train.model_json_schema(ref_template="#/definitions/{model}")
    schema["properties"]["optimizer"] = _choose(optimizers, {})
    schema["properties"]["schedule"] = _choose(SCHEDULES, {})
    return schema


def _describe_layer(layers: Mapping[str, LayerSchema]) -> Json:
    """Blocks and functions add kinds of layers, so that other keys and words cannot be refused."""
    single = {name: _describe_body(schema, _BESIDE) for name, schema in layers.items()}
    composites = {
        "repeat": {"anyOf": [{"type": "integer", "minimum": 1}, _EXPRESSION]},
        "residual": _LAYERS,
        "layers": _LAYERS,
    }
    word = {"anyOf": [{"enum": list(layers)}, _NAME]}
    return {"anyOf": [word, {"type": "object", "properties": {**single, **composites, **_BESIDE}}]}


def _describe_init() -> Json:
    number = {"$ref": "#/definitions/numbers"}
    return {"anyOf": [_choose(INITS, {}), number, _NOTHING]}


def _choose(table: Mapping[str, LayerSchema], beside: Json) -> Json:
    """A word of the table, or a mapping of one such word to its options."""
    if not table:
        return {"type": ["string", "object"]}
    options = {name: _describe_body(schema, {}) for name, schema in table.items()}
    mapping: Json = _close({"properties": {**options, **beside}, "minProperties": 1})
    return {"anyOf": [{"enum": list(table)}, mapping, _NOTHING]}


def _describe_body(schema: LayerSchema, beside: Json) -> Json:
    properties = {option.name: describe_option(option) for option in schema.options}
    forms: list[Json] = [_NOTHING, _close({"properties": {**beside, **properties}})]
    required = [option.name for option in schema.options if option.required]
    if required:
        forms[1]["required"] = required
        forms.pop(0)
    forms += [properties[schema.shorthand]] if schema.shorthand else []
    about = {"description": schema.help} if schema.help else {}
    return {"anyOf": forms, **about}


def _close(schema: Json) -> Json:
    return {"type": "object", **schema, "additionalProperties": False}


def describe_option(option: Option) -> Json:
    """One option's schema, with its bounds, default and help."""
    schema = _describe_kind(option)
    if option.default is None and not option.required:
        schema = {"anyOf": [schema, _NOTHING]}
    if option.help:
        schema = {**schema, "description": option.help}
    return schema if option.default is None else {**schema, "default": option.default}


def _describe_kind(option: Option) -> Json:
    low = {} if option.minimum is None else {"minimum": option.minimum}
    high = {} if option.maximum is None else {"maximum": option.maximum}
    high |= {} if option.below is None else {"exclusiveMaximum": option.below}
    integer: Json = {"anyOf": [{"type": "integer", **low, **high}, _EXPRESSION]}
    number: Json = {"anyOf": [{"type": "number", **low, **high}, _EXPRESSION]}
    shape: Json = {"type": "array", "items": integer}
    kinds: dict[str, Json] = {
        "int": integer,
        "float": number,
        "bool": {"type": "boolean"},
        "text": {"type": "string"},
        "choice": {"enum": list(option.choices)},
        "ints": {"anyOf": [integer, shape]},
        "shape": shape,
        "shapes": _map_names(shape),
        "numbers": {"anyOf": [_NUMBERS, _map_names(_NUMBERS)]},
        "init": {"$ref": "#/definitions/init"},
        "formula": {"type": ["string", "number"]},
        "name": _DOTTED,
    }
    return kinds[option.kind]
