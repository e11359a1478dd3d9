"""What a spec may write: schemas of layers and losses, gathered for the loader."""

from __future__ import annotations

from collections.abc import Mapping

from bpc.ops.base import OPS
from bpc.ops.loss import LOSSES
from bpc.types import LayerSchema, Option

FORMULA = LayerSchema(
    "formula",
    (Option("formula", "formula", required=True, help="an expression in x or the inputs' names"),),
    1,
    None,
    "formula",
    "an element-wise function written out",
)


def layer_schemas() -> Mapping[str, LayerSchema]:
    """Every layer by name."""
    return {**OPS.layers(), FORMULA.name: FORMULA}


def loss_schemas() -> Mapping[str, LayerSchema]:
    """Every loss by name."""
    return {name: loss.schema for name, loss in LOSSES.items()}
