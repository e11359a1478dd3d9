"""Optimizers: what a spec may say of them, and the names of the states that they keep.

What they do with a parameter is in `bpc.optimizer_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bpc.types import DType, LayerSchema, Option

_LR = Option("lr", "float", None, minimum=0.0, help="learning rate; `train.lr` is the same")
_DECAY = Option("weight_decay", "float", 0.0, minimum=0.0, help="times w, added to the gradient")
_DECOUPLED = replace(_DECAY, help="times lr w, taken off beside the step")
_BETAS = (
    Option("beta1", "float", 0.9, minimum=0.0, below=1.0, help="share kept of the mean of g"),
    Option("beta2", "float", 0.999, minimum=0.0, below=1.0, help="the same of g squared"),
    Option("eps", "float", 1e-8, minimum=0.0, help="added to the root after bias correction"),
)
OPTIMIZERS: Mapping[str, LayerSchema] = {
    "sgd": LayerSchema(
        "sgd",
        (
            _LR,
            Option("momentum", "float", 0.0, minimum=0.0, help="share kept of the last move"),
            Option("nesterov", "bool", False, help="step from where momentum leads; needs it"),
            _DECAY,
        ),
        shorthand="lr",
    ),
    "adam": LayerSchema("adam", (_LR, *_BETAS, _DECAY), shorthand="lr"),
    "adamw": LayerSchema(
        "adamw", (_LR, *_BETAS, replace(_DECOUPLED, default=0.01)), shorthand="lr"
    ),
    "rmsprop": LayerSchema(
        "rmsprop",
        (
            _LR,
            Option("alpha", "float", 0.99, minimum=0.0, below=1.0, help="share kept of g squared"),
            Option("eps", "float", 1e-8, minimum=0.0, help="added to the root"),
            Option("momentum", "float", 0.0, minimum=0.0, help="share kept of the last move"),
            Option("centered", "bool", False, help="divide by the deviation from the mean of g"),
            _DECAY,
        ),
        shorthand="lr",
    ),
    "lion": LayerSchema(
        "lion",
        (
            _LR,
            Option("beta1", "float", 0.9, minimum=0.0, below=1.0, help="share of m in the step"),
            Option("beta2", "float", 0.99, minimum=0.0, below=1.0, help="share kept of m"),
            _DECOUPLED,
        ),
        shorthand="lr",
    ),
}

DECOUPLED = ("adamw", "lion")
"""Optimizers whose decay does not go through the gradient."""


def gradient_name(parameter: str) -> str:
    """The state that holds a parameter's gradient between `micro_step` and `update`."""
    return f"grad.{parameter}"


def master_name(parameter: str, storage: DType) -> str:
    """The full-precision copy of a parameter: itself, unless it is stored in 16 bits."""
    return f"master.{parameter}" if storage.bits < 32 else parameter
