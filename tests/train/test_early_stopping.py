"""Metrics of a run and early stopping: what is said where, and which settings are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import api, continued
from bpc.cli.main import main
from bpc.errors import SpecError
from bpc.spec.model import EarlyStoppingSpec
from bpc.train.stopping import Patience, is_better, is_over, say_end, watch

CLASSES = """\
bpc: 1
name: small
data: {source: synthetic, shape: [5], classes: 4, rows: 32, test_rows: 16, batch: 8}
model: [linear: 6, relu, dropout: 0.5, linear: 4]
loss: cross_entropy
train: {steps: 60, lr: 0.05, eval_every: 2}
"""
VALUES = CLASSES.replace("classes: 4, ", "target_shape: [2], ").replace("linear: 4]", "linear: 2]")
VALUES = VALUES.replace("cross_entropy", "mse")


def make(folder: Path, text: str = CLASSES, **sets: Any) -> api.Net:
    path = folder / "small.yaml"
    path.write_text(text)
    return api.compile(path, set={f"train.{key}": sets[key] for key in sets}, device="reference")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "metrics", "names"),
    [
        (CLASSES, None, {"test_accuracy"}),
        (CLASSES, "[top2, top4]", {"test_accuracy", "test_top2", "test_top4"}),
        (CLASSES, "accuracy", {"test_accuracy"}),
        (VALUES, None, {"test_accuracy", "test_mae", "test_r2"}),
        (VALUES, "[rmse]", {"test_accuracy", "test_rmse"}),
        (VALUES, "[]", {"test_accuracy"}),
    ],
)
def test_metrics_of_a_run(tmp_path: Path, text: str, metrics: str | None, names: set[str]) -> None:
    net = make(tmp_path, text, metrics=metrics, steps=6)
    result = net.train(run_dir=tmp_path / "run")
    assert set(result["final"]) == {"train_loss", "test_loss", *names}
    evaluated = [row for row in rows_of(tmp_path / "run") if "test_loss" in row]
    assert len(evaluated) == 3
    for row in evaluated:
        assert {key for key in row if key.startswith("test_")} == {"test_loss", *names}
    test = net.data.test
    prediction = net.predict(test["x"]).astype(np.float64)  # dropout is off here
    if text == CLASSES:
        right = (prediction.argmax(axis=1) == test["target"]).mean()
        assert result["final"]["test_accuracy"] == right
    else:
        assert result["final"]["test_accuracy"] is None
        error = np.abs(prediction - test["target"]).mean()
        found = net.evaluate()["metrics"]
        assert found.get("mae", error) == pytest.approx(error, rel=1e-12)
    if metrics == "[top2, top4]":
        assert result["final"]["test_top4"] == 1.0 >= result["final"]["test_top2"]
        assert set(net.evaluate()["metrics"]) == {"top2", "top4"}


@pytest.mark.parametrize(
    ("text", "sets", "told", "width"),
    [
        (CLASSES, {"metrics": "[top5]"}, "top5 looks at 5 classes, the data has 4", 4),
        (CLASSES, {"metrics": "[accuracy, mae]"}, "mae says nothing of classes", 3),
        (VALUES, {"metrics": "[top2]"}, "top2 says nothing of values", 4),
        (CLASSES, {"metrics": "[acuracy]"}, "there is no metric 'acuracy'", 7),
        (CLASSES, {"metrics": "[top0]"}, "there is no metric 'top0'", 4),
        (CLASSES, {"metrics": "{a: 1}"}, "must be a list of names", 6),
        (CLASSES, {"metrics": "[top2, top2]"}, "top2 is named twice", 4),
        (CLASSES, {"early_stopping": "{metric: val_loss}"}, "there is no 'val_loss'", 8),
        (CLASSES, {"early_stopping": "{metric: test_mae}"}, "mae says nothing of classes", 8),
        (CLASSES, {"early_stopping": "{metric: test_top9}"}, "the data has 4", 9),
        (CLASSES, {"early_stopping": "{patience: 0}"}, "must be at least 1, found 0", 1),
        (CLASSES, {"early_stopping": "{min_delta: -1}"}, "must be at least 0", 2),
        (CLASSES, {"early_stopping": "true"}, "must be a mapping", 4),
    ],
)
def test_settings_that_make_no_sense(
    tmp_path: Path, text: str, sets: dict[str, str], told: str, width: int
) -> None:
    key, value = next(iter(sets.items()))
    line = f"eval_every: 2, {key}: {value}}}"
    with pytest.raises(SpecError) as caught:
        make(tmp_path, text.replace("eval_every: 2}", line))
    (found,) = caught.value.diagnostics
    assert told in found.message
    assert found.span is not None and (found.span.line, found.span.width) == (6, width)


def test_the_nearest_names_are_said(tmp_path: Path) -> None:
    for wrong, meant in {"val_loss": "test_loss", "accuracy": "test_accuracy"}.items():
        with pytest.raises(SpecError) as caught:
            make(tmp_path, early_stopping=f"{{metric: {wrong}}}")
        assert caught.value.diagnostics[0].help == f"did you mean {meant}?"


def test_it_ends_where_its_own_log_says(tmp_path: Path) -> None:
    net = make(
        tmp_path,
        early_stopping="{patience: 3, min_delta: 0.01}",
        checkpoint="{every: 100}",
        lr=0.3,
    )
    result = net.train(run_dir=tmp_path / "run")
    end, rows = result["stopped_early"], rows_of(tmp_path / "run")
    losses = {row["step"]: row["test_loss"] for row in rows if "test_loss" in row}
    best, since, waited = None, 0, 0  # the rule again, from the log alone
    for step, loss in losses.items():
        if best is None or loss < best - 0.01:
            best, since, waited = loss, step, 0
        else:
            waited += 1
        assert (waited == 3) == (step == result["steps"])
    assert (end["best"], end["best_step"], end["step"]) == (best, since, result["steps"])
    assert result["status"] == "done" and result["steps"] < 60
    assert rows[-1] == {**end, "event": "stopped early"}
    assert result["checkpoint_step"] == result["steps"]
    assert result["best"]["test_loss"] == min(losses.values())
    assert say_end(end).startswith(f"stopped early after step {end['step']}: test_loss was")
    again = continued.resume(tmp_path / "run")
    assert again["stopped_early"] == end and again["steps"] == result["steps"]
    assert rows_of(tmp_path / "run") == rows


def test_the_best_model_is_the_one_that_it_waited_for(tmp_path: Path) -> None:
    net = make(
        tmp_path, early_stopping="{metric: test_top2, patience: 60}", checkpoint="{every: 60}"
    )
    result = net.train(run_dir=tmp_path / "run")
    shares = {r["step"]: r["test_top2"] for r in rows_of(tmp_path / "run") if "test_top2" in r}
    assert result["stopped_early"] is None and result["steps"] == 60
    assert result["best"]["step"] == max(shares, key=lambda step: (shares[step], -step))
    assert result["best"]["test_top2"] == max(shares.values())
    net.load(tmp_path / "run" / "best.safetensors")
    prediction, target = net.predict(net.data.test["x"]), net.data.test["target"]
    second = np.sort(prediction, axis=1)[:, -2]
    assert (prediction[np.arange(16), target] >= second).mean() == max(shares.values())


def test_the_end_is_said_and_the_exit_code_is_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    words = ("train", str(tmp_path / "small.yaml"), "--device", "reference", "--set", "train.lr=0")
    words = (*words, "--set", "train.early_stopping={}", "--run-dir", str(tmp_path / "run"))
    assert main([*words, "--set", "train.metrics=[accuracy, top2]"]) == 0
    out = capsys.readouterr().out
    assert "     acc    top2        lr" in out
    assert "stopped early after step 8: test_loss was" in out
    assert "at step 2 and not better in 3 evaluations since" in out


@pytest.mark.parametrize(
    ("metric", "value", "best", "least", "better"),
    [
        ("test_loss", 0.9, 1.0, 0.0, True),
        ("test_loss", 1.0, 1.0, 0.0, False),
        ("test_loss", 0.9, 1.0, 0.1, False),
        ("train_loss", 2.0, 1.0, 0.0, False),
        ("test_rmse", 0.5, 1.0, 0.25, True),
        ("test_accuracy", 0.9, 1.0, 0.0, False),
        ("test_top5", 0.9, 0.5, 0.25, True),
        ("test_r2", 0.5, -3.0, 0.0, True),
        ("test_loss", float("nan"), 1.0, 0.0, False),
        ("test_loss", 1.0, None, 5.0, True),
        ("test_r2", None, None, 0.0, False),
    ],
)
def test_what_is_better(
    metric: str, value: float | None, best: float | None, least: float, better: bool
) -> None:
    assert is_better(metric, value, best, least) is better


def test_another_metric_starts_anew() -> None:
    settings = EarlyStoppingSpec("test_accuracy", 2)
    before = Patience("test_loss", 10, 0.1, 5)
    assert not is_over(before, settings)
    found = watch(before, settings, 12, {"test_accuracy": 0.5})
    assert found == Patience("test_accuracy", 12, 0.5, 0)
    nothing = watch(None, settings, 2, {"test_accuracy": None})
    assert nothing == Patience("test_accuracy", 0, None, 1)
    assert say_end({"step": 4, "metric": "m", "best": None, "evaluations": 2, "min_delta": 0.0})
