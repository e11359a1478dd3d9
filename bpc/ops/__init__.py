"""The op table. Importing this package fills it."""

from bpc.ops import linear, loss, norm, primitive, scalar, tensor, vector_norm
from bpc.ops.base import (
    OPS,
    GradientForm,
    LayerContext,
    Op,
    OpTable,
    RunContext,
    ShapeFault,
    compute_dtype,
    elementwise,
    gradient_elementwise,
    gradient_forms,
    is_elementwise,
    scalar_form,
)
from bpc.ops.loss import LOSSES, Loss

__all__ = [
    "LOSSES",
    "OPS",
    "GradientForm",
    "LayerContext",
    "Loss",
    "Op",
    "OpTable",
    "RunContext",
    "ShapeFault",
    "compute_dtype",
    "elementwise",
    "gradient_elementwise",
    "gradient_forms",
    "is_elementwise",
    "linear",
    "loss",
    "norm",
    "primitive",
    "scalar",
    "scalar_form",
    "tensor",
    "vector_norm",
]
