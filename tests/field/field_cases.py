"""The data of the field cases, and tolerances and arrays read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
}
PRECISIONS = {"float64": "fp64", "float32": "fp32", "float16": "fp16"}
DEFAULT = {"fp64": {"rtol": 1e-12, "atol": 0}, "fp32": {"rtol": 2e-6, "atol": 0}}


def inputs_of(name: str) -> dict[str, Array]:
    """Inputs and parameters of a case that are given as numbers."""
    setup = setup_of(name)
    found = {**setup.get("inputs", {}), **setup.get("params", {})}
    return {key: np.asarray(value) for key, value in found.items() if isinstance(value, list)}


def setup_of(name: str) -> dict[str, Any]:
    """What the case starts from."""
    found: dict[str, Any] = CASES[name]["setup"]
    return found


def expected(name: str) -> dict[str, Any]:
    """What the case expects."""
    found: dict[str, Any] = CASES[name]["expect"]
    return found


def assert_near(name: str, precision: str, found: Any, wanted: Any, key: str = "tol") -> None:
    """Compare within the case's tolerance for the type; without one, to the type's precision."""
    types = {short: long for long, short in PRECISIONS.items()}
    given: Mapping[str, Any] = expected(name).get(key, {})
    tolerance = given.get(types[precision], DEFAULT.get(precision, {"rtol": 2e-3, "atol": 0}))
    rtol, atol = tolerance.get("rtol", 0), tolerance.get("atol", 0)
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.size == wanted.size, f"{found.shape} against {wanted.shape}"
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=rtol, atol=atol)
