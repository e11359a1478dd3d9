"""Small networks, and what their runs leave, for the tests of checkpoints."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np

from bpc import api
from bpc.errors import Interrupted
from bpc.train.checkpoint import open_checkpoint
from bpc.train.files import Bytes, Files
from bpc.train.loop import Resume
from bpc.train.run_folder import RunFolder

STEPS = 40
SMALL = """\
bpc: 1
name: small
data: {source: synthetic, shape: [5], classes: 3, rows: 22, test_rows: 9, batch: 4}
model:
  - linear: {name: fc1, out: 6, init: he}
  - relu: {name: act}
  - linear: {name: fc2, out: 3, init: xavier}
loss: cross_entropy
train:
  steps: 40
  precision: fp32
  optimizer: {adam: {lr: 0.01}}
  checkpoint: {every: 1, keep: 1000}
"""
DROPOUT = "[{linear: {name: fc1, out: 6}}, {dropout: 0.4}, {relu: {name: act}}, {linear: {out: 3}}]"
# A state that one of these does not save, another needs.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "dropout": {"model": DROPOUT},
    "accumulation": {"train.accumulate": 3, "train.clip": "{global_norm: 0.5}"},
    "fp16 with overflows": {
        "train.precision": "fp16",
        "train.loss_scale": "{start: 67108864, growth_interval: 3}",
    },
    "bf16": {"train.precision": "bf16", "model": DROPOUT},
    "mid-epoch, fp64": {"train.precision": "fp64", "data.batch": 5},
    "momentum": {"train.optimizer": "{sgd: {lr: 0.05, momentum: 0.9}}"},
    "schedule": {"train.schedule": "{cosine: 0.1}", "train.warmup": "{steps: 7}"},
    "sparse log, decay": {
        "train.optimizer": "{adamw: {lr: 0.01}}",
        "train.log_every": 2,
        "train.eval_every": 7,
    },
    # Ends after step 24: it waits from step 9 on.
    "early stopping": {
        "model": DROPOUT,
        "train.optimizer": "{sgd: {lr: 0.2, momentum: 0.9}}",
        "train.eval_every": 3,
        "train.metrics": "[top2]",
        "train.early_stopping": "{metric: test_accuracy, patience: 4, min_delta: 0.01}",
    },
}
SECONDS = ("seconds", "step_ms")


class Unsynced(Files):
    """Leaves it to the system when to write: for runs that no crash is simulated in."""

    def sync(self, descriptor: int) -> None:
        pass


class FailingFiles(Unsynced):
    """Counts calls and fails in the call with a number, or in that one and all later ones.

    `torn`: a write that fails has written half of its bytes before.
    """

    def __init__(
        self, at: int = -1, code: int = errno.ENOSPC, torn: bool = False, on: bool = False
    ):
        self.at, self.code, self.torn, self.on = at, code, torn, on
        self.calls: list[str] = []

    def _count(self, name: str) -> bool:
        self.calls.append(name)
        number = len(self.calls) - 1
        return number == self.at or (self.on and 0 <= self.at <= number)

    def _fail(self) -> None:
        raise OSError(self.code, "planted")

    def create(self, path: Path) -> int:
        if self._count("create"):
            self._fail()
        return super().create(path)

    def write(self, descriptor: int, data: Bytes) -> int:
        if self._count("write"):
            if self.torn:
                super().write(descriptor, memoryview(data)[: len(data) // 2])
            self._fail()
        return super().write(descriptor, memoryview(data)[: max(1, len(data) // 3)])

    def sync(self, descriptor: int) -> None:
        if self._count("sync"):
            self._fail()

    def make_folder(self, path: Path) -> None:
        if self._count("make_folder"):
            self._fail()
        super().make_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        if self._count("rename"):
            self._fail()
        super().rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        if self._count("link"):
            self._fail()
        super().link(old, new)


def write_spec(folder: Path, text: str = SMALL) -> Path:
    path = folder / "net.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def compile_small(spec: Path, settings: dict[str, Any] | None = None) -> api.Net:
    return api.compile(spec, set=settings or {}, device="reference")


def train_straight(net: api.Net, run: Path, **more: Any) -> dict[str, Any]:
    """A run that keeps a checkpoint of each step."""
    return net.train(run_dir=run, files=Unsynced(), **more)


def stop_at(net: api.Net, run: Path, step: int) -> None:
    try:
        net.train(run_dir=run, stop_after=step, files=Unsynced())
    except Interrupted:
        return
    raise AssertionError("the run came to its end")


def go_on(net: api.Net, run: Path, checkpoint: Path, files: Files | None = None) -> dict[str, Any]:
    """Go on from a checkpoint with a device that remembers nothing of what went before."""
    scramble(net)
    resume = Resume(RunFolder(run), open_checkpoint(checkpoint))
    return net.train(resume=resume, files=files or Unsynced())


def scramble(net: api.Net) -> None:
    """Fill every state with what no run would leave there."""
    for state in net.entries.states:
        shape = net.device.read_state(state.name).shape
        net.device.write_state(state.name, np.full(shape, 7, np.float64))


def states_of(net: api.Net) -> dict[str, bytes]:
    """The bytes of every state of the device, gradients and metrics too."""
    names = (state.name for state in net.entries.states)
    return {name: net.device.read_state(name).tobytes() for name in names}


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in SECONDS} for row in rows]


def contents_of(checkpoint: Path) -> dict[str, Any]:
    """Everything that two equal runs share of a checkpoint."""
    found: dict[str, Any] = {
        path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")
    }
    state = json.loads((checkpoint / "state.json").read_text())
    del state["digest"], state["loop"]["seconds"], state["run"]
    return {**found, "state": state}


def resume_at(run: Path, step: int) -> Resume:
    """What a run needs to go on from one of its checkpoints."""
    path = run / "checkpoints" / f"step-{step:06d}"
    return Resume(RunFolder(run), open_checkpoint(path))
