"""`bpc config` says where values are from; `bpc schema` describes what specs may say."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from bpc import api
from bpc.errors import BpcError, Collector
from bpc.ops.layers import layer_schemas
from bpc.spec.listing import list_values
from bpc.spec.schema import to_plain
from bpc.spec.yamlnodes import read_yaml

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").rglob("*.yaml"), *(ROOT / "templates" / "init").glob("*.yaml")])
SMALL = [path for path in SPECS if path.stem in ("neuron", "small_conv", "blocks")]
BASE = """\
bpc: 1
data: {source: digits, batch: 64}
functions: {soft: "x * sigmoid(x)"}
blocks: {mlp: {args: [dim], layers: [linear: "${dim}", soft]}}
model: [mlp: 8, repeat: 2, layers: [relu], linear: 10]
"""


def facts(outcome: tuple[int, str, str]) -> Any:
    code, out, err = outcome
    assert (code, err) == (0, "")
    return json.loads(out)


# -- config ---------------------------------------------------------------------------------------


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A spec that has values of its own, of another file, of blocks, and defaults."""
    monkeypatch.chdir(tmp_path)
    text = BASE.replace("model: [mlp: 8, repeat: 2, layers: [relu], linear: 10]", "").strip()
    Path("base.yaml").write_text(text + "\nmodel: [mlp: 8, relu, linear: 10]\n")
    Path("net.yaml").write_text(
        "bpc: 1\nextends: base.yaml\nloss: cross_entropy\n"
        "train: {optimizer: {adam: {lr: 1e-3}}, checkpoint: {every: 5}}\n"
    )
    return "net.yaml"


def test_every_value_has_its_place(child: str, run: Any) -> None:
    words = ("config", child, "--resolved", "--set", "data.batch=32", "--memory", "1MiB")
    found = facts(run(*words, "--json"))
    assert [Path(name).name for name in found["files"]] == ["net.yaml", "base.yaml"]
    values = {item["key"]: item for item in found["values"]}

    def place(key: str) -> str | None:
        at = values[key]["place"]
        return None if at is None else f"{Path(at['file']).name}:{at['line']}"

    assert (values["train.lr"]["value"], place("train.lr")) == (1e-3, "net.yaml:4")
    assert (values["data.source"]["value"], place("data.source")) == ("digits", "base.yaml:2")
    assert values["data.batch"]["value"] == 32
    assert values["data.batch"]["place"]["file"] == "--set data.batch"
    assert values["train.memory"]["value"] == 1024**2
    assert values["train.memory"]["place"]["file"] == "--memory"
    assert (values["seed"]["value"], place("seed")) == (0, None)
    assert (values["train.checkpoint.every"]["value"], place("train.checkpoint.every")) == (
        5,
        "net.yaml:4",
    )
    assert (values["train.checkpoint.keep"]["value"], place("train.checkpoint.keep")) == (2, None)
    assert values["model"]["value"] == ["mlp1.linear1", "mlp1.soft1", "relu1", "linear1"]
    assert place("model.mlp1.linear1.out") == "base.yaml:4"
    assert place("functions.soft") == "base.yaml:3"
    written = facts(run(*words[:2], *words[3:], "--json"))["values"]
    assert written == [item for item in found["values"] if item["place"] is not None]


FULL = """\
bpc: 1
data: {source: digits, shuffle: false}
model:
  - linear: {out: 8, name: fc1}
    precision: fp32
  - relu
  - linear: 10
loss: {cross_entropy: {ignore_index: -1}}
train:
  epochs: 1
  steps: 9
  precision: fp16
  gradients: fp32
  optimizer: {sgd: {momentum: 0.9}}
  lr: 0.1
  groups:
    "fc1.*": {lr_factor: 0.1}
  clip:
    global_norm: 1
    groups:
      "fc1.*": 0.5
  warmup: {share: 0.1}
  schedule: {step: {milestones: [3, 5], factor: 0.5}}
  accumulate: 2
  memory: 10MiB
  loss_scale: {start: 2, growth_interval: 5, backoff: 0.25, growth: 2, floor: 1}
  nonfinite: skip
  log_every: 2
  eval_every: 3
  metrics:
    - accuracy
  early_stopping: {metric: test_accuracy, patience: 2, min_delta: 0.1}
  tensorboard: true
  checkpoint: {every: 2, keep: 1, best: false}
"""
WHOLE = ("train.groups", "train.clip.groups", "train.metrics", "train.schedule.milestones")
SHARED = {"train.optimizer.sgd.": "train.optimizer.", "train.schedule.step.": "train.schedule."}


def written_in_train(text: str) -> dict[str, int]:
    """The line of each value of the section, lists and groups whole, by its key in the listing."""
    found: dict[str, int] = {}

    def visit(node: Any, path: str) -> None:
        for entry in node.entries:
            key = f"{path}.{entry.key}"
            if key in ("train.optimizer", "train.schedule"):
                found[key] = entry.key_span.line
                key = f"{key}.{entry.value.keys()[0]}"
                entry = entry.value.entries[0]
            listed = next((key.replace(a, b) for a, b in SHARED.items() if a in key), key)
            if listed not in WHOLE and hasattr(entry.value, "entries"):
                visit(entry.value, key)
            else:
                found[listed] = entry.key_span.line

    visit(read_yaml(text, "full.yaml", Collector()).get("train"), "train")
    return found


def test_every_written_value_is_listed_with_its_line(tmp_path: Path, run: Any) -> None:
    (tmp_path / "full.yaml").write_text(FULL)
    values = facts(run("config", str(tmp_path / "full.yaml"), "--json"))["values"]
    places = {item["key"]: item["place"]["line"] for item in values}
    wanted = written_in_train(FULL)
    assert set(WHOLE) < set(wanted)
    assert {key: line for key, line in places.items() if key.startswith("train.")} == wanted
    assert places["model.fc1.precision"] == 4 and places["loss.ignore_index"] == 8


@pytest.mark.parametrize(
    ("schedule", "written", "defaults"),
    [
        ("{cosine: 0.1}", {"final": 0.1}, {}),
        ("cosine", {}, {"final": 0.0}),
        ("{step: {every: 3}}", {"every": 3}, {"milestones": None, "factor": 0.1}),
        ("constant", {}, {}),
    ],
)
def test_options_of_a_schedule(
    schedule: str, written: Any, defaults: Any, child: str, run: Any
) -> None:
    Path(child).write_text(
        Path(child).read_text().replace("checkpoint", f"schedule: {schedule}, checkpoint")
    )
    values = facts(run("config", child, "--json", "--resolved"))["values"]
    head = "train.schedule."
    found = [item for item in values if item["key"].startswith(head)]
    assert {i["key"].removeprefix(head): i["value"] for i in found if i["place"]} == written
    assert {i["key"].removeprefix(head): i["value"] for i in found if not i["place"]} == defaults


def test_what_set_gives_is_listed(child: str, run: Any) -> None:
    sets = {
        "train.tensorboard": "true",
        "train.metrics": "[accuracy]",
        "train.schedule.linear.final": "0.2",
    }
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    values = facts(run("config", child, "--json", *words))["values"]
    places = {item["key"]: item["place"]["file"] for item in values}
    assert places["train.tensorboard"] == "--set train.tensorboard"
    assert places["train.metrics"] == "--set train.metrics"
    assert places["train.schedule.final"] == "--set train.schedule.linear.final"


def test_config_of_a_run_is_what_it_was_trained_with(child: str, run: Any) -> None:
    words = ("train", child, "--device", "reference", "--steps", "3", "--run-dir", "run", "--quiet")
    run(*words, "--set", "train.lr=0.25", "--set", "data.batch=8")
    found = facts(run("config", "run", "--json"))
    values = {item["key"]: item for item in found["values"]}
    assert (values["train.lr"]["value"], values["train.steps"]["value"]) == (0.25, 3)
    assert values["data.batch"]["value"] == 8
    assert values["train.lr"]["place"]["file"] == "run/spec.resolved.yaml"
    checkpoint = facts(run("config", "run/checkpoints/step-000003", "--json"))
    assert checkpoint["values"] == found["values"]
    code, out, err = run("config", ".")
    assert (code, out) == (1, "") and "is not the folder of a run" in err
    code, out, err = run("config", "nothing")
    assert (code, out) == (1, "") and "nothing" in err


def test_config_as_text(child: str, run: Any) -> None:
    code, out, err = run("config", child)
    assert (code, err) == (0, "")
    assert re.search(r"^  train\.lr +0\.001 +net\.yaml:4:32$", out, re.MULTILINE)
    assert "default" not in out
    code, out, _ = run("config", child, "--resolved", "--quiet")
    assert 'train.schedule="constant"' in out.splitlines()


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_the_yaml_loads_to_the_same_values(path: Path, run: Any, tmp_path: Path) -> None:
    code, out, err = run("config", str(path), "--yaml", "--set", "data.batch=1")
    assert (code, err) == (0, "")
    (tmp_path / "again.yaml").write_text(out)
    again = api.compile(tmp_path / "again.yaml").spec
    wanted = api.compile(path, set={"data.batch": "1"}).spec
    assert [(v.key, v.value) for v in list_values(again)] == [
        (v.key, v.value) for v in list_values(wanted)
    ]


# -- schema ---------------------------------------------------------------------------------------


def allows(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """The part of JSON Schema that ours is written in."""
    if "$ref" in schema:
        return allows(root["definitions"][schema["$ref"].rsplit("/", 1)[1]], value, root)
    if "anyOf" in schema and not any(allows(part, value, root) for part in schema["anyOf"]):
        return False
    if "const" in schema and (value != schema["const"] or type(value) is not int):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = schema.get("type", [])
    if kinds and not any(_is(kind, value) for kind in ([kinds] if type(kinds) is str else kinds)):
        return False
    if isinstance(value, dict):
        return _allows_table(schema, value, root)
    if isinstance(value, list):
        items = schema.get("items", {})
        many = len(value) >= schema.get("minItems", 0)
        return many and all(allows(items, item, root) for item in value)
    if isinstance(value, str):
        shown = "pattern" not in schema or re.search(schema["pattern"], value) is not None
        return shown and len(value) >= schema.get("minLength", 0)
    return type(value) not in (int, float) or _in_range(schema, value)


def _allows_table(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if not set(schema.get("required", ())) <= set(value):
        return False
    if len(value) < schema.get("minProperties", 0):
        return False
    names = schema.get("propertyNames", {})
    for key, item in value.items():
        part = named.get(key, others)
        if part is False or not allows(names, key, root):
            return False
        if part is not True and not allows(part, item, root):
            return False
    return True


def _is(kind: str, value: Any) -> bool:
    if kind == "number":
        return type(value) in (int, float)
    if kind == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return type(value) is kinds[kind]


def _in_range(schema: dict[str, Any], value: float) -> bool:
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and value < schema.get("exclusiveMaximum", float("inf"))
        and value > schema.get("exclusiveMinimum", float("-inf"))
    )


def keywords_of(part: Any) -> set[str]:
    """Every keyword of a schema, so that none is passed over by `allows`."""
    if isinstance(part, list):
        return set().union(*(keywords_of(item) for item in part))
    if not isinstance(part, dict):
        return set()
    inner = [part.get(key) for key in ("anyOf", "items", "propertyNames", "additionalProperties")]
    inner += [*part.get("properties", {}).values(), *part.get("definitions", {}).values()]
    return set(part) | set().union(*(keywords_of(item) for item in inner))


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    import subprocess
    import sys

    words = [sys.executable, "-m", "bpc", "schema"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read(path: Path) -> Any:
    return to_plain(read_yaml(path.read_text(), str(path), Collector()))


KNOWN = {
    *("anyOf", "const", "enum", "type", "items", "minItems", "pattern", "properties", "required"),
    *("additionalProperties", "minProperties", "propertyNames", "minimum", "maximum", "$ref"),
    *("exclusiveMinimum", "exclusiveMaximum", "definitions", "minLength"),
}
ABOUT = {"$schema", "title", "description", "default"}


def test_the_check_below_knows_every_keyword(schema: dict[str, Any]) -> None:
    assert keywords_of(schema) <= KNOWN | ABOUT


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_spec_fits_the_schema(path: Path, schema: dict[str, Any]) -> None:
    spec = read(path)
    assert allows(schema, spec, schema)
    for key, value in (("trian", {}), ("model", []), ("bpc", 2), ("seed", -1), ("loss", "mes")):
        assert not allows(schema, {**spec, key: value}, schema), key
    for section, change in (("train", {"epoch": 1}), ("data", {"bacth": 1})):
        assert not allows(schema, {**spec, section: {**spec[section], **change}}, schema)


def test_the_schema_names_every_layer(schema: dict[str, Any]) -> None:
    words, options = schema["definitions"]["layer"]["anyOf"]
    assert set(layer_schemas()) <= set(words["anyOf"][0]["enum"]) & set(options["properties"])


def test_a_spec_that_loads_fits(schema: dict[str, Any], tmp_path: Path) -> None:
    """Editors may pass over faults that bpc finds, but never mark what bpc takes."""
    draw, taken, refused = random.Random(7), 0, 0
    whole = [read(path) for path in SMALL]
    for number in range(300):
        spec = copy.deepcopy(draw.choice(whole))
        for _ in range(draw.randint(1, 2)):
            mutate(spec, draw)
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps(spec))
        fits = allows(schema, spec, schema)
        try:
            api.compile(path, device="reference")
        except BpcError:
            refused += 1
        else:
            taken += 1
            assert fits, spec
    assert taken > 20 and refused > 20


@pytest.mark.parametrize(
    "key", ["name", "seed", "extends", "parameters", "functions", "blocks", "train.memory", "train"]
)
def test_a_section_may_be_empty_where_it_loads(
    key: str, schema: dict[str, Any], tmp_path: Path
) -> None:
    spec = read(ROOT / "specs" / "digits_mlp.yaml")
    section, _, inner = key.partition(".")
    spec[section] = {**spec[section], inner: None} if inner else None
    (tmp_path / "net.yaml").write_text(json.dumps(spec))
    try:
        api.compile(tmp_path / "net.yaml")
    except BpcError:
        assert not allows(schema, spec, schema)
    else:
        assert allows(schema, spec, schema)


def mutate(part: Any, draw: random.Random) -> None:
    """Change one value somewhere inside."""
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(part[key], dict | list) and draw.random() < 0.85:
            part = part[key]
            continue
        part[key] = draw.choice([None, True, 0, 1, 3, 0.5, -1, "relu", "he", [], [2], {}, "${x}"])
        return


def test_a_well_known_validator_agrees(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    draw = random.Random(3)
    for path in SPECS:
        whole = read(path)
        assert validator.is_valid(whole)
        for _ in range(20):
            spec = copy.deepcopy(whole)
            mutate(spec, draw)
            assert validator.is_valid(spec) == allows(schema, spec, schema), spec


def test_the_schema_in_a_file_and_as_json(run: Any, tmp_path: Path, schema: Any) -> None:
    path = tmp_path / "bpc.schema.json"
    assert run("schema", "-o", str(path)) == (0, f"wrote {path}\n", "")
    assert json.loads(path.read_text()) == schema
    assert facts(run("schema", "--json"))["schema"] == schema
