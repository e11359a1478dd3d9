"""Field cases about files of runs: what goes on exactly, and what is refused."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_cases import Array, expected, setup_of
from field_nets import Maker

import bpc
from bpc.api import Net
from bpc.continued import resume
from bpc.errors import BpcError, Interrupted
from bpc.train.files import Bytes, Files

EPOCHS = """\
bpc: 1
name: case
seed: 5
data: {source: synthetic, shape: [4], classes: 3, rows: 20, test_rows: 4, batch: 4}
model:
  - linear: {name: fc1, out: 6}
  - relu
  - dropout: 0.3
  - linear: {name: fc2, out: 3}
loss: cross_entropy
train: {epochs: 3, lr: 0.01, optimizer: adam, log_every: 1, checkpoint: {every: 1, keep: 2}}
"""


class Watched:
    """Runs of one spec, with the rows that reach the device."""

    def __init__(self, make: Maker, monkeypatch: pytest.MonkeyPatch, text: str, **sets: Any):
        self.make, self.sets = make, {key.replace("__", "."): v for key, v in sets.items()}
        self.path = make.folder / "run.yaml"
        self.path.write_text(text, encoding="utf-8")
        self.rows: list[list[int]] = []
        kind: Any = type(self.net().device)
        write = kind.write_rows

        def watch(device: Any, name: str, array: Array, rows: Array) -> None:
            if name == "target":
                self.rows.append([int(row) for row in rows])
            write(device, name, array, rows)

        monkeypatch.setattr(kind, "write_rows", watch)

    def net(self) -> Net:
        return bpc.compile(self.path, set=self.sets, device=self.make.device)

    def run(self, name: str, *stops: int) -> tuple[list[list[int]], dict[str, Any]]:
        """The rows of a run that is stopped after these steps and goes on, and what it leaves."""
        self.rows.clear()
        folder = self.make.folder / name
        for count, stop in enumerate(stops):
            with pytest.raises(Interrupted):
                if count:
                    resume(folder, stop_after=stop)
                else:
                    self.net().train(run_dir=folder, stop_after=stop)
        if stops:
            resume(folder)
        else:
            self.net().train(run_dir=folder)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        kept = ("step", "train_loss", "lr", "scale")
        left = {
            "weights": (folder / "model.safetensors").read_bytes(),
            "metrics": [{key: row.get(key) for key in kept} for row in map(json.loads, lines)],
        }
        return list(self.rows), left


def test_ckpt_mid_epoch_order(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(make, monkeypatch, EPOCHS)
    order, left = watched.run("straight")
    assert len(order) == 15 and all(len(batch) == 4 for batch in order)
    epochs = [[row for batch in order[k : k + 5] for row in batch] for k in (0, 5, 10)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for stops in [*((step,) for step in range(1, 15)), (4, 9)]:
        assert watched.run("-".join(map(str, stops)), *stops) == (order, left)


SCALES = """\
bpc: 1
name: case
data: {{source: inline, x: {x}, y: {y}, batch: 1, shuffle: false}}
parameters: {{w: {{shape: [1], init: 0.0}}}}
model: [mul: {{from: [x, w]}}]
loss: l1
train: {{epochs: 1, lr: 0.01, optimizer: adam, precision: fp16, log_every: 1,
         loss_scale: {{start: 1024, growth_interval: 5}}, checkpoint: {{every: 1, keep: 2}}}}
"""


def test_amp_scaler_state_in_checkpoint(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 1000 overflows f16 under a scale of 1024; the others do not."""
    name = "amp-scaler-state-in-checkpoint"
    setup, want = setup_of(name), expected(name)["scale_used_at_step"]
    # The case counts steps from 0 and 512 is used from step 3 on: step 2 overflowed.
    bad = want.index(512.0) - 1
    x = [[1000.0 if k == bad else 1.0 + k / 16] for k in range(setup["steps"])]
    text = SCALES.format(x=x, y=[[-100.0]] * len(x))
    watched = Watched(make, monkeypatch, text)
    _, left = watched.run("straight")
    used = [row["scale"] for row in left["metrics"] if row["lr"] is not None]
    assert len(used) == len(want)
    # a line's scale is the one after its step: that of the next
    assert [1024.0, *used[:-1]] == want
    for stop in range(1, len(want)):
        assert watched.run(f"stop{stop}", stop)[1] == left


# -- saving ---------------------------------------------------------------------------------------


class _Crash(BaseException):
    pass


class Crashing(Files):
    """Ends the process, as it were, in one call: before it, after it, or half-way of a write."""

    def __init__(self, at: int, half: int = 0):
        self.at, self.half, self.count = at, half, 0

    def _here(self) -> bool:
        self.count += 1
        return self.count - 1 == self.at

    def create(self, path: Path) -> int:
        if self._here():
            raise _Crash
        return super().create(path)

    def write(self, descriptor: int, data: Bytes) -> int:
        if self._here():
            super().write(descriptor, memoryview(data)[: self.half])
            raise _Crash
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        if self._here():
            raise _Crash

    def rename(self, old: Path, new: Path) -> None:
        if self._here():
            raise _Crash
        super().rename(old, new)

    def make_folder(self, path: Path) -> None:
        if self._here():
            raise _Crash
        super().make_folder(path)


@pytest.mark.parametrize("half", [0, 512, 4096])
def test_ckpt_atomic_replace(make_reference: Maker, half: int) -> None:
    """A process that ends in any call of a save; `tests/checkpoint` loses what was not synced too.

    What the run goes on from is the old or the new state, whole, and its end is the straight one.
    """
    text = EPOCHS.replace("epochs: 3", "steps: 2").replace("out: 6", "out: 200")
    path = make_reference.folder / "run.yaml"
    path.write_text(text, encoding="utf-8")

    def start(name: str, files: Files) -> Path:
        folder = make_reference.folder / name
        bpc.compile(path, device="reference").train(run_dir=folder, files=files)
        return folder

    straight = (start("straight", Files()) / "model.safetensors").read_bytes()
    whole = Crashing(-1)
    start("counted", whole)
    states = 0
    for at in range(whole.count):
        folder = make_reference.folder / f"run{at}"
        with pytest.raises(_Crash):
            start(folder.name, Crashing(at, half))
        if not list(folder.glob("checkpoints/step-*")):
            continue
        states += 1
        resume(folder)
        assert (folder / "model.safetensors").read_bytes() == straight
        assert all(p.name.startswith("step-") for p in (folder / "checkpoints").iterdir())
    assert states > 10


# -- loading --------------------------------------------------------------------------------------

CONV = """\
bpc: 1
name: case
data: {source: synthetic, shape: [64, 4, 4], target_shape: [32, 2, 2], rows: 2, batch: 2}
model: [conv2d: {name: conv, out: 32, kernel: 3}]
loss: mse
train: {lr: 0.1}
"""


def pack(tensors: dict[str, Array]) -> bytes:
    """A file of tensors, written by what the format says alone."""
    header, end = {}, 0
    for name, array in tensors.items():
        kind = {"float32": "F32", "float64": "F64"}[array.dtype.name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    body = b"".join(array.tobytes() for array in tensors.values())
    return len(text).to_bytes(8, "little") + text + body


def test_ckpt_shape_broadcast(make: Maker) -> None:
    setup = setup_of("ckpt-shape-broadcast")
    path = make.folder / "conv.yaml"
    path.write_text(CONV, encoding="utf-8")
    net = bpc.compile(path, device=make.device)
    before = {name: value.tobytes() for name, value in net.parameters().items()}
    assert {k: list(v.shape) for k, v in net.parameters().items()} == setup["model"]
    bad = {name: np.zeros(shape, np.float32) for name, shape in setup["checkpoint"].items()}
    model = {name: np.zeros(shape, np.float32) for name, shape in setup["model"].items()}
    for label, tensors, told in (
        ("broadcast", bad, ["conv.weight", "conv.bias"]),
        ("scalar", {**model, "conv.bias": np.zeros((), np.float32)}, ["conv.bias"]),
        ("float64", {**model, "conv.bias": np.zeros(32)}, ["conv.bias"]),
        ("extra", {**model, "other": np.zeros(1, np.float32)}, ["other"]),
        ("missing", {"conv.weight": model["conv.weight"]}, ["conv.bias"]),
    ):
        file = make.folder / f"{label}.safetensors"
        file.write_bytes(pack(tensors))
        with pytest.raises(BpcError) as caught:
            net.load(file)
        text = str(caught.value) + "".join(
            n.text for d in caught.value.diagnostics for n in d.notes
        )
        for name in told:
            assert name in text, (label, name)
            if label in ("broadcast", "scalar", "float64"):
                kind = {"float32": "F32", "float64": "F64"}[tensors[name].dtype.name]
                assert f"{kind} {list(tensors[name].shape)}" in text
                assert f"F32 {list(model[name].shape)}" in text
        assert {n: value.tobytes() for n, value in net.parameters().items()} == before
    # the same by arrays, also transposed
    for arrays in (bad, {"conv.weight": model["conv.weight"].T}):
        with pytest.raises(BpcError) as caught:
            net.load_parameters(arrays)
        assert {d.message.split()[0] for d in caught.value.diagnostics} == set(arrays)
        assert {n: value.tobytes() for n, value in net.parameters().items()} == before


def malformed() -> Iterator[tuple[str, bytes]]:
    """The case's files, in its order."""
    f4 = b"\0" * 4

    def file(header: Any, body: bytes, length: int | None = None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return (len(text) if length is None else length).to_bytes(8, "little") + text + body

    def one(**values: Any) -> dict[str, Any]:
        return {"conv.bias": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **values}}

    square = [1000, 1000]
    two = {"a": one()["conv.bias"], "b": {**one()["conv.bias"], "data_offsets": [8, 12]}}
    bodies: list[tuple[Any, bytes, int | None]] = [
        (one(shape=square), f4, None),
        (one(shape=square, data_offsets=[0, 4_000_000]), f4, None),
        (one(), f4, 2**63),
        (one(), f4, 10_000),
        (one(data_offsets=[8, 4]), f4 * 2, None),
        (one(data_offsets=[-4, 0]), f4, None),
        (one(data_offsets=[0, 4, 4]), f4, None),
        (one(dtype="F31"), f4, None),
        (one(shape=[2**40, 2**40]), f4, None),
        (one(shape=[-1]), f4, None),
        (json.dumps({"a": 1, "b": 1}).replace('"b"', '"a"').encode(), f4, None),
        (one(), f4 * 2, None),
        (two, f4 * 3, None),
        (
            {f"t{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(10**5)},
            b"",
            None,
        ),
        (b'{"\xff": 1}', f4, None),
    ]
    labels = setup_of("ckpt-malformed-header")["files"]
    for label, (header, body, length) in zip(labels, bodies, strict=True):
        yield label, file(header, body, length)
    yield "float offsets", file(one(data_offsets=[0.0, 4.0]), f4)
    yield "not an object", file(b"[1]", f4)
    yield "NaN", file(b'{"a": NaN}', f4)


FILES = dict(malformed())


@pytest.mark.parametrize("label", FILES)
def test_ckpt_malformed_header(make_reference: Maker, label: str) -> None:
    path = make_reference.folder / "conv.yaml"
    path.write_text(CONV, encoding="utf-8")
    net = bpc.compile(path, device="reference")
    before = {name: value.tobytes() for name, value in net.parameters().items()}
    file = make_reference.folder / "bad.safetensors"
    file.write_bytes(FILES[label])
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(BpcError) as caught:
        net.load(file)
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.diagnostics[0].message
    assert seconds < 1 and peak < 64e6
    assert {name: value.tobytes() for name, value in net.parameters().items()} == before
