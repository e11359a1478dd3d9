"""Small networks from text, and a probe: values and gradients by way of a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from field_cases import Array

import bpc
from bpc.api import Net

BELOW_ALL = -1e30
"""As the target of an l1 loss it makes the loss a sum, whose gradient by each element is 1."""

_numbers = count()


@dataclass(frozen=True)
class Maker:
    """Compiles texts of specs for one device, in one folder."""

    folder: Path
    device: str

    def net(self, text: str, memory: int | None = None, **settings: Any) -> Net:
        """Compile a text; `train__accumulate=2` sets `train.accumulate`."""
        path = self.folder / f"case{next(_numbers)}.yaml"
        path.write_text(f"bpc: 1\nname: case\n{text}", encoding="utf-8")
        sets = {key.replace("__", "."): value for key, value in settings.items()}
        return bpc.compile(path, set=sets, device=self.device, memory=memory)

    def build(
        self,
        layers: str,
        *,
        data: str,
        loss: str = "l1",
        precision: str = "fp32",
        train: str = "lr: 1.0, optimizer: sgd",
        parameters: Mapping[str, Any] | None = None,
        top: str = "",
        memory: int | None = None,
    ) -> Net:
        """Compile a spec from its parts; `layers` has one entry a line."""
        lines = "".join(f"  - {line}\n" for line in layers.strip().splitlines())
        return self.net(
            f"data: {{{data}}}\n{top}{_declare(parameters or {})}model:\n{lines}loss: {loss}\n"
            f"train: {{{train}, precision: {precision}}}\n",
            memory,
        )

    def probe(
        self, layers: str, given: Mapping[str, Any], shape: Sequence[int], **more: Any
    ) -> Probe:
        """The value of the last line, and d sum(value * upstream) by all that is given.

        What is given are weights, which the layers read by name with an axis of one row in
        front: gradients come out of the planned training step, as they do in a run. `shape` is
        that of the value. On the CPU the step is taken again under smaller budgets, which must
        give the same bits.

        Args:
            more: precision, upstream, top.
        """
        asked = _Asked(self, layers.strip(), given, tuple(shape), **more)
        value = asked.predict()
        budgets = [None] if self.device == "reference" else _budgets(asked.net())
        found = [asked.gradients(memory) for memory in budgets]
        for other in found[1:]:
            for name in given:
                assert found[0][name].tobytes() == other[name].tobytes(), name
        return Probe(value, found[0])


@dataclass(frozen=True)
class Probe:
    """A value without its row axis, and gradients by name."""

    value: Array
    gradients: Mapping[str, Array]


@dataclass(frozen=True)
class _Asked:
    make: Maker
    layers: str
    given: Mapping[str, Any]
    shape: tuple[int, ...]
    precision: str = "fp32"
    upstream: Any = None
    top: str = ""

    def predict(self) -> Array:
        plain = replace(self, upstream=None)
        found: Array = plain.net().predict(plain._batch())
        return found[0]

    def gradients(self, memory: int | None) -> dict[str, Array]:
        net = self.net(memory)
        batch = self._batch()
        batch["target"] = np.full((1, *self.shape), BELOW_ALL)
        assert net.stepper(batch).step([0]) is not None
        return {name: net.device.read_state(f"grad.given_{name}") for name in self.given}

    def net(self, memory: int | None = None) -> Net:
        lines = [
            f"mul: {{name: {name}, from: [given_{name}, unit{np.ndim(array)}]}}"
            for name, array in self.given.items()
        ]
        lines += self.layers.splitlines()
        if self.upstream is not None:
            lines += ["mul: {from: [y, upstream]}"]
        inputs = {name: list(array.shape[1:]) for name, array in self._batch().items()}
        shown = ", ".join(f"{name}: {shape}" for name, shape in inputs.items())
        return self.make.build(
            "\n".join(lines),
            data=f"source: synthetic, inputs: {{{shown}}}, batch: 1, rows: 1, test_rows: 1, "
            f"target_shape: {list(self.shape)}",
            loss=f"{{l1: {{scale: {int(np.prod(self.shape))}}}}}",
            precision=self.precision,
            train="lr: 1.0, optimizer: sgd, nonfinite: skip, loss_scale: {start: 1.0}",
            parameters={f"given_{name}": array for name, array in self.given.items()},
            top=self.top,
            memory=memory,
        )

    def _batch(self) -> dict[str, Array]:
        """One row of ones for each rank that is given, and what the value is multiplied by."""
        ranks = sorted({np.ndim(array) for array in self.given.values()})
        batch = {f"unit{rank}": np.ones((1,) * (rank + 1)) for rank in ranks}
        if self.upstream is not None:
            batch["upstream"] = np.asarray(self.upstream, np.float64).reshape(1, *self.shape)
        return batch


def _declare(parameters: Mapping[str, Any]) -> str:
    lines = "".join(
        f"  {name}: {{shape: {list(np.shape(array))}, init: {np.asarray(array).tolist()}}}\n"
        for name, array in parameters.items()
    )
    return f"parameters:\n{lines}" if lines else ""


def _budgets(net: Net) -> list[int | None]:
    """No budget, the least that any plan needs, and one between."""
    facts = net.plan_memory()
    least, peak = facts["least_feasible_bytes"], facts["planned_peak_bytes"]
    return [None, *sorted({least, (least + peak) // 2} - {peak})]


def find_plans(make: Any, count: int = 8) -> list[tuple[int, Net]]:
    """Networks with different plans, from keeping everything to the least budget.

    Args:
        make: compiles the network under a budget in bytes, or none.
        count: how many budgets are tried.
    """
    facts = make(None).plan_memory()
    least, peak = facts["least_feasible_bytes"], facts["planned_peak_bytes"]
    found: dict[tuple[int, int], tuple[int, Net]] = {}
    for budget in np.linspace(least, peak, count).astype(int).tolist():
        net = make(budget)
        facts = net.plan_memory()
        key = facts["planned_peak_bytes"], facts["recompute_flops"]
        found.setdefault(key, (facts["recompute_flops"], net))
    return sorted(found.values(), key=lambda item: item[0])
