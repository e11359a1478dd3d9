from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import api
from bpc.errors import Interrupted, NonFiniteError, UsageError
from bpc.resources import spec_root
from bpc.train.progress import NoProgress


def mean_loss(scores: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Cross-entropy and accuracy, written out."""
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    right = scores.argmax(axis=1) == target
    return float(-np.log(shares[np.arange(len(target)), target]).mean()), float(right.mean())


class Watcher(NoProgress):
    """Collects what the loop says, and may act after a step."""

    def __init__(self, after: int = 0, action: Any = None):
        self.after, self.action = after, action
        self.steps: list[int] = []
        self.notes: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}

    def on_start(self, facts: Any) -> None:
        self.facts = dict(facts)

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        self.steps.append(step)
        if step == self.after:
            self.action()

    def on_evaluation(self, row: Any) -> None:
        self.rows.append(dict(row))

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def test_digits_are_learnt_in_two_epochs() -> None:
    net = api.compile(spec_root() / "digits_mlp.yaml", set={"train.epochs": 2}, device="reference")
    watcher = Watcher()
    result = net.train(progress=watcher)
    assert result["steps"] == 46  # 1,438 rows in batches of 64
    assert result["final"]["test_accuracy"] > 0.88
    assert result["final"]["train_loss"] < watcher.rows[0]["train_loss"]
    assert [row["epoch"] for row in watcher.rows] == [1, 2]
    assert watcher.facts["parameters"] == 64 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10
    evaluated = net.evaluate()
    assert evaluated["test_accuracy"] == result["final"]["test_accuracy"]
    assert evaluated["test_rows"] == result["test_rows"] == 359


def test_one_step_over_a_short_batch_is_the_step_of_the_plain_mean(make: Any) -> None:
    """Batches of 40 and 10 rows: the second step moves by the mean gradient of its ten rows."""
    net = make(data__batch=40, data__shuffle=False)
    part = net.data.train
    weights = net.parameters()
    for rows in (slice(0, 40), slice(40, 50)):
        batch = {name: values[rows] for name, values in part.items()}
        net.load_parameters(weights)
        gradients = net.gradients(batch, list(weights))
        weights = {name: value - 0.1 * gradients[name] for name, value in weights.items()}
    net.load_parameters(net_start(make))
    net.train(steps=2)
    for name, value in net.parameters().items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-12, atol=1e-15)


def net_start(make: Any) -> dict[str, np.ndarray]:
    return dict(make(data__batch=40, data__shuffle=False).parameters())


def test_the_loss_of_evaluation_is_the_plain_mean_over_all_rows(make: Any) -> None:
    net = make()  # 21 held-out rows in batches of 16
    expected, accuracy = mean_loss(net.predict(net.data.test["x"]), net.data.test["target"])
    found = net.evaluate()
    assert found["test_loss"] == pytest.approx(expected, rel=1e-12)
    assert found["test_accuracy"] == pytest.approx(accuracy, rel=1e-12)


@pytest.mark.parametrize(("batch", "accumulate"), [(25, 2), (10, 5), (15, 4)])
@pytest.mark.parametrize("loss", ["cross_entropy", "{cross_entropy: {ignore_index: 1}}", "mse"])
def test_accumulated_batches_equal_one_large_batch(
    make: Any, batch: int, accumulate: int, loss: str
) -> None:
    settings: dict[str, Any] = {"loss": loss, "data__shuffle": False}
    settings["train__optimizer"] = "{adam: {lr: 0.01}}"
    if loss == "mse":
        text = "{source: synthetic, shape: [6], target_shape: [3], rows: 50, batch: 16}"
        settings = {"data": text, **settings}
    large = make(**{**settings, "data__batch": 50})
    parts = make(**{**settings, "data__batch": batch, "train__accumulate": accumulate})
    results = [net.train(steps=3) for net in (large, parts)]
    assert results[0]["steps"] == results[1]["steps"] == 3
    for name, value in large.parameters().items():
        np.testing.assert_allclose(parts.parameters()[name], value, rtol=1e-11, atol=1e-14)
    losses = [result["final"]["train_loss"] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_dropout_draws_do_not_depend_on_the_micro_batch(make: Any) -> None:
    text = "[{linear: {name: fc1, out: 8}}, {dropout: 0.5}, {linear: {name: fc2, out: 3}}]"
    common = {"model": text, "data__shuffle": False, "train__steps": 2}
    large = make(**common, data__batch=50)
    parts = make(**common, data__batch=25, train__accumulate=2)
    for net in (large, parts):
        net.train()
    for name, value in large.parameters().items():
        np.testing.assert_allclose(parts.parameters()[name], value, rtol=1e-11, atol=1e-14)


def test_the_last_window_of_a_run_may_be_shorter(make: Any) -> None:
    """One epoch of batches 16, 16, 16, 2 in windows of 3: the second window holds 2 rows."""
    net = make(train__accumulate=3, train__epochs=1, data__shuffle=False)
    weights = net.parameters()
    part = net.data.train
    for rows in (slice(0, 48), slice(48, 50)):
        net.load_parameters(weights)
        batch = {name: values[rows] for name, values in part.items()}
        gradients = net.gradients(batch, list(weights))
        weights = {name: value - 0.1 * gradients[name] for name, value in weights.items()}
    again = make(train__accumulate=3, train__epochs=1, data__shuffle=False)
    assert again.train()["steps"] == 2
    for name, value in again.parameters().items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-12, atol=1e-15)


def test_metrics_are_one_object_a_line(make: Any, read_metrics: Any) -> None:
    net = make(train__log_every=3, train__epochs=2)
    result = net.train()
    rows = read_metrics(result)
    assert [row["step"] for row in rows] == [3, 4, 6, 8]
    for row in rows:
        norms = row["gradient_norms"]
        assert set(norms) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
        total = sum(norm**2 for norm in norms.values()) ** 0.5
        assert total == pytest.approx(row["gradient_norm"], rel=1e-12)
        assert (row["lr"], row["scale"], row["step_ms"] > 0) == (0.1, 1, True)
    assert ["test_loss" in row for row in rows] == [False, True, False, True]
    assert rows[-1]["test_accuracy"] == result["final"]["test_accuracy"]
    assert set(rows[-1]["zero_units"]) == {"act"}


def test_a_unit_counts_as_zero_if_it_is_so_on_every_example(make: Any, read_metrics: Any) -> None:
    bias = "[-90, -90, 90, 90, 90, 90, 90, -90]"
    text = f"[{{linear: {{name: fc1, out: 8, bias_init: {bias}}}}}, relu, {{linear: 3}}]"
    result = make(model=text).train(steps=1)
    assert read_metrics(result)[-1]["zero_units"] == {"relu1": 0.375}
    (note,) = result["notes"]
    assert "relu1: 38%" in note["text"] and note["place"]["file"].startswith("--set model")


def test_eval_every_counts_steps(make: Any, read_metrics: Any) -> None:
    rows = read_metrics(make(train__eval_every=3, train__epochs=2).train())
    assert [row["step"] for row in rows if "test_loss" in row] == [3, 6, 8]


def test_the_schedule_knows_how_long_the_run_is(make: Any, read_metrics: Any) -> None:
    settings = {"train__schedule": "{cosine: 0.1}", "train__log_every": 1, "train__steps": 5}
    rows = read_metrics(make(**settings, train__warmup="{steps: 1}").train())
    rates = [row["lr"] for row in rows]
    expected = [0.1 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * k / 4))) for k in range(4)]
    assert rates == pytest.approx([0.1, *expected], rel=1e-12)


# -- the folder -----------------------------------------------------------------------------------


def test_runs_are_numbered_and_hold_spec_result_and_weights(make: Any) -> None:
    net = make()
    (Path("runs") / "small-7").mkdir(parents=True)
    first, second = net.train(steps=1), net.train(steps=2)
    assert [first["run_dir"], second["run_dir"]] == ["runs/small-8", "runs/small-9"]
    folder = Path(second["run_dir"])
    assert (folder / "spec.yaml").read_bytes() == Path("net.yaml").read_bytes()
    stored = json.loads((folder / "result.json").read_text())
    assert (stored["status"], stored["steps"]) == ("done", 2)
    weights = net.parameters()
    again = make(seed=9)
    again.load(folder)
    for name, value in again.parameters().items():
        assert (weights[name] == value).all()
    assert sorted(path.name for path in folder.iterdir()) == [
        *("metrics.jsonl", "model.safetensors", "result.json", "spec.resolved.yaml", "spec.yaml")
    ]


def test_a_folder_that_is_not_empty_is_refused(make: Any, tmp_path: Path) -> None:
    net = make()
    (tmp_path / "empty").mkdir()
    assert net.train(steps=1, run_dir="empty")["run_dir"] == "empty"
    with pytest.raises(UsageError, match="not an empty folder"):
        net.train(steps=1, run_dir="empty")
    with pytest.raises(UsageError):
        net.train(steps=1, run_dir="net.yaml")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step(make: Any, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    net = make(train__epochs=50)
    watcher = Watcher(after=3, action=lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted) as caught:
        net.train(progress=watcher, run_dir="there")
    assert caught.value.exit_code == 130 and "after step 3 of 200" in str(caught.value)
    stored = json.loads(Path("there/result.json").read_text())
    assert (stored["status"], stored["steps"]) == ("interrupted", 3)
    again = make(seed=9)
    again.load("there")
    assert (again.parameters()["fc1.weight"] == net.parameters()["fc1.weight"]).all()
    assert "bpc train --resume there" in str(caught.value)
    assert [path.name for path in Path("there/checkpoints").iterdir()] == ["step-000003"]
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_it_at_once(make: Any) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        make().train(progress=Watcher(after=2, action=twice))


# -- numbers that are not finite ------------------------------------------------------------------

LOG = """\
bpc: 1
name: logs
data: {source: inline, batch: 2, x: [[1, 2], [3, 4], [5, 0], [7, 8]], y: [0, 1, 0, 1], classes: 2}
model:
  - linear: {name: same, out: 2, init: [[1, 0], [0, 1]], bias: false}
  - log: {name: ln}
  - linear: {name: out, out: 2}
loss: cross_entropy
train: {epochs: 1, optimizer: {sgd: {lr: 0.0}}}
"""


def test_the_first_value_that_is_not_finite_has_a_place(make: Any) -> None:
    text = LOG.replace("batch: 2", "batch: 2, shuffle: false")
    net = make(text)
    start = net.parameters()
    with pytest.raises(NonFiniteError) as caught:
        net.train(run_dir="there")
    error = caught.value
    assert (error.node, error.step, error.element, error.exit_code) == ("ln", 2, (0, 1), 4)
    assert error.value == -np.inf
    (diagnostic,) = error.diagnostics
    assert diagnostic.span is not None and diagnostic.span.line == 6
    notes = [note.text for note in diagnostic.notes]
    assert "its operand same is 0 there" in notes
    assert "that row of the batch is row 2 of the data" in notes
    stored = json.loads(Path("there/result.json").read_text())
    assert (stored["status"], stored["node"], stored["steps"]) == ("non-finite", "ln", 2)
    for name, value in net.parameters().items():
        assert (value == start[name]).all()


def test_a_fault_in_an_earlier_batch_of_the_window_is_found(make: Any) -> None:
    text = LOG.replace("[5, 0]", "[5, 6]").replace("[1, 2]", "[0, 2]")
    text = text.replace("batch: 2", "batch: 2, shuffle: false")
    with pytest.raises(NonFiniteError) as caught:
        make(text, train__accumulate=2).train()
    assert (caught.value.step, caught.value.element) == (1, (0, 0))
    assert "row 0 of the data" in str([note.text for note in caught.value.diagnostics[0].notes])


def test_skipping_counts_and_goes_on(make: Any, read_metrics: Any) -> None:
    text = LOG.replace("batch: 2", "batch: 2, shuffle: false")
    net = make(text, train__nonfinite="skip", train__epochs=3)
    watcher = Watcher()
    result = net.train(progress=watcher)
    assert (result["steps"], result["skipped_steps"]) == (6, 3)
    assert all(np.isfinite(value).all() for value in net.parameters().values())
    assert "ln is -inf at [0, 1]" in watcher.notes[0]
    events = [row for row in read_metrics(result) if row.get("event") == "skipped"]
    assert [row["step"] for row in events] == [2, 4, 6]
    assert events[0]["node"] == "ln" and events[0]["place"].endswith(":6:5")
    assert "3 of 6 steps were skipped" in result["notes"][0]["text"]


def test_a_rate_far_too_large_is_stopped_in_the_layer_that_overflows(make: Any) -> None:
    with pytest.raises(NonFiniteError) as caught:
        make(train__precision="fp32", train__lr=1e30, train__epochs=5).train()
    assert caught.value.step == 2
    span = caught.value.diagnostics[0].span
    assert span is not None and span.line in (5, 7)


def test_data_beyond_the_range_of_the_storage_type_is_named(make: Any) -> None:
    data = "{source: inline, batch: 1, x: [[1], [1e6]], y: [[1], [1]], shuffle: false}"
    text = "[{linear: 1}]"
    scale = "{start: 1}"
    net = make(data=data, model=text, loss="mse", train__precision="fp16", train__loss_scale=scale)
    with pytest.raises(NonFiniteError, match=r"x is inf at \[0, 0\], in the batch") as caught:
        net.train(steps=2)
    assert (caught.value.node, caught.value.step) == ("x", 2)


def test_fp16_overflow_halves_the_scale_and_names_a_layer(make: Any, read_metrics: Any) -> None:
    start = 2.0**26
    net = make(train__precision="fp16", train__loss_scale=f"{{start: {start}}}", train__epochs=10)
    watcher = Watcher()
    result = net.train(progress=watcher)
    skipped = result["skipped_steps"]
    assert 5 <= skipped < 20  # a gradient of about 1 fits at 2^16, and sums reach further
    rows = read_metrics(result)
    assert rows[-1]["scale"] == start / 2**skipped
    events = [row for row in rows if "event" in row]
    event = events[0]
    assert len(events) == skipped
    assert sum("node" in row for row in events) == 8  # a node costs a step on the reference
    assert event["layer"] and event["scale"] == start / 2 and "net.yaml" in event["place"]
    assert "in the backward pass" in watcher.notes[0]
    assert result["final"]["test_loss"] < 1.1


def test_fp16_that_no_scale_can_save_is_stopped(make: Any) -> None:
    text = LOG.replace("[5, 0]", "[0, 0]").replace("[1, 2]", "[0, 2]")
    net = make(text, train__precision="fp16", train__epochs=50, data__batch=4)
    with pytest.raises(NonFiniteError) as caught:
        net.train()
    assert caught.value.node == "ln" and caught.value.step == 17


def test_a_loss_that_overflows_alone_is_noticed(make: Any) -> None:
    """The squared error overflows float32 where its gradient, its root, does not."""
    data = "{source: inline, batch: 1, x: [[1e25]], y: [[1]]}"
    net = make(
        data=data,
        model="[{linear: {out: 1, init: ones}}]",
        loss="mse",
        train__precision="fp32",
        train__lr=0.0,
    )
    with pytest.raises(NonFiniteError) as caught:
        net.train(steps=1)
    assert caught.value.node == "loss.terms"


def test_a_file_called_runs_is_named(make: Any) -> None:
    Path("runs").write_text("")
    with pytest.raises(UsageError, match="runs is a file"):
        make().train()
