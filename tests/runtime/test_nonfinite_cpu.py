"""Numbers that are not finite on the compiled device: exit 4 with node, place and element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from header_drivers import NEEDS_COMPILER

from bpc.api import Net
from bpc.api import compile as compile_net
from bpc.cli.main import main
from bpc.errors import NonFiniteError
from bpc.train.progress import NoProgress

pytestmark = NEEDS_COMPILER

LOG = """\
bpc: 1
name: logs
data: {source: inline, batch: 2, shuffle: false, x: [[1, 2], [3, 4], [5, 0], [7, 8]],
       y: [0, 1, 0, 1], classes: 2}
model:
  - linear: {name: same, out: 2, init: [[1, 0], [0, 1]], bias: false}
  - log: {name: ln}
  - linear: {name: out, out: 2}
loss: cross_entropy
train: {epochs: 1, optimizer: {sgd: {lr: 0.0}}}
"""
PLAIN = """\
bpc: 1
name: plain
data: {source: synthetic, shape: [6], classes: 3, rows: 64, test_rows: 8, batch: 16}
model:
  - linear: {name: fc1, out: 8}
  - relu
  - linear: {name: fc2, out: 3}
loss: cross_entropy
train: {steps: 12, optimizer: {adam: {lr: 0.01}}}
"""


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(text: str, **settings: object) -> Net:
    Path("net.yaml").write_text(text, encoding="utf-8")
    sets = {key.replace("__", "."): value for key, value in settings.items()}
    return compile_net("net.yaml", set=sets, device="cpu")


def fault_of(net: Net, **wishes: Any) -> NonFiniteError:
    with pytest.raises(NonFiniteError) as caught:
        net.train(**wishes)
    assert caught.value.exit_code == 4
    return caught.value


def line_of(error: NonFiniteError) -> int:
    span = error.diagnostics[0].span
    assert span is not None
    return span.line


def test_the_log_of_zero_has_a_node_a_line_and_an_element() -> None:
    net = make(LOG)
    start = net.parameters()
    error = fault_of(net)
    assert (error.node, error.step, error.element, error.value) == ("ln", 2, (0, 1), -np.inf)
    assert line_of(error) == 7
    notes = [note.text for note in error.diagnostics[0].notes]
    assert "its operand same is 0 there" in notes
    for name, value in net.parameters().items():
        assert (value == start[name]).all(), "the weights are those before the step"


def test_the_command_line_ends_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.yaml").write_text(LOG)
    assert main(["train", "net.yaml", "--device", "cpu", "--quiet"]) == 4
    err = capsys.readouterr().err
    assert "net.yaml:7:" in err and "ln is -inf at [0, 1]" in err


def test_a_rate_far_too_large_is_stopped_in_a_layer() -> None:
    error = fault_of(make(PLAIN, train__lr=1e30))
    assert line_of(error) in (5, 7, 8) and error.step <= 3
    assert not np.isfinite(error.value)


def test_data_beyond_the_storage_type_is_named() -> None:
    data = "{source: inline, batch: 1, x: [[1], [1e6]], y: [[1], [1]], shuffle: false}"
    scale = "{start: 1}"
    settings = {"train__precision": "fp16", "train__loss_scale": scale, "loss": "mse"}
    net = make(PLAIN, data=data, model="[{linear: 1}]", **settings)
    error = fault_of(net, steps=2)
    assert (error.node, error.step, error.element) == ("x", 2, (0, 0))


class Watcher(NoProgress):
    """States after each step."""

    def __init__(self, net: Net):
        self.net = net
        self.seen: list[dict[str, np.ndarray]] = []

    def on_step(self, step: int, total: int, loss: float | None) -> None:
        device, states = self.net.device, self.net.entries.states
        self.seen.append({state.name: device.read_state(state.name) for state in states})


def test_an_overflow_halves_the_scale_and_moves_nothing_else() -> None:
    start = 2.0**28
    net = make(PLAIN, train__precision="fp16", train__loss_scale=f"{{start: {start}}}")
    weights = {state.name: net.device.read_state(state.name) for state in net.entries.states}
    watcher = Watcher(net)
    result = net.train(progress=watcher, steps=20)
    skipped = next(k for k, after in enumerate(watcher.seen) if after["control.updates"])
    assert 3 <= skipped <= result["skipped_steps"] < 20
    kinds = {state.name: state.kind for state in net.entries.states}
    before = weights
    for number, after in enumerate(watcher.seen[:skipped], 1):
        assert after["control.scale"] == start / 2**number
        assert after["control.found_inf"] == 1 and after["control.updates"] == 0
        assert after["control.window"] == number
        for name, kind in kinds.items():
            if kind in ("parameter", "master", "moment"):
                known = np.zeros_like(after[name]) if kind == "moment" else before[name]
                assert (after[name] == known).all(), name
    moved = watcher.seen[skipped]
    assert moved["control.updates"] == 1 and moved["control.found_inf"] == 0
    assert moved["control.scale"] == start / 2**skipped
    assert any((moved[n] != before[n]).any() for n, kind in kinds.items() if kind == "master")
