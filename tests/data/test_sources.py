from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bpc.data import mnist
from bpc.data.describe import describe
from bpc.data.read import Dataset, check, read
from bpc.errors import DataError, Span, ToolError
from bpc.types import F32, F64

SPAN = Span("net.yaml", 4, 7)
OPTIONS: dict[str, dict[str, object]] = {
    "digits": {},
    "mnist5k": {"shape": [1, 28, 28]},
    "synthetic": {"inputs": {"x": [3, 4], "y": [5]}, "classes": 4, "rows": 60, "test_rows": 20},
    "inline": {"x": [[1, 2], [3, 4], [5, 6]], "y": [0, 2, 1], "classes": 3},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BPC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("source", OPTIONS)
def test_what_is_read_is_what_was_described(source: str) -> None:
    description = describe(source, OPTIONS[source], SPAN)
    dataset = read(source, OPTIONS[source], SPAN, seed=1)
    for part, rows in (
        (dataset.train, description.train_rows),
        (dataset.test, description.test_rows),
    ):
        assert set(part) == {*description.inputs, "target"}
        for name, info in description.inputs.items():
            assert part[name].shape == (rows, *info.shape)
            assert part[name].dtype == {F32: np.float32, F64: np.float64}[info.dtype]
        assert part["target"].shape == (rows, *description.target.shape)
        assert part["target"].max() == description.target.classes - 1


def test_digits_are_the_1797_images_with_every_fifth_held_out() -> None:
    dataset = read("digits", {}, SPAN, 0)
    assert (len(dataset.train["x"]), len(dataset.test["x"])) == (1438, 359)
    assert dataset.train["x"].dtype == np.float32
    assert dataset.train["x"].min() == 0 and dataset.train["x"].max() == 1
    # The file begins 0 1 2 3 4 5 6 7 8 9 0 1 ...: rows 4, 9 and 14 are held out.
    assert dataset.train["target"][:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert dataset.test["target"][:3].tolist() == [4, 9, 4]
    counts = np.bincount(np.concatenate([dataset.train["target"], dataset.test["target"]]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_equal_what_scikit_learn_ships() -> None:
    from sklearn.datasets import load_digits

    origin = load_digits()
    dataset = read("digits", {}, SPAN, 0)
    held = np.arange(1797) % 5 == 4
    assert (dataset.test["x"] == origin.data[held].astype(np.float32) / 16).all()
    assert (dataset.train["target"] == origin.target[~held]).all()


def test_a_shape_changes_the_view_alone() -> None:
    flat, image = read("digits", {}, SPAN, 0), read("digits", {"shape": [1, 8, 8]}, SPAN, 0)
    assert image.train["x"].shape == (1438, 1, 8, 8)
    assert (image.train["x"].reshape(1438, 64) == flat.train["x"]).all()


def test_mnist_is_parsed_once_and_then_read_from_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read("mnist5k", {}, SPAN, 0)
    assert first.train["x"].shape == (4000, 784) and first.test["x"].shape == (1000, 784)
    assert first.train["x"].max() == 1 and np.bincount(first.test["target"]).tolist() == [100] * 10
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(mnist, "_parse", lambda *_: pytest.fail("parsed again"))
    assert (read("mnist5k", {}, SPAN, 0).train["x"] == first.train["x"]).all()


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x93NUMPY\x01\x00"])
def test_a_damaged_cache_is_replaced(cache: Path, damage: bytes) -> None:
    first = read("mnist5k", {}, SPAN, 0)
    (stored,) = cache.iterdir()
    whole = stored.read_bytes()
    stored.write_bytes(damage or whole[: len(whole) // 2])
    assert (read("mnist5k", {}, SPAN, 0).train["x"] == first.train["x"]).all()
    assert stored.read_bytes() == whole


def test_mnist_does_not_need_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("BPC_CACHE", str(blocked))
    assert len(read("mnist5k", {}, SPAN, 0).train["x"]) == 4000


def test_mnist_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "find_spec", lambda name: None)
    assert describe("mnist5k", {}, SPAN).train_rows == 4000
    with pytest.raises(ToolError) as caught:
        read("mnist5k", {}, SPAN, 0)
    assert caught.value.diagnostics[0].help == 'pip install "bpc[data]"'
    assert caught.value.diagnostics[0].span == SPAN


def test_synthetic_data_is_decided_by_its_seed() -> None:
    options = OPTIONS["synthetic"]
    first, again, other = (read("synthetic", options, SPAN, seed) for seed in (1, 1, 2))
    assert all((first.train[name] == again.train[name]).all() for name in first.train)
    assert (first.train["x"] != other.train["x"]).any()
    assert (first.train["x"][:20] != first.test["x"]).any()


def test_synthetic_classes_can_be_learnt_by_a_linear_map() -> None:
    options = {"shape": [16], "classes": 4, "rows": 2000, "test_rows": 500}
    dataset = read("synthetic", options, SPAN, 0)
    wanted = np.eye(4)[dataset.train["target"]]
    weights = np.linalg.lstsq(dataset.train["x"].astype(np.float64), wanted, rcond=None)[0]
    found = (dataset.test["x"] @ weights).argmax(axis=1)
    assert (found == dataset.test["target"]).mean() > 0.85
    assert np.bincount(dataset.train["target"], minlength=4).min() > 200


def test_synthetic_values_are_a_linear_map_of_the_inputs() -> None:
    dataset = read("synthetic", {"shape": [8], "target_shape": [2, 3], "rows": 100}, SPAN, 0)
    assert dataset.train["target"].shape == (100, 2, 3)
    x = dataset.train["x"].astype(np.float64)
    y = dataset.train["target"].reshape(100, 6).astype(np.float64)
    error = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert np.abs(error).max() < 1e-6 * np.abs(y).max()
    assert 0.8 < x.std() < 1.2 and 0.5 < y.std() < 2


def test_inline_rows_serve_for_training_and_testing() -> None:
    dataset = read("inline", {"x": [[2]], "y": [[0.8]]}, SPAN, 0)
    assert dataset.train is dataset.test
    assert dataset.train["x"].tolist() == [[2.0]] and dataset.train["target"].tolist() == [[0.8]]
    assert dataset.train["x"].dtype == np.float64


def test_inline_takes_tuples_scalars_and_several_inputs() -> None:
    dataset = read("inline", {"inputs": {"a": (1, 2), "b": [[1, 2], [3, 4]]}, "y": (1, 2)}, SPAN, 0)
    assert dataset.train["a"].shape == (2,) and dataset.train["b"].shape == (2, 2)
    assert describe("inline", {"x": [1], "y": [1]}, SPAN).target.kind == "value"


FAULTS: dict[str, tuple[str, dict[str, object], str]] = {
    "source": ("digit", {}, "there is no data source 'digit'"),
    "option": ("digits", {"shap": [64]}, "data source 'digits' has no option 'shap'"),
    "shape-size": ("digits", {"shape": [1, 8, 9]}, "72 elements"),
    "shape-zero": ("digits", {"shape": [0]}, "expected extents of at least 1"),
    "shape-text": ("mnist5k", {"shape": "784"}, "expected extents of at least 1"),
    "no-shape": ("synthetic", {}, "needs either shape or inputs"),
    "both-shapes": ("synthetic", {"shape": [1], "inputs": {"x": [1]}}, "either shape or inputs"),
    "target-name": ("synthetic", {"inputs": {"target": [1]}}, "'target' is taken"),
    "no-inputs": ("synthetic", {"inputs": {}}, "maps a name to each input"),
    "both-targets": ("synthetic", {"shape": [1], "classes": 2, "target_shape": [1]}, "not both"),
    "one-class": ("synthetic", {"shape": [1], "classes": 1}, "whole number from 2"),
    "rows": ("synthetic", {"shape": [1], "rows": True}, "whole number from 1"),
    "no-x": ("inline", {"y": [1]}, "needs either x or inputs"),
    "no-y": ("inline", {"x": [1]}, "needs y"),
    "empty": ("inline", {"x": [], "y": []}, "at least one row"),
    "ragged": ("inline", {"x": [[1, 2], [3]], "y": [1, 2]}, "x, row 1: shape [1] differs"),
    "text": ("inline", {"x": [[1], ["a"]], "y": [1, 2]}, "x, row 1: expected numbers"),
    "text-first": ("inline", {"x": [["a"]], "y": [1]}, "x, row 0: expected numbers"),
    "ragged-within": ("inline", {"x": [[[1, 2], [3]]], "y": [1]}, "x, row 0: expected numbers"),
    "bool": ("inline", {"x": [[True]], "y": [1]}, "x, row 0: expected numbers"),
    "row-count": ("inline", {"x": [[1], [2]], "y": [1]}, "x has 2 rows, y has 1"),
    "nan": ("inline", {"x": [[1], [math.nan]], "y": [1, 2]}, "x, row 1: nan at element [0]"),
    "inf": ("inline", {"x": [[1]], "y": [[math.inf]]}, "target, row 0: inf at element [0]"),
    "huge": ("inline", {"x": [[10**400]], "y": [1]}, "beyond the range"),
    "class-high": ("inline", {"x": [1, 2], "y": [0, 3], "classes": 3}, "row 1: class 3 is not in"),
    "class-low": ("inline", {"x": [1, 2], "y": [-1, 3], "classes": 3}, "row 0: class -1 is not in"),
    "class-half": ("inline", {"x": [1], "y": [0.5], "classes": 2}, "0.5 is not a class index"),
    "class-nan": ("inline", {"x": [1], "y": [math.nan], "classes": 2}, "nan is not a class"),
    "class-inf": ("inline", {"x": [1], "y": [math.inf], "classes": 2}, "is not"),
    "class-list": ("inline", {"x": [1], "y": [[0]], "classes": 2}, "flat list of one class"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_place(name: str) -> None:
    source, options, message = FAULTS[name]
    with pytest.raises(DataError) as caught:
        read(source, options, SPAN, 0)
    (diagnostic,) = caught.value.diagnostics
    assert message in diagnostic.message
    assert diagnostic.span == SPAN


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(DataError) as caught:
        describe("mnist", {}, SPAN)
    assert caught.value.diagnostics[0].help == "did you mean 'mnist5k'?"


def test_large_finite_numbers_whose_sum_overflows_pass() -> None:
    description = describe("inline", {"x": [[1e308], [1e308]], "y": [1, 2]}, SPAN)
    dataset: Dataset = read("inline", {"x": [[1e308], [1e308]], "y": [1, 2]}, SPAN, 0)
    check(dataset.train, description, SPAN)
