"""What compare.py can train. A further work is a spec file, its data, and one function a peer.

Weights have bpc's names and layouts: `fc1.weight` is [in, out]. No framework is imported before
the function that needs it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
LEARNING_RATE, GLOBAL_NORM = 1e-3, 1.0

Arrays = dict[str, np.ndarray]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """One network with its data, told once to every peer.

    `make_data` returns `x` and `target`, `make_weights` the weights by bpc's names;
    `torch_model(weights)` is a module and `jax_model(weights, x)` a function, both to logits.
    """

    summary: str
    spec: Path
    batch: int
    make_data: Callable[[np.random.Generator], Arrays]
    make_weights: Callable[[np.random.Generator], Arrays]
    torch_model: Callable[[Arrays], Any]
    jax_model: Callable[[Any, Any], Any]


MLP_SIZES: Sizes = (784, 256, 128, 10)


def mlp_data(draw: np.random.Generator) -> Arrays:
    """4,096 rows, more than a cache of the second level holds; classes by a random linear map."""
    x = draw.standard_normal((4096, MLP_SIZES[0]), dtype=np.float32)
    map_of_classes = draw.standard_normal((MLP_SIZES[0], MLP_SIZES[-1]), dtype=np.float32)
    return {"x": x, "target": (x @ map_of_classes).argmax(axis=1).astype(np.int64)}


def mlp_weights(draw: np.random.Generator) -> Arrays:
    weights = {}
    for number, (fan_in, out) in enumerate(pairwise(MLP_SIZES), 1):
        scale = np.float32(np.sqrt(2 / fan_in))
        weights[f"fc{number}.weight"] = scale * draw.standard_normal((fan_in, out), np.float32)
        weights[f"fc{number}.bias"] = np.zeros(out, np.float32)
    return weights


def mlp_torch(weights: Arrays) -> Any:
    import torch

    layers: list[Any] = []
    for number in (1, 2, 3):
        weight, bias = weights[f"fc{number}.weight"], weights[f"fc{number}.bias"]
        layer = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight.T))
            layer.bias.copy_(torch.from_numpy(bias))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def mlp_jax(weights: Any, x: Any) -> Any:
    import jax

    for number in (1, 2, 3):
        x = x @ weights[f"fc{number}.weight"] + weights[f"fc{number}.bias"]
        x = jax.nn.relu(x) if number < 3 else x
    return x


WORKS = {
    "mlp": Work(
        "784-256-128-10 relu, batch 128, Adam, clip 1.0, fp32",
        FOLDER / "mlp.yaml",
        128,
        mlp_data,
        mlp_weights,
        mlp_torch,
        mlp_jax,
    ),
}
