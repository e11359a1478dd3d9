"""The stand-ins against what is installed, and where bpc speaks to CuPy."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import numpy as np
import pytest
from cupy_signatures import (
    ATTRIBUTES,
    CUBLASLT,
    CUBLASLT_NUMBERS,
    CUPY,
    HEURISTIC_RESULT,
    parameter_names,
)
from fake_cublaslt import make_cublaslt
from fake_cupy import make_cupy, parameters_of


def _installed(path: str) -> Any:
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for part in parts[1:]:
        found = getattr(found, part)
    return found


def _signature(found: Any) -> str:
    try:
        return str(inspect.signature(found))
    except (ValueError, TypeError):
        return str(found.__doc__).splitlines()[0]


@pytest.mark.parametrize("path", CUPY)
def test_the_stand_in_has_the_parameters_of_cupy(path: str) -> None:
    wanted = parameter_names(CUPY[path])
    fake = make_cupy()
    if path.endswith("CUDADriverError") or path.endswith("CompileException"):
        assert parameters_of(path, fake)[: len(wanted)] == wanted
    else:
        found = parameters_of(path, fake)
        if "runtime.mem" not in path or path.endswith("Info"):
            assert found == wanted
        assert len(found) == len(wanted)  # builtins are called by position
    if importlib.util.find_spec("cupy") is not None:
        assert parameter_names(_signature(_installed(path))) == wanted


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_the_stand_in_has_the_attributes_of_cupy(path: str) -> None:
    fake: Any = make_cupy()
    for part in path.split(".")[1:]:
        fake = getattr(fake, part)
    for name in ATTRIBUTES[path]:
        assert hasattr(fake, name)
        if importlib.util.find_spec("cupy") is not None:
            assert hasattr(_installed(path), name)


@pytest.mark.parametrize("name", CUBLASLT)
def test_the_stand_in_has_the_parameters_of_nvmath(name: str) -> None:
    module, _ = make_cublaslt()
    wanted = parameter_names(CUBLASLT[name])
    found = [p for p in inspect.signature(getattr(module, name)).parameters if p != "self"]
    assert found == wanted
    if importlib.util.find_spec("nvmath") is not None:
        real = importlib.import_module("nvmath.bindings.cublasLt")
        assert parameter_names(_signature(getattr(real, name))) == wanted


def test_numbers_of_nvmath() -> None:
    module, _ = make_cublaslt()
    real = module
    if importlib.util.find_spec("nvmath") is not None:
        real = importlib.import_module("nvmath.bindings.cublasLt")
    for name, number in CUBLASLT_NUMBERS.items():
        group, member = name.split(".")
        assert getattr(getattr(real, group), member) == number
    assert np.dtype(real.matmul_heuristic_result_dtype) == np.dtype(HEURISTIC_RESULT)
