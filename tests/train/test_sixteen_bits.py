"""Loss scaling, overflows and their layers, types of single layers, gradients kept in f32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_loop import Watcher

from bpc import api
from bpc.errors import NonFiniteError
from bpc.runtime.reference import round_to
from bpc.types import BF16, F16, F32, F64

Make = Callable[..., api.Net]

# -- gradients too small for fp16 -----------------------------------------------------------------

SMALL_GRADIENTS = """\
bpc: 1
name: underflow
data: {source: synthetic, shape: [8], target_shape: [4], rows: 256, test_rows: 8, batch: 256}
model:
  - linear: {name: fc1, out: 16}
  - relu
  - linear: {name: fc2, out: 4}
loss: {mse: 3e-6}
train: {steps: 30, lr: 0.02, optimizer: adam}
"""


def gradients_of(net: api.Net) -> dict[str, np.ndarray]:
    """What one step leaves in the states of the gradients, the scale taken out."""
    net.stepper().step(np.arange(256))
    scale = net.device.read_scalar("control.scale")
    names = [state.name for state in net.entries.states_of("gradient")]
    return {name: net.device.read_state(name).astype(np.float64) / scale for name in names}


def lost_share(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """The share of elements that are 0 though the exact ones are not."""
    lost = sum(int(((found[name] == 0) & (exact[name] != 0)).sum()) for name in exact)
    return lost / sum(int((value != 0).sum()) for value in exact.values())


def test_scaling_keeps_gradients_that_fp16_alone_loses(make: Make) -> None:
    exact = gradients_of(make(SMALL_GRADIENTS))
    plain = lost_share(
        gradients_of(
            make(SMALL_GRADIENTS, train__precision="fp16", train__loss_scale="{start: 1}")
        ),
        exact,
    )
    scaled = lost_share(gradients_of(make(SMALL_GRADIENTS, train__precision="fp16")), exact)
    print(f"gradients that underflow: {plain:.1%} without scaling, {scaled:.1%} with it")
    assert plain > 0.3
    assert scaled < 0.01


def test_with_scaling_training_follows_fp32(make: Make) -> None:
    runs = {
        "fp32": make(SMALL_GRADIENTS),
        "scaled": make(SMALL_GRADIENTS, train__precision="fp16"),
        "plain": make(SMALL_GRADIENTS, train__precision="fp16", train__loss_scale="{start: 1}"),
    }
    losses = {name: net.train()["final"]["test_loss"] for name, net in runs.items()}
    start = make(SMALL_GRADIENTS).evaluate()["test_loss"]
    learnt = {name: start - loss for name, loss in losses.items()}
    assert learnt["fp32"] > 0.2 * start
    assert learnt["scaled"] == pytest.approx(learnt["fp32"], rel=0.02)
    assert abs(learnt["plain"] - learnt["fp32"]) > 5 * abs(learnt["scaled"] - learnt["fp32"])


# -- which layer overflowed -----------------------------------------------------------------------

LAYERS = 4


def planted_backward(layer: int, further: str = "") -> str:
    """Inputs of one layer are a thousand times as large and its weights as small: of all
    gradients that of its weight alone overflows."""
    lines = []
    for k in range(1, LAYERS + 1):
        out = 8 if k < LAYERS else 3
        init = "he"
        if k == layer:
            lines.append('  - formula: {name: louder, formula: "2048 * x"}')
            init = "{normal: 2e-4}"
        lines.append(f"  - linear: {{name: fc{k}, out: {out}, init: {init}{further}}}")
        lines.append("  - relu")
    model = "\n".join(lines[:-1])
    return f"""\
bpc: 1
name: planted
data: {{source: synthetic, shape: [6], classes: 3, rows: 48, test_rows: 6, batch: 16}}
model:
{model}
loss: cross_entropy
train: {{steps: 20, precision: fp16, lr: 0.0, optimizer: sgd, loss_scale: {{start: 4096}}}}
"""


def events_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row.get("event") == "skipped"]


@pytest.mark.parametrize("layer", range(1, LAYERS + 1))
def test_an_overflow_of_a_gradient_names_its_layer(
    make: Make, read_metrics: Any, layer: int
) -> None:
    net = make(planted_backward(layer))
    watcher = Watcher()
    result = net.train(progress=watcher)
    events = events_of(read_metrics(result))
    assert 0 < len(events) == result["skipped_steps"] < 20
    for event in events:
        assert event["layer"] == f"fc{layer}" and event["parameter"] == f"fc{layer}.weight"
    assert f"(of fc{layer}) is" in watcher.notes[0] and "backward pass" in watcher.notes[0]
    text = Path("net.yaml").read_text().splitlines()
    line = int(events[0]["place"].split(":")[1])
    assert f"name: fc{layer}," in text[line - 1]


@pytest.mark.parametrize("layer", range(1, LAYERS + 1))
def test_an_overflow_of_the_forward_pass_names_its_layer(
    make: Make, read_metrics: Any, layer: int
) -> None:
    net = make(planted_backward(0), train__loss_scale="{start: 4}", train__nonfinite="skip")
    weights = net.parameters()
    weights[f"fc{layer}.weight"] = np.full_like(weights[f"fc{layer}.weight"], 6e4)
    net.load_parameters(weights)
    result = net.train(steps=3)
    events = events_of(read_metrics(result))
    assert len(events) == 3
    assert {event["layer"] for event in events} == {f"fc{layer}"}


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_overflows_beyond_those_that_are_traced_are_named_too(make: Make, device: str) -> None:
    make(planted_backward(2), train__loss_scale="{start: 67108864}")
    net = api.compile("net.yaml", set={"train.loss_scale.start": 2.0**28}, device=device)
    result = net.train()
    text = (Path(result["run_dir"]) / "metrics.jsonl").read_text()
    rows = events_of([json.loads(line) for line in text.splitlines()])
    assert len(rows) > 8 and "node" not in rows[-1]
    assert rows[-1]["parameter"] == "fc2.weight"


@pytest.mark.parametrize("layer", range(1, LAYERS + 1))
def test_the_floor_stops_the_run_with_the_layer(make: Make, layer: int) -> None:
    net = make(planted_backward(layer), train__loss_scale="{start: 4096, floor: 2048}")
    start = net.parameters()
    with pytest.raises(NonFiniteError) as caught:
        net.train()
    (diagnostic,) = caught.value.diagnostics
    assert caught.value.step == 2 and caught.value.exit_code == 4
    assert diagnostic.code == "BPC0609"
    assert f"fell to 1024, below its floor 2048, and fc{layer} still overflows" in str(diagnostic)
    assert f"give fc{layer} precision: fp32" in str(diagnostic.help)
    for name, value in net.parameters().items():
        assert np.array_equal(value, start[name])


def test_with_skip_the_scale_stays_at_the_floor(make: Make) -> None:
    net = make(
        planted_backward(2),
        train__loss_scale="{start: 4096, floor: 2048}",
        train__nonfinite="skip",
    )
    result = net.train()
    assert result["skipped_steps"] == 20
    assert net.device.read_scalar("control.scale") == 2048


def test_the_advice_helps(make: Make) -> None:
    """The layer in fp32 no longer overflows, and the others still are fp16."""
    text = planted_backward(2).replace("name: fc2,", "name: fc2, precision: fp32,")
    net = make(text, train__loss_scale="{start: 4096, floor: 2048}")
    assert net.train()["skipped_steps"] == 0
    kinds = {state.name: state.value.dtype for state in net.entries.states_of("parameter")}
    assert kinds.pop("fc2.weight") == kinds.pop("fc2.bias") == F32
    assert set(kinds.values()) == {F16}


# -- types of single layers -----------------------------------------------------------------------

EXACT_DATA = """\
bpc: 1
name: types
data: {source: inline, batch: 4, shuffle: false, classes: 2, y: [0, 1, 1, 0],
       x: [[1, 0.5, -2], [0.25, 1, 3], [-1, 1.5, 2], [2, 0, -0.5]]}
model:
  - linear: {name: fc1, out: 6}
  - layernorm: {name: ln}
  - relu: {name: act}
  - linear: {name: fc2, out: 2}
loss: cross_entropy
train: {steps: 5, lr: 0.1, optimizer: {adamw: {weight_decay: 0.1}}}
"""


def test_all_layers_in_fp32_are_an_fp32_network(make: Make) -> None:
    """What 16 bits can hold goes in; from there on no number is rounded to 16 bits."""
    plain = make(EXACT_DATA)
    text = EXACT_DATA.replace("model:\n", "model:\n  - precision: fp32\n    layers:\n")
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if "linear" in line)
    for k in range(first, first + 4):
        lines[k] = "    " + lines[k]
    mixed = make("\n".join(lines), train__precision="bf16")
    mixed.load_parameters({f"layers1.{k}": value for k, value in plain.parameters().items()})
    start = plain.parameters()
    for net in (plain, mixed):
        net.train()
    for name, value in plain.parameters().items():
        assert np.array_equal(mixed.parameters()[f"layers1.{name}"], value), name
        assert not np.array_equal(value, start[name])
    kinds = {state.value.dtype for state in mixed.entries.states_of("parameter")}
    assert kinds == {F32} and not mixed.entries.states_of("master")


def test_a_layer_computes_stores_and_differentiates_in_its_type(make: Make) -> None:
    text = EXACT_DATA.replace("ln}", "ln, precision: fp32}")
    text = text.replace("name: fc2,", "name: fc2, precision: fp64,")
    net = make(text, train__precision="bf16")
    values = net.entries.graphs["micro_step"].values()
    wanted = {"fc1": BF16, "ln": F32, "act": BF16, "fc2": F64, "d_ln.gamma": F32}
    wanted |= {"fc1.weight": BF16, "ln.gamma": F32, "fc2.weight": F64, "d_fc2.weight": F64}
    assert {name: values[name].dtype for name in wanted} == wanted
    masters = [state.name for state in net.entries.states_of("master")]
    assert masters == ["master.fc1.weight", "master.fc1.bias"]
    moments = {s.name: s.value.dtype for s in net.entries.states_of("moment")}
    assert moments["m.fc2.weight"] == F64 and moments["m.fc1.weight"] == F32
    assert net.train()["status"] == "done"


def test_casts_have_adjoints(make: Make) -> None:
    """Gradients through two casts, against central differences of the same network."""
    text = EXACT_DATA.replace("ln}", "ln, precision: fp32}")
    net = make(text, train__precision="fp64")
    batch = dict(net.data.train)
    found = net.gradients(batch, ["fc1.weight", "fc2.bias"])
    exact = make(EXACT_DATA, train__precision="fp64")
    exact.load_parameters(net.parameters())
    wanted = exact.gradients(batch, ["fc1.weight", "fc2.bias"])
    for name, value in wanted.items():
        off = np.abs(found[name] - value).max()
        assert 0 < off < 1e-6 * np.abs(value).max(), name


def test_a_tied_weight_is_cast_where_another_type_reads_it(make: Make) -> None:
    text = EXACT_DATA.replace("name: fc1, out: 6", "name: fc1, out: 3").replace(
        "  - linear: {name: fc2, out: 2}",
        "  - linear: {name: again, weight: fc1.weight, precision: fp32}\n"
        "  - linear: {name: fc2, out: 2}",
    )
    net = make(text, train__precision="bf16")
    values = net.entries.graphs["micro_step"].values()
    assert values["fc1.weight"].dtype == BF16 and values["again"].dtype == F32
    assert net.train()["status"] == "done"


# -- gradients kept in f32 ------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", BF16), ("fp16", F16)])
def test_gradients_in_fp32_round_nothing(make: Make, precision: str, dtype: Any) -> None:
    """Rounded to 16 bits they are those that are kept in the type of the weights."""
    stored, wide = (
        make(EXACT_DATA, train__precision=precision, train__gradients=kind)
        for kind in ("storage", "fp32")
    )
    for net in (stored, wide):
        net.stepper().step(np.arange(4))
    rounded = 0
    for state in wide.entries.states_of("gradient"):
        assert state.value.dtype == F32
        value = wide.device.read_state(state.name)
        kept = stored.device.read_state(state.name)
        assert np.array_equal(round_to(value, dtype), kept), state.name
        rounded += int((value != kept).sum())
    assert rounded > 0


def test_gradients_of_a_shared_weight_add_up_in_fp32(make: Make) -> None:
    text = EXACT_DATA.replace("name: fc1, out: 6", "name: fc1, out: 3").replace(
        "  - linear: {name: fc2, out: 2}",
        "  - linear: {name: again, weight: fc1.weight}\n  - linear: {name: fc2, out: 2}",
    )
    net = make(text, train__precision="bf16", train__gradients="fp32", train__accumulate=2)
    graph = net.entries.graphs["micro_step"]
    made = dict(graph.updates)["grad.fc1.weight"]
    (total,) = [node for node in graph.nodes if node.output.name == made]
    values = graph.values()
    assert total.op == "add"
    assert all(values[name].dtype == F32 for name in (made, *total.inputs))
    assert net.train()["status"] == "done"
