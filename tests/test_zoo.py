"""Every spec of the zoo loads, and its data is what its model expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpc.data.describe import describe
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.resources import spec_root
from bpc.spec.load import load_spec

ZOO = sorted(spec_root().rglob("*.yaml"))


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_a_spec_of_the_zoo_loads(path: Path) -> None:
    spec = load_spec(path, layer_schemas(), loss_schemas(), OPTIMIZERS)
    assert spec.name.replace("-", "_") == path.stem
    target = describe(spec.data.source, spec.data.options, spec.data.span).target
    expected = target.classes if target.kind == "class" else target.shape[-1]
    outs = [layer.options["out"] for layer in spec.layers if "out" in layer.options]
    assert outs[-1] == expected
