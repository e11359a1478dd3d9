"""A small op table for tests of the spec language, and one way to load with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bpc.errors import SpecError
from bpc.spec import Spec, load_spec
from bpc.types import LayerSchema, Option


def _table(*rows: LayerSchema) -> dict[str, LayerSchema]:
    return {row.name: row for row in rows}


LAYERS = _table(
    LayerSchema(
        "linear",
        (
            Option("out", "int", required=True, minimum=1, help="columns of the result"),
            Option("init", "init", default="he"),
            Option("bias", "bool", default=True),
            Option("weight", "name"),
        ),
        shorthand="out",
    ),
    LayerSchema("relu"),
    LayerSchema("gelu", (Option("form", "choice", "erf", choices=("erf", "tanh")),)),
    LayerSchema("dropout", (Option("p", "float", 0.5, minimum=0, maximum=1),), shorthand="p"),
    LayerSchema("add", (), 2, None),
    LayerSchema("sum", (Option("axes", "ints"),), shorthand="axes"),
    LayerSchema("reshape", (Option("shape", "shape", required=True),), shorthand="shape"),
    LayerSchema("formula", (Option("body", "formula", required=True),), 1, 4, "body"),
    LayerSchema("note", (Option("name", "text", "none"),)),
)
LOSSES = _table(
    LayerSchema("cross_entropy", (Option("label_smoothing", "float", 0.0, minimum=0, maximum=1),)),
    LayerSchema("mse"),
)
OPTIMIZERS = _table(
    LayerSchema("sgd", (Option("lr", "float", minimum=0), Option("momentum", "float", 0.0))),
    LayerSchema("adam", (Option("lr", "float", 1e-3), Option("beta1", "float", 0.9))),
)

HEAD = "bpc: 1\ndata: {source: digits, batch: 16}\n"
TAIL = "\nloss: cross_entropy\n"


def load(
    text: str, path: str | Path = "spec.yaml", sets: Mapping[str, object] | None = None
) -> Spec:
    return load_spec(path, LAYERS, LOSSES, OPTIMIZERS, sets or {}, text)


def load_model(model: str, rest: str = "") -> Spec:
    """A spec with this flow-style model."""
    return load(f"{HEAD}{rest}\nmodel: {model}{TAIL}")


def faults(text: str, sets: Mapping[str, object] | None = None) -> list[tuple[str, int, int]]:
    """Code, line and column of every fault."""
    with pytest.raises(SpecError) as caught:
        load(text, sets=sets)
    assert all(item.span for item in caught.value.diagnostics)
    return [
        (item.code, item.span.line, item.span.column)
        for item in caught.value.diagnostics
        if item.span
    ]
