"""Whether what the model makes suits the loss and the data's target; told at the layer at fault."""

from __future__ import annotations

from collections.abc import Mapping

from bpc.data.describe import Description
from bpc.errors import Note, Span, SpecError
from bpc.ir import Value
from bpc.spec.model import LayerSpec, Spec
from bpc.types import Rows, Shape, count_of, format_shape

SHAPES_DIFFER = "BPC0204"
TOO_FEW_SCORES = "BPC0221"


def check_loss(
    spec: Spec, description: Description, prediction: Value, places: Mapping[str, Span]
) -> None:
    """Refuse a result of another form than the loss compares with the target.

    Args:
        spec: its loss and layers.
        description: the target of the data.
        prediction: what the loss reads.
        places: where values are declared.

    Raises:
        SpecError: another shape, or fewer scores a row than there are classes. More are allowed.
    """
    if spec.loss.op == "cross_entropy":
        _check_scores(spec, description, prediction, places)
    elif prediction.shape != _target_shape(description):
        raise _wrong_shape(spec, description, prediction, _target_shape(description), places)


def _target_shape(description: Description) -> Shape:
    return (Rows(), *description.target.shape)


def _check_scores(
    spec: Spec, description: Description, prediction: Value, places: Mapping[str, Span]
) -> None:
    classes = description.target.classes
    if classes is None:
        raise _no_classes(spec, description)
    if prediction.shape[:-1] != _target_shape(description) or not prediction.shape:
        wanted = (*_target_shape(description), classes)
        raise _wrong_shape(spec, description, prediction, wanted, places)
    found = prediction.shape[-1]
    assert isinstance(found, int), "one axis alone grows with the batch"
    if found < classes:
        raise _too_few(spec, prediction, found, classes, places)


def _no_classes(spec: Spec, description: Description) -> SpecError:
    target = format_shape(_target_shape(description))
    message = f"loss cross_entropy takes class numbers, the target of the data is {target} values"
    notes = [Note(f"the data is {spec.data.source}", spec.data.span)]
    help = "give data.classes, or take a loss of values: mse, l1, bce_with_logits"
    return _error(SHAPES_DIFFER, message, spec.loss.span, notes, help)


def _wrong_shape(
    spec: Spec,
    description: Description,
    prediction: Value,
    wanted: Shape,
    places: Mapping[str, Span],
) -> SpecError:
    layer = _find_layer(spec)
    op, target = spec.loss.op, _target_shape(description)
    help = _help(layer, prediction, wanted)
    if op != "cross_entropy" and description.target.kind == "class":
        help = "the target is class numbers: write loss: cross_entropy"
    message = (
        f"{_title(layer, spec)} gives {format_shape(prediction.shape)}, "
        f"loss {op} takes {format_shape(wanted)}"
    )
    notes = [
        Note(f"the loss is {op}", spec.loss.span),
        Note(f"the target of {spec.data.source} is {format_shape(target)}", spec.data.span),
    ]
    return _error(SHAPES_DIFFER, message, _place(layer, spec, places), notes, help)


def _help(layer: LayerSpec | None, prediction: Value, wanted: Shape) -> str:
    """What makes the last layer fit: another width, or another number of axes."""
    found = prediction.shape
    if len(found) == len(wanted) and found[:-1] == wanted[:-1]:
        if layer is not None and layer.options.get("out") == found[-1]:
            return f"write out: {wanted[-1]}"
        return f"make the last axis {wanted[-1]} long"
    if len(found) > len(wanted) == 2:
        return f"add before the end: flatten, then {{linear: {wanted[-1]}}}"
    inner = ", ".join(str(dim) for dim in wanted[1:])
    return f"end with a layer of that shape, such as {{reshape: [{inner}]}}"


def _too_few(
    spec: Spec, prediction: Value, found: int, classes: int, places: Mapping[str, Span]
) -> SpecError:
    layer = _find_width(spec, found)
    message = (
        f"{_title(layer, spec)} gives {count_of(found, 'score')} a row, "
        f"the data has {classes} classes"
    )
    notes = [
        Note(f"{spec.data.source} has {classes} classes", spec.data.span),
        Note("cross_entropy takes one score a class", spec.loss.span),
    ]
    fits = layer is not None and layer.options.get("out") == found
    help = f"write out: {classes}" if fits else f"make the last axis {classes} long"
    return _error(TOO_FEW_SCORES, message, _place(layer, spec, places), notes, help)


def _find_layer(spec: Spec) -> LayerSpec | None:
    """The layer whose result the loss reads, unless that is a data input or a parameter."""
    name = spec.loss.inputs[0]
    return next((layer for layer in spec.layers if layer.full_name == name), None)


def _find_width(spec: Spec, width: int) -> LayerSpec | None:
    """The layer that decides how wide the result is: back over those that keep the width."""
    layers = {layer.full_name: layer for layer in spec.layers}
    first = layer = _find_layer(spec)
    while layer is not None and layer.options.get("out") != width and len(layer.inputs) == 1:
        layer = layers.get(layer.inputs[0])
    wide = layer is not None and layer.options.get("out") == width
    return layer if wide else first


def _title(layer: LayerSpec | None, spec: Spec) -> str:
    return f"{layer.op} '{layer.full_name}'" if layer else f"'{spec.loss.inputs[0]}'"


def _place(layer: LayerSpec | None, spec: Spec, places: Mapping[str, Span]) -> Span:
    if layer is None:
        return places.get(spec.loss.inputs[0], spec.loss.span)
    return layer.spans.get("out", layer.span)


def _error(code: str, message: str, span: Span, notes: list[Note], help: str) -> SpecError:
    error = SpecError.at(code, message, span, notes, help)
    assert isinstance(error, SpecError)
    return error
