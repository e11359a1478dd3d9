"""YAML with places -> a resolved `Spec`."""

from bpc.spec.inits import INITS
from bpc.spec.jsonschema import json_schema
from bpc.spec.load import load_spec
from bpc.spec.model import (
    CheckpointSpec,
    DataSpec,
    FunctionSpec,
    InitSpec,
    LayerSpec,
    LossScaleSpec,
    LossSpec,
    OptimizerSpec,
    Origin,
    ParameterSpec,
    ScheduleSpec,
    Spec,
    TrainSpec,
)
from bpc.spec.schema import SCHEDULES
from bpc.spec.sizes import parse_size

__all__ = [
    "INITS",
    "SCHEDULES",
    "CheckpointSpec",
    "DataSpec",
    "FunctionSpec",
    "InitSpec",
    "LayerSpec",
    "LossScaleSpec",
    "LossSpec",
    "OptimizerSpec",
    "Origin",
    "ParameterSpec",
    "ScheduleSpec",
    "Spec",
    "TrainSpec",
    "json_schema",
    "load_spec",
    "parse_size",
]
