"""What single numbers of an update are, in the words of a comment beside their statement."""

from __future__ import annotations

import re

from bpc.ir import Node

_WORDS = {
    "unscale": "turns kept gradients into those of the mean loss, without scale",
    "norm": "length of all gradients together, without scale, before clipping",
    "nonfinite.now": "1 where a gradient or the loss is inf or NaN",
    "nonfinite": "1 if that is so, or was so before while the host reads late: no update is made",
    "held": "1 if the step will be run again, so that it does not count",
    "factor.share": "what clipping leaves of every gradient: limit / norm, at most 1",
    "factor": "what each kept gradient is multiplied by",
    "update.number": "counted from 1",
    "lr": "learning rate of this update",
    "updates": "updates made, without skipped ones",
    "window": "steps tried: made or skipped",
    "scale": "loss scale of the next step",
    "good": "steps since the scale last changed or an update was skipped",
    "lr.rate": "lr in the type of the weights",
    "step.size": "lr over the bias correction of the mean: lr / (1 - beta1^t)",
    "root.size": "bias correction of the root of the mean square: 1 / sqrt(1 - beta2^t)",
    "decay.kept": "what decay leaves of a weight: 1 - lr decay",
}
_THROUGH = "squares_through."
_SUFFIX = re.compile(r"(\.exact|\.group\d+)+$")


def describe_control(node: Node) -> str:
    """What a number of the update is, in a few words; '' for what has a name that tells."""
    if node.name.startswith(_THROUGH):
        return f"running sum, up to {node.name.removeprefix(_THROUGH)}"
    return _WORDS.get(_SUFFIX.sub("", node.name), "") if node.role == "control" else ""
