from __future__ import annotations

import time
from pathlib import Path

import pytest
from spec_tables import HEAD, LAYERS, LOSSES, OPTIMIZERS, TAIL, faults, load

from bpc.errors import Span, SpecError
from bpc.spec import Spec, TrainSpec, json_schema, load_spec

SKETCH = """bpc: 1
name: mnist-mlp
data: {source: mnist5k, batch: 128, shuffle: true}
model:
  - linear: {out: 256, init: he}
  - relu
  - {repeat: 2, layers: [residual: [{linear: 256}, relu]]}
  - linear: {out: 10, init: xavier}
loss: {cross_entropy: {label_smoothing: 0.0}}
train:
  epochs: 5
  precision: fp32            # fp64 | fp32 | bf16 | fp16
  optimizer: {adam: {lr: 1e-3}}
  clip: {global_norm: 1.0}
  warmup: {steps: 100}
  accumulate: 1
  memory: 64MiB              # a budget in bytes, not a ratio
"""
BODY = HEAD + "model: [linear: 10]" + TAIL


def train(section: str) -> TrainSpec:
    return load(BODY + f"train: {section}\n").train


def test_the_sketch_loads_as_written() -> None:
    spec = load(SKETCH)
    assert (spec.name, spec.seed, spec.data.source, spec.data.batch) == (
        "mnist-mlp",
        0,
        "mnist5k",
        128,
    )
    assert len(spec.layers) == 9
    assert spec.loss.inputs == ("linear2",)
    assert spec.train.lr == 1e-3
    assert spec.train.optimizer.kind == "adam"
    assert dict(spec.train.optimizer.options) == {"beta1": 0.9}
    assert spec.train.clip == 1.0
    assert spec.train.warmup_steps == 100
    assert spec.train.memory_bytes == 64 * 2**20
    assert str(spec.train.spans["memory"]) == "spec.yaml:17:11"
    assert str(spec.train.spans["lr"]) == "spec.yaml:13:26"


def test_defaults_of_training() -> None:
    found = load(BODY).train
    assert (found.epochs, found.steps, found.precision, found.lr) == (1.0, None, "fp32", 1e-3)
    assert (found.clip, found.warmup_steps, found.schedule.kind) == (None, 0, "constant")
    assert (found.accumulate, found.memory_bytes, found.nonfinite) == (1, None, "stop")
    assert (found.loss_scale.start, found.loss_scale.growth_interval) == (65536.0, 2000)
    assert "lr" not in found.spans


def test_forms_of_training() -> None:
    found = train(
        "{steps: 7, optimizer: sgd, lr: 1, schedule: {cosine: {final: 0.1}}, clip: ,"
        " loss_scale: {start: 8}, memory: 100, nonfinite: skip, eval_every: 3}"
    )
    assert (found.epochs, found.steps, found.optimizer.kind, found.lr) == (None, 7, "sgd", 1.0)
    assert (found.schedule.kind, found.schedule.final, found.clip) == ("cosine", 0.1, None)
    assert (found.loss_scale.start, found.loss_scale.growth) == (8.0, 2.0)
    assert (found.memory_bytes, found.nonfinite, found.eval_every) == (100, "skip", 3)


def test_equal_rates_in_two_places_are_one() -> None:
    assert train("{lr: 1e-2, optimizer: {adam: {lr: 0.01}}}").lr == 0.01


def test_different_rates_name_both_places() -> None:
    with pytest.raises(SpecError) as caught:
        train("{lr: 1e-2, optimizer: {adam: {lr: 0.02}}}")
    found = caught.value.diagnostics[0]
    assert found.code == "BPC0155"
    assert found.span and found.notes[0].span
    assert found.span.column < found.notes[0].span.column


def test_loss_may_name_what_it_reads() -> None:
    spec = load(HEAD + "model: [{linear: 10, name: a}, relu]\nloss: {mse: , from: a}\n")
    assert (spec.loss.op, spec.loss.inputs) == ("mse", ("a",))


def test_data_sources() -> None:
    synthetic = "{source: synthetic, inputs: {a: [3], b: [4, 2]}, classes: 5, rows: 64}"
    spec = load(f"bpc: 1\ndata: {synthetic}\nmodel: [{{add: , from: [a, b]}}, relu]{TAIL}")
    assert spec.data.inputs == ("a", "b")
    assert dict(spec.data.options) == {
        "inputs": {"a": (3,), "b": (4, 2)},
        "classes": 5,
        "rows": 64,
    }
    inline = load(f"bpc: 1\ndata: {{source: inline, x: [[2, 0.5]], y: [[1]]}}\nmodel: [relu]{TAIL}")
    assert inline.data.batch == 1
    assert inline.data.options["x"] == ((2, 0.5),)


def test_default_name_is_the_file() -> None:
    assert load(BODY, path="specs/my net.yaml").name == "my_net"


def test_set_beats_the_file() -> None:
    spec = load(
        SKETCH,
        sets={
            "train.lr": "3e-4",
            "data.batch": 64,
            "model.0.linear.out": "5",
            "model.3.linear.out": 7,
            "name": "other",
            "train.optimizer.adam.beta1": 0.5,
            "train.memory": "1MiB",
        },
    )
    assert spec.train.lr == 3e-4
    assert spec.train.spans["lr"] == Span("--set train.lr", 1, 1)
    assert (spec.data.batch, spec.name, spec.train.memory_bytes) == (64, "other", 2**20)
    assert [spec.layers[i].options["out"] for i in (0, -1)] == [5, 7]
    assert spec.train.optimizer.options["beta1"] == 0.5
    assert spec.origins["train.lr"] == Span("--set train.lr", 1, 1)


def test_set_opens_short_forms() -> None:
    text = HEAD + "model: [linear: 10, relu, {linear: 4, name: fc}]" + TAIL
    spec = load(
        text,
        sets={
            "model.0.linear.bias": False,
            "model.1.name": "act",
            "model.fc.linear.out": 9,
            "loss.cross_entropy.label_smoothing": 0.25,
            "train.optimizer.sgd.momentum": 0.5,
            "train.lr": 1,
        },
    )
    assert (spec.layers[0].options["out"], spec.layers[0].options["bias"]) == (10, False)
    assert [layer.name for layer in spec.layers] == ["linear1", "act", "fc"]
    assert spec.layers[2].options["out"] == 9
    assert spec.loss.options["label_smoothing"] == 0.25
    assert spec.train.optimizer.kind == "sgd"


@pytest.mark.parametrize(
    ("key", "value", "code", "hint"),
    [
        ("train.lrr", 1, "BPC0150", "'lr'"),
        ("trian.lr", 1, "BPC0150", "'train'"),
        ("data.btach", 1, "BPC0150", "'batch'"),
        ("model.0.linear.outt", 5, "BPC0150", "'out'"),
        ("model.0.linaer.out", 5, "BPC0150", "'linear'"),
        ("model.7", "relu", "BPC0159", None),
        ("model.fc.linear.out", 5, "BPC0159", None),
        ("train.optimizer.adm.lr", 5, "BPC0160", "'adam'"),
        ("train.lr", "fast", "BPC0152", None),
        ("train.lr", float("nan"), "BPC0153", None),
        ("train.lr", 10**60, "BPC0109", None),
        ("train.lr", [1], "BPC0152", None),
        ("train.lr", object(), "BPC0159", None),
        ("data.batch", "0", "BPC0153", None),
        ("data.batch", "a: b: c", "BPC0159", None),
        ("seed.x", 1, "BPC0152", None),
        ("extends", "base.yaml", "BPC0159", None),
        ("train..lr", 1, "BPC0159", None),
        ("", 1, "BPC0159", None),
        ("bpc", 2, "BPC0157", None),
    ],
)
def test_set_of_what_does_not_exist(key: str, value: object, code: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        load(BODY, sets={key: value})
    found = caught.value.diagnostics
    assert code in [item.code for item in found]
    assert all(item.span == Span(f"--set {key}", 1, 1) for item in found if item.code == code)
    assert hint is None or any(hint in (item.help or "") for item in found)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.yaml"


def load_file(path: Path, sets: dict[str, object] | None = None) -> Spec:
    return load_spec(path, LAYERS, LOSSES, OPTIMIZERS, sets or {})


def test_extends_overrides_deeply_and_replaces_lists(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        child="extends: middle.yaml\ntrain: {clip: {global_norm: 2.0}}\nmodel: [linear: 3]\n",
        middle="extends: base.yaml\ntrain: {epochs: 2}\nloss: mse\n",
        base=SKETCH,
    )
    spec = load_file(path)
    assert (spec.train.epochs, spec.train.clip, spec.train.warmup_steps) == (2.0, 2.0, 100)
    assert (len(spec.layers), spec.loss.op, spec.data.batch) == (1, "mse", 128)
    assert str(spec.origins["train.epochs"]).endswith("middle.yaml:2:17")
    assert str(spec.origins["data.batch"]).endswith("base.yaml:3:32")
    assert spec.origins["train.nonfinite"] == "default"


def test_another_alternative_replaces_the_base(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        child="extends: base.yaml\ntrain: {optimizer: {sgd: {momentum: 0.5}}, lr: 1}\n"
        "data: {source: digits}\nloss: {mse: }\n",
        base=SKETCH.replace("mnist5k,", "synthetic, shape: [64],"),
    )
    spec = load_file(path)
    assert (spec.train.optimizer.kind, spec.loss.op) == ("sgd", "mse")
    assert (spec.data.source, spec.data.batch, dict(spec.data.options)) == ("digits", 128, {})


def test_the_rate_of_the_nearer_file_counts(tmp_path: Path) -> None:
    path = write(tmp_path, child="extends: base.yaml\ntrain: {lr: 5}\n", base=SKETCH)
    assert load_file(path).train.lr == 5.0
    assert load_file(path, {"train.optimizer.adam.lr": 7}).train.lr == 7.0


def test_extends_in_a_circle_or_too_long(tmp_path: Path) -> None:
    circle = write(tmp_path, a="extends: b.yaml\n", b="extends: ./a.yaml\n")
    with pytest.raises(SpecError, match="circle"):
        load_file(circle)
    chain = write(tmp_path, **{f"c{i}": f"extends: c{i + 1}.yaml\n" for i in range(12)})
    with pytest.raises(SpecError, match="BPC0158"):
        load_file(chain)


@pytest.mark.parametrize("value", ["[a]", "3", '"\\0"', '"\\x7f/\\n"', "../nowhere/x.yaml", "."])
def test_extends_of_what_is_no_file(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_file(write(tmp_path, a=f"extends: {value}\n"))
    span = caught.value.diagnostics[0].span
    assert span and (span.line, span.column) == (1, 10)


def test_faults_of_every_section_are_told_at_once() -> None:
    found = faults(
        SKETCH.replace("batch: 128", "batch: 0")
        .replace("- relu", "- rellu")
        .replace("label_smoothing: 0.0", "label_smoothing: 2")
        .replace("epochs: 5", "epochs: five")
        .replace("lr: 1e-3", "lr: -1")
        .replace("64MiB", "64M")
        .replace("name: mnist-mlp", "name: a/b")
    )
    assert [line for _, line, _ in found] == [2, 3, 6, 9, 11, 13, 17]


def test_loading_is_quick() -> None:
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        load(SKETCH)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.015


def test_schema_names_every_key_and_option() -> None:
    schema = json_schema(LAYERS, LOSSES, OPTIMIZERS)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    layer = schema["definitions"]["layer"]["anyOf"][1]["properties"]
    assert set(layer) == {*LAYERS, "repeat", "residual", "layers", "name", "from", "precision"}
    out = layer["linear"]["anyOf"][0]["properties"]["out"]
    assert {"type": "integer", "minimum": 1} in out["anyOf"]
    assert set(schema["properties"]) == {
        *("bpc", "name", "seed", "extends", "data", "parameters", "functions", "blocks", "model"),
        *("loss", "train"),
    }
    assert schema["definitions"]["train"]["additionalProperties"] is False


def test_schema_refers_only_to_what_it_defines() -> None:
    schema = json_schema(LAYERS, LOSSES, OPTIMIZERS)

    def references(part: object) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return own + [ref for value in part.values() for ref in references(value)]
        return [ref for item in part for ref in references(item)] if isinstance(part, list) else []

    found = set(references(schema))
    assert found
    assert found <= {f"#/definitions/{name}" for name in schema["definitions"]}
