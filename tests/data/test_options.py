"""Options of data sources in a spec: every kind of value is read or refused with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from data_files import IRIS, idx_bytes

from bpc import api
from bpc.data.sources.tables import FILE_OPTIONS
from bpc.errors import BpcError
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.spec import json_schema

SOUND = {
    "csv": {"file": "d.csv", "target": "kind"},
    "npz": {"file": "d.npz"},
    "npy": {"inputs": "x.npy", "target": "y.npy"},
    "idx": {"images": "x.idx", "labels": "y.idx"},
    "text": {"file": "t.txt", "context": 4},
}
ODD = """\
null
~
true
0
1
-1
2
-7
1.5
.nan
.inf
1e400
99999999999999999999999
""
" "
"\\0"
x
kind
d.csv
/
..
standard
mean
[]
{}
[[]]
[0]
[0, 0]
[kind]
[kind, length]
[[0, 2]]
[[2, 0]]
[[0, 2, 3]]
[[0, .inf]]
[null]
[true, no]
[a, b]
{a: 1}
{x: x.npy}
{x: [length]}
{target: length}
{class: width}
{x: {}}
{every: 2}
{every: 0}
{every: 1e30}
{rows: [[0, 2]]}
{rows: 3}
{mean: 1}
{std: 0}
{mean: [1, 2], std: [1, 1]}
{mean: {x: 1}}
{x: standard}
{x: {mean: 1}}
{every: 2, rows: [[0, 1]]}
*a
!!python/object:os.system {}
2024-01-01
""".splitlines()


@pytest.fixture
def files(work: Path) -> Path:
    x = np.arange(20, dtype=np.uint8).reshape(10, 2)
    y = (np.arange(10) % 3).astype(np.uint8)
    (work / "d.csv").write_text(IRIS)
    np.savez(work / "d.npz", x=x, y=y)
    for name, array in {"x": x, "y": y}.items():
        np.save(work / f"{name}.npy", array)
        (work / f"{name}.idx").write_bytes(idx_bytes(array))
    (work / "t.txt").write_text("some text, " * 20)
    return work


def write(folder: Path, source: str, options: dict[str, str]) -> None:
    inner = ", ".join(f"{key}: {value}" for key, value in {"source": source, **options}.items())
    (folder / "net.yaml").write_text(
        f"bpc: 1\ndata: {{{inner}}}\nmodel: [flatten, linear: 32]\nloss: cross_entropy\n"
        "train: {lr: 0.1}\n"
    )


@pytest.mark.parametrize(
    ("source", "option"),
    [(source, option.name) for source, options in FILE_OPTIONS.items() for option in options],
)
def test_any_value_is_read_or_refused_with_its_place(files: Path, source: str, option: str) -> None:
    for value in ODD:
        write(files, source, {**{k: str(v) for k, v in SOUND[source].items()}, option: value})
        try:
            assert api.compile("net.yaml", device="reference").data
        except BpcError as error:
            for item in error.diagnostics:
                assert item.span is not None and item.span.file == "net.yaml", value
                assert item.message and "object at 0x" not in item.message


KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def fits(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a value fits a schema, by the keywords that bpc's own schema has for data."""
    if "$ref" in schema:
        return fits(value, whole["definitions"][schema["$ref"].split("/")[-1]], whole)
    kinds = schema.get("type", [])
    allowed = [KINDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    typed = not allowed or any(
        isinstance(value, kind) and (not isinstance(value, bool) or kind == (bool,))
        for kind in allowed
    )
    return (
        typed
        and ("anyOf" not in schema or any(fits(value, one, whole) for one in schema["anyOf"]))
        and ("enum" not in schema or value in schema["enum"])
        and ("const" not in schema or value == schema["const"])
        and fits_bounds(value, schema)
        and fits_inside(value, schema, whole)
    )


def fits_bounds(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return bool(low <= value <= high and value < schema.get("exclusiveMaximum", value + 1))
    if isinstance(value, str):
        pattern = re.search(schema.get("pattern", ""), value)
        return len(value) >= schema.get("minLength", 0) and pattern is not None
    return True


def fits_inside(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> bool:
    if isinstance(value, list):
        items = schema.get("items", {})
        return len(value) >= schema.get("minItems", 0) and all(
            fits(item, items, whole) for item in value
        )
    if not isinstance(value, dict):
        return True
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    if not all(key in value for key in schema.get("required", ())):
        return False
    return all(
        fits(key, schema.get("propertyNames", {}), whole)
        and (fits(item, known[key], whole) if key in known else rest is not False)
        and (key in known or not isinstance(rest, dict) or fits(item, rest, whole))
        for key, item in value.items()
    )


def test_what_is_read_is_what_editors_are_told(files: Path) -> None:
    """No value that loads is refused by the JSON Schema."""
    whole = json_schema(layer_schemas(), loss_schemas(), OPTIMIZERS)
    schema = whole["properties"]["data"]
    assert not fits({"source": "csv", "fiel": "d.csv"}, schema, whole)
    assert not fits({"source": "csv", "split": 1.5}, schema, whole)
    loaded = 0
    for source, options in FILE_OPTIONS.items():
        for option in options:
            for value in ODD[:-4]:
                sound = {key: str(sound) for key, sound in SOUND[source].items()}
                write(files, source, {**sound, option.name: value})
                try:
                    api.compile("net.yaml", device="reference")
                except BpcError:
                    continue
                loaded += 1
                tree = yaml.safe_load((files / "net.yaml").read_text())
                assert fits(tree["data"], schema, whole), (source, option.name, value)
    assert loaded > 60


def test_another_rule_of_splitting_replaces_that_of_the_base(files: Path) -> None:
    write(files, "csv", {"file": "d.csv", "target": "kind", "split": "{every: 5}"})
    (files / "net.yaml").rename(files / "base.yaml")
    (files / "net.yaml").write_text("bpc: 1\nextends: base.yaml\ndata: {split: {rows: [[0, 3]]}}\n")
    assert api.compile("net.yaml").description.test_rows == 3
    assert api.compile("base.yaml").description.test_rows == 2
    assert api.compile("net.yaml", set={"data.split.every": 3}).description.test_rows == 3
    assert api.compile("net.yaml", set={"data.split": 0.4}).description.test_rows == 4
