from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpc
from bpc import api
from bpc.errors import SpecError, UsageError
from bpc.resources import spec_root
from bpc.runtime import select
from bpc.runtime.reference import run_graph

WORKED = spec_root() / "worked"
NET = """\
bpc: 1
name: net
data: {source: synthetic, shape: [5], classes: 3, rows: 40, test_rows: 10, batch: 8}
model:
  - linear: {name: fc1, out: 6}
  - tanh: {name: act}
  - linear: {name: fc2, out: 3}
loss: cross_entropy
train: {precision: fp64, optimizer: {sgd: {lr: 0.1}}}
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., api.Net]:
    monkeypatch.chdir(tmp_path)

    def build(text: str = NET, **wishes: Any) -> api.Net:
        Path("net.yaml").write_text(text, encoding="utf-8")
        return bpc.compile("net.yaml", **{"device": "reference", **wishes})

    return build


def test_one_neuron_by_hand() -> None:
    net = bpc.compile(WORKED / "neuron.yaml", device="reference")
    part = net.data.train
    names = list(net.parameters())
    assert net.evaluate()["test_loss"] == pytest.approx(0.031185007428680883, rel=1e-14)
    gradients = net.gradients(part, names)
    values = sorted(float(value.item()) for value in gradients.values())
    assert values == pytest.approx([-0.0935874678657066, -0.0467937339328533], rel=1e-13)
    assert net.predict(part["x"]).item() == pytest.approx(0.7502601055951177, rel=1e-14)


def test_three_layers_by_hand() -> None:
    net = bpc.compile(WORKED / "three_layer.yaml", device="reference")
    part = net.data.train
    assert net.predict(part["x"]).item() == pytest.approx(0.9285741418938609, rel=1e-14)
    gradients = net.gradients(part, ["z1.weight", "z3.weight", "a3"])
    expected = [
        [0.0002684242, 0.0002912864, 0.0002929867],
        [0.0005368484, 0.0005825728, 0.0005859734],
    ]
    np.testing.assert_allclose(gradients["z1.weight"], expected, rtol=2e-7)
    np.testing.assert_allclose(gradients["z3.weight"].T, [[0.0077027907, 0.0078619773]], rtol=1e-8)
    assert gradients["a3"].item() == pytest.approx(0.9285741418938609 - 0.8, rel=1e-12)


def test_one_step_of_descent_is_the_gradient_times_the_rate(make: Any) -> None:
    net = make(set={"data.batch": 40, "train.steps": 1})
    before = net.parameters()
    gradients = net.gradients(net.data.train, list(before))
    net.train()
    for name, value in net.parameters().items():
        np.testing.assert_allclose(value, before[name] - 0.1 * gradients[name], rtol=1e-12)


def test_gradients_of_inputs_and_layers_match_central_differences(make: Any) -> None:
    net = make()
    batch = {name: values[:4].astype(float) for name, values in net.data.test.items()}
    found = net.gradients(batch, of=["x", "act", "fc1", "fc1.weight"])
    assert found["act"].shape == found["fc1"].shape == (4, 6)

    def loss(x: np.ndarray) -> float:
        scores = net.predict(x)
        top = np.log(np.exp(scores).sum(axis=1))
        return float((top - scores[np.arange(4), batch["target"].astype(int)]).mean())

    step = 1e-6
    for element in np.ndindex(4, 5):
        delta = np.zeros((4, 5))
        delta[element] = step
        slope = (loss(batch["x"] + delta) - loss(batch["x"] - delta)) / (2 * step)
        assert found["x"][element] == pytest.approx(slope, rel=1e-6, abs=1e-9)
    weight = net.parameters()["fc2.weight"]
    np.testing.assert_allclose(
        found["fc1"], found["act"] * (1 - tanh_of(net, batch["x"]) ** 2), rtol=1e-12
    )
    assert weight.shape == (6, 3)


def tanh_of(net: api.Net, x: np.ndarray) -> np.ndarray:
    weights = net.parameters()
    return np.tanh(x @ weights["fc1.weight"] + weights["fc1.bias"])


def test_gradients_come_from_whatever_runs_graphs(make: Any) -> None:
    net = make()
    asked: list[str] = []

    def spy(graph: Any, given: Any, rows: int) -> Any:
        asked.append(f"{graph.name} {rows}")
        return run_graph(graph, given, rows)

    other = api.Net(net.spec, net.description, net.entries, "reference", run_gradients=spy)
    pair = (net.data.test["x"][:3], net.data.test["target"][:3])
    assert (other.gradients(pair, ["x"])["x"] == net.gradients(pair, ["x"])["x"]).all()
    assert asked == ["gradients 3"]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 30])
def test_any_number_of_rows_can_be_predicted(make: Any, rows: int) -> None:
    net = make()
    x = np.random.default_rng(0).normal(size=(rows, 5))
    weights = net.parameters()
    expected = tanh_of(net, x) @ weights["fc2.weight"] + weights["fc2.bias"]
    found = net.predict(x)
    assert found.shape == (rows, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_arrays_come_from_any_library(make: Any) -> None:
    torch = pytest.importorskip("torch")
    net = make()
    x = np.random.default_rng(1).normal(size=(3, 5))
    expected = net.predict(x)
    tensor = torch.tensor(x)
    assert (net.predict(tensor) == expected).all()
    assert (net.predict(x.tolist()) == expected).all()
    assert (net.predict({"x": tensor}) == expected).all()
    weights = {name: torch.tensor(value) for name, value in net.parameters().items()}
    net.load_parameters(weights)
    assert (net.predict(x) == expected).all()


def test_a_seed_decides_the_weights(make: Any) -> None:
    first, same, other = (make(seed=seed).parameters() for seed in (3, 3, 4))
    assert all((first[name] == same[name]).all() for name in first)
    assert not (first["fc1.weight"] == other["fc1.weight"]).any()
    assert (first["fc1.bias"] == 0).all()


def test_two_runs_end_with_the_same_bits(make: Any) -> None:
    found = []
    for _ in range(2):
        net = make(set={"train.precision": "fp32"})
        net.train(steps=12)
        found.append(net.parameters())
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_a_further_run_starts_from_the_weights_with_fresh_counters(make: Any) -> None:
    sets = {"train.optimizer": "{adam: {lr: 0.01}}"}
    net = make(set=sets)
    net.train(steps=4)
    weights = net.parameters()
    net.train(steps=4)
    other = make(set=sets)
    other.load_parameters(weights)
    other.train(steps=4)
    for name, value in other.parameters().items():
        assert (net.parameters()[name] == value).all()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_loaded_weights_reach_the_full_precision_copies(make: Any, precision: str) -> None:
    net = make(set={"train.precision": precision})
    value = np.full((5, 6), 1 + 2.0**-12)  # between two numbers of 16 bits
    net.load_parameters({"fc1.weight": value})
    assert (net.device.read_state("master.fc1.weight") == np.float32(1 + 2.0**-12)).all()
    assert (net.parameters()["fc1.weight"] == 1).all()


def test_what_does_not_exist_or_fit_is_wrong_usage(make: Any) -> None:
    net = make()
    x = np.zeros((2, 5))
    before = net.parameters()
    good = {"fc1.bias": np.ones(6)}
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: net.gradients((x, [0, 1]), ["fc1.wieght"]), "fc1.wieght"),
        (lambda: net.gradients((x, [0, 1]), ["target"]), "target"),
        (lambda: net.gradients((x, [0, 3]), ["x"]), r"row 1: 3 is not a class number in 0\.\.2"),
        (lambda: net.gradients((x, [0]), ["x"]), "x 2, target 1"),
        (lambda: net.gradients({"x": x}, ["x"]), "target is missing"),
        (lambda: net.gradients(x, ["x"]), "mapping"),
        (lambda: net.predict(np.zeros(5)), r"needed is \[rows, 5\]"),
        (lambda: net.predict({"y": x}), "'y'"),
        (lambda: net.predict([["a"]]), "not numbers"),
        (lambda: net.predict([[1, 2], [3]]), "cannot be read"),
        (lambda: net.load_parameters({**good, "fc9.bias": np.ones(6)}), "fc9.bias"),
        (lambda: net.load_parameters({**good, "fc2.bias": np.ones(6)}), r"fc2.bias is \[3\]"),
        (lambda: net.train(steps=0), "at least 1"),
        (lambda: make(device="tpu"), "tpu"),
    ]
    for call, message in calls:
        with pytest.raises(UsageError, match=message) as caught:
            call()
        assert caught.value.exit_code == 2
    assert all((net.parameters()[name] == before[name]).all() for name in before)


def test_an_initialiser_that_does_not_fit_is_found_before_anything_runs(make: Any) -> None:
    text = NET.replace("out: 6}", "out: 6, init: [[1, 2], [3, 4]]}")
    with pytest.raises(SpecError, match=r"the tensor is \[5, 6\]"):
        make(text)


def test_auto_takes_the_best_that_works_and_says_why(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(entries: Any, wishes: Any) -> Any:
        raise bpc.errors.ToolError.at("BPC0999", "no compiler was found", None)

    makers = {"cpu": fail, "reference": select.MAKERS["reference"]}
    monkeypatch.setattr(select, "MAKERS", makers)
    result = make(device="auto").train(steps=1)
    assert result["device"] == "reference"
    assert result["notes"][0]["text"] == "on reference, because cpu: no compiler was found"
    with pytest.raises(bpc.errors.ToolError):
        make(device="cpu").parameters()


def test_settings_override_the_file(make: Any) -> None:
    net = make(set={"train.lr": "1e-3"}, memory="2MiB", seed=9)
    assert (net.spec.train.lr, net.spec.train.memory_bytes, net.spec.seed) == (1e-3, 2 << 20, 9)


def test_a_closed_net_starts_anew(make: Any) -> None:
    net = make()
    start = net.parameters()
    net.train(steps=3)
    net.close()
    assert all((net.parameters()[name] == start[name]).all() for name in start)
