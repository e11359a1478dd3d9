"""The initialisers that a spec may name, each with its options."""

from __future__ import annotations

from collections.abc import Mapping

from bpc.types import LayerSchema, Option

_GAIN = Option("gain", "float", 1.0, minimum=0.0, help="factor on the standard deviation")
_DISTRIBUTION = Option(
    "distribution", "choice", "uniform", choices=("uniform", "normal"), help="kind of the draws"
)
_MODE = Option("mode", "choice", "fan_in", choices=("fan_in", "fan_out"), help="which fan sets it")
# He keeps the variance of a relu, which halves it: sqrt(2). Others write their own gain.
_HE_GAIN = Option("gain", "float", 2.0**0.5, minimum=0.0, help="sqrt(2) suits relu")

_ROWS = (
    LayerSchema("zeros", help="0 everywhere"),
    LayerSchema("ones", help="1 everywhere"),
    LayerSchema(
        "constant",
        (Option("value", "float", required=True, help="of every element"),),
        shorthand="value",
        help="one value everywhere",
    ),
    LayerSchema(
        "normal",
        (
            Option("mean", "float", 0.0, help="mean of the draws"),
            Option("std", "float", 1.0, minimum=0.0, help="standard deviation of the draws"),
        ),
        shorthand="std",
        help="independent normal draws",
    ),
    LayerSchema(
        "uniform",
        (
            Option("low", "float", -1.0, help="the least draw"),
            Option("high", "float", 1.0, help="the bound above all draws"),
        ),
        help="independent draws from [low, high)",
    ),
    LayerSchema("xavier", (_DISTRIBUTION, _GAIN), help="variance 2 / (fan_in + fan_out)"),
    LayerSchema("xavier_uniform", (_GAIN,), help="xavier, uniform"),
    LayerSchema("xavier_normal", (_GAIN,), help="xavier, normal"),
    LayerSchema("he", (_DISTRIBUTION, _MODE, _HE_GAIN), help="variance 2 / fan"),
    LayerSchema("he_uniform", (_MODE, _HE_GAIN), help="he, uniform"),
    LayerSchema("he_normal", (_MODE, _HE_GAIN), help="he, normal"),
    LayerSchema("orthogonal", (_GAIN,), help="a random matrix with orthonormal rows or columns"),
)
INITS: Mapping[str, LayerSchema] = {row.name: row for row in _ROWS}
