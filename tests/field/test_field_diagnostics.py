"""Field cases about the first value that is not finite, and about sizes of indices."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_cases import setup_of
from field_nets import BELOW_ALL, Maker

from bpc.api import Net
from bpc.errors import NonFiniteError


def one_row(make: Maker, layers: str, x: Any, w: Any, precision: str = "fp32", **more: Any) -> Net:
    """The layers' last value, summed, of one input row x and a weight w."""
    x = np.atleast_2d(np.asarray(x, np.float64))
    n = x.shape[1]
    return make.build(
        layers,
        data=f"source: inline, x: {x.tolist()}, y: {np.full(x.shape, BELOW_ALL).tolist()}, "
        f"batch: {more.pop('batch', 1)}, shuffle: false",
        loss=f"{{l1: {{scale: {float(n)}}}}}",
        precision=precision,
        train="lr: 0.0, optimizer: sgd, epochs: 1, log_every: 1",
        parameters={"w": w},
    )


def blame(net: Net) -> NonFiniteError:
    with pytest.raises(NonFiniteError) as caught:
        net.train()
    return caught.value


CHAIN = "\n".join(
    [
        "mul: {name: op1, from: [x, w]}",
        *(f"add: {{value: 0.5, name: op{k}}}" for k in range(2, 7)),
        "log: {name: op7}",
        *(f"tanh: {{name: op{k}}}" for k in range(8, 13)),
    ]
)


def test_diag_nan_provenance(make: Maker) -> None:
    # an inf of the forward pass, before the NaN that it leads to
    layers = """
mul: {name: x0, from: [x, w]}
mul: {name: y, from: [x0, x0]}
sub: {name: z, from: [y, y]}
mul: {value: 0.0, name: last, from: z}
"""
    found = blame(one_row(make, layers, [1e30], [1.0]))
    assert (found.node, found.value, found.step) == ("y", np.inf, 1)
    assert "in the forward pass" in str(found)
    # an inf that is born in the backward pass
    layers = "mul: {name: x0, from: [x, w]}\nsqrt: {name: y}"
    found = blame(one_row(make, layers, [1.0], [0.0]))
    assert "y" in str(found) and np.isinf(found.value) and "in the backward pass" in str(found)
    # a NaN that a condition hides stops nothing, and its gradient is 0
    layers = """
mul: {name: x0, from: [x, w]}
log: {name: y}
formula: {formula: "y if x0 > 1e30 else 1.0", from: [x0, y], name: z}
"""
    net = one_row(make, layers, [-1.0], [1.0])
    assert net.train()["skipped_steps"] == 0
    assert net.parameters()["w"] == 1
    # op 7 of a chain of twelve, which are one kernel on the CPU
    found = blame(one_row(make, CHAIN, [-4.0], [1.0]))
    assert found.node == "op7" and np.isnan(found.value)
    span = found.diagnostics[0].span
    assert span is not None and span.line == 1 + _line_of(Path(span.file), "op7")
    # a NaN of the data, by source and through the stepper
    rows = np.ones((4 * 8, 2))
    net = one_row(make, "mul: {name: y, from: [x, w]}", rows, [1.0, 1.0], batch=8)
    net.data.train["x"][3 * 8 + 5, 1] = np.nan
    found = blame(net)
    assert (found.node, found.step, found.element) == ("x", 4, (5, 1))
    assert "in the batch" in str(found)
    # a weight that is no number, from the step before on
    layers = "mul: {name: y, from: [x, w]}"
    net = one_row(make, layers, [[3e38], [1.0]], [0.0])
    net.load_parameters({"w": [np.nan]})
    found = blame(net)
    assert found.node == "w" and "before the step began" in str(found)


def _line_of(path: Path, name: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(k for k, line in enumerate(lines) if f"name: {name}}}" in line)


def test_diag_nan_provenance_names_the_row_of_the_data(make: Maker) -> None:
    """A row that overflows in batch 3 of the data, as its element of the batch and of the data."""
    rows = np.ones((32, 1))
    rows[3 * 8 + 5] = 1e30
    layers = "mul: {name: x0, from: [x, w]}\nsquare: {name: y}"
    found = blame(one_row(make, layers, rows, [1.0], batch=8))
    assert (found.node, found.step, found.element) == ("y", 4, (5, 0))
    notes = [note.text for note in found.diagnostics[0].notes]
    assert "that row of the batch is row 29 of the data" in notes


STEPS = (
    "relu: {NAME}",
    "tanh: {NAME}",
    "sigmoid: {NAME}",
    "softplus: {NAME}",
    "mul: {value: 0.5, NAME}",
    "add: {value: 0.25, NAME}",
    "layernorm: {NAME}",
    "linear: {out: 4, NAME}",
    "dropout: {p: 0.2, NAME}",
    "gelu: {NAME}",
)
BREAKS = ("log: {NAME}", "sqrt: {NAME}", "div: {value: 0.0, NAME}", "exp: {NAME}")


def draw_chain(draw: random.Random, broken: bool) -> tuple[str, str]:
    """Layers, and the name of the one that makes the first value that is not finite."""
    kinds = [draw.choice(STEPS) for _ in range(draw.randint(3, 12))]
    lines = [kind.replace("NAME", f"name: op{k}") for k, kind in enumerate(kinds)]
    if not broken:
        return "\n".join(lines), ""
    at, kind = draw.randrange(len(lines) + 1), draw.choice(BREAKS)
    if kind.startswith(("exp", "div")):
        at = len(lines)  # tanh and its like would make finite numbers of the infinite ones again
    # what makes the operand of the break: far below 0, or far above what exp can take
    far = "clip: {min: 200.0, max: 300.0}" if kind.startswith("exp") else "clip: {min: -3, max: -2}"
    lines[at:at] = [far, kind.replace("NAME", "name: broken")]
    return "\n".join(lines), "broken"


@pytest.mark.parametrize(
    "count", [30, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_diag_nan_provenance_in_random_graphs(make_reference: Maker, count: int) -> None:
    """No alarm where all is finite; else the right layer, whatever follows it."""
    for number in range(count):
        for broken in (False, True):
            layers, culprit = draw_chain(random.Random(2 * number + broken), broken)
            net = make_reference.build(
                f"linear: {{out: 4, name: first}}\n{layers}\nlinear: {{out: 2, name: last}}",
                data="source: synthetic, shape: [3], target_shape: [2], rows: 4, batch: 4",
                loss="mse",
                train="steps: 1, lr: 0.01, optimizer: sgd",
            )
            if broken:
                assert blame(net).node == culprit, layers
            else:
                assert net.train()["skipped_steps"] == 0


# -- indices --------------------------------------------------------------------------------------


NARROW = re.compile(r"\b(?:int|int32_t|unsigned|uint32_t|short)\s+\w+\s*=\s*[^;]*[*+][^;]*;")


def texts_of(make: Maker, rows: int, columns: int) -> dict[str, str]:
    """The generated texts of a linear layer whose weight is [rows, columns]."""
    net = make.build(
        f"linear: {{out: {columns}, bias: false}}",
        data=f"source: synthetic, shape: [{rows}], target_shape: [{columns}], batch: 2, rows: 2",
        loss="mse",
    )
    facts = net.plan_memory()
    weight = next(t for t in facts["tensors"] if t["name"] == "linear1.weight")
    assert weight["bytes"] == 4 * rows * columns
    net.write(target="all", out="written")
    return {
        kind: Path(f"written/case.{kind}").read_text(encoding="utf-8") for kind in ("cpp", "cu")
    }


def test_idx_row_offset_beyond_int32(make_reference: Maker) -> None:
    """The case's table as a weight, and weights on either side of 2^31 elements.

    Gathering rows waits for embedding.
    """
    static = setup_of("idx-row-offset-beyond-int32")["static"]
    rows, width = static["table"]
    bad = static["first_bad_row"]
    assert bad * width - 1 == static["offset_last_element_of_row_239673"] < 2**31
    assert (bad + 1) * width - 1 == static["offset_last_element_of_row_239674"] >= 2**31
    for size, wide in (((rows, width), True), ((32768, 65536), True), ((32768, 65535), False)):
        texts = texts_of(make_reference, *size)
        # one type for all indices of the text, from the largest tensor
        assert ("typedef long long bpc_index;" in texts["cu"]) == wide
        assert ("typedef int bpc_index;" in texts["cu"]) != wide
        for kind, text in texts.items():
            code = re.sub(r"//[^\n]*", "", text)
            # a product that is widened after it was rounded off would be one of these
            assert not NARROW.search(code), (kind, NARROW.search(code))
        assert re.search(r"\blong\b|\bint64_t\b", texts["cpp"])
