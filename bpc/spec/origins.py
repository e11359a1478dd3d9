"""Where every resolved value comes from: a place in a file, the command line, or a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bpc.errors import Span
from bpc.spec.model import Origin, Spec
from bpc.spec.yamlnodes import Items, Node, Table, is_null


def find_origins(spec: Spec, root: Table) -> Spec:
    """The spec with `origins` filled in.

    Keys are dotted: `train.lr`, `data.batch`, `model.<full name of a layer>.<option>`,
    `loss.<option>`, `train.optimizer.<option>`, `train.schedule.<option>`. Lists and mappings of a
    section stand where their key does.
    """
    origins: dict[str, Origin] = {}
    for key in ("name", "seed"):
        node = root.get(key)
        origins[key] = node.span if node is not None else "default"
    _add(origins, "data", dict.fromkeys(("source", "batch", "shuffle")), spec.data.spans)
    _add(origins, "data", spec.data.options, spec.data.spans)
    for layer in spec.layers:
        _add(origins, f"model.{layer.full_name}", layer.options, layer.spans)
    _add(origins, "loss", spec.loss.options, spec.loss.spans)
    _add_train(origins, spec, root.get("train"))
    return replace(spec, origins=origins)


def _add(
    origins: dict[str, Origin], path: str, values: Mapping[str, object], spans: Mapping[str, Span]
) -> None:
    for name in values:
        origins[f"{path}.{name}"] = spans.get(name, "default")


def _add_train(origins: dict[str, Origin], spec: Spec, node: Node | None) -> None:
    train = spec.train
    written = _places(node, "train")
    defaults = (
        *(f"train.{key}" for key in ("epochs", "steps", "precision", "gradients")),
        *(f"train.{key}" for key in ("accumulate", "memory", "nonfinite")),
        *(f"train.{key}" for key in ("log_every", "eval_every", "schedule", "optimizer")),
        *("train.clip.global_norm", "train.clip.value"),
        *("train.warmup.steps", "train.warmup.share"),
        *(f"train.checkpoint.{key}" for key in ("every", "keep", "best")),
        *(f"train.loss_scale.{key}" for key in ("start", "growth_interval", "backoff", "growth")),
        "train.loss_scale.floor",
        *("train.groups", "train.clip.groups", "train.metrics", "train.tensorboard"),
        *(f"train.early_stopping.{key}" for key in ("metric", "patience", "min_delta")),
    )
    for key in defaults:
        origins[key] = written.get(key, "default")
    for key, place in (("optimizer", train.optimizer.span), ("schedule", train.schedule.span)):
        if key in train.spans:
            origins[f"train.{key}"] = place
    _add(origins, "train.optimizer", train.optimizer.options, train.optimizer.spans)
    _add(origins, "train.schedule", train.schedule.options, train.schedule.spans)
    origins["train.lr"] = train.spans.get("lr", "default")


def _places(node: Node | None, path: str) -> dict[str, Span]:
    """Where each value below a node is written, and the key of each list and mapping."""
    found: dict[str, Span] = {}
    for entry in node.entries if isinstance(node, Table) else ():
        key, value = f"{path}.{entry.key}", entry.value
        if not is_null(value):
            found[key] = entry.key_span if isinstance(value, Table | Items) else value.span
        found.update(_places(value, key))
    return found
