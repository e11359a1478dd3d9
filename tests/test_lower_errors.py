"""What lowering refuses, in the words that a person reads, beside faults of the spec itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bpc import api
from bpc.entries import build_entries
from bpc.errors import SpecError
from bpc.report.diagnostics import read_line_of_file, render_diagnostics
from bpc.types import I64

FOLDER = Path(__file__).parent / "errors" / "lower"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_error_reads_as_expected(
    name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(SpecError) as caught:
        api.compile(f"{name}.yaml")
    text = render_diagnostics(caught.value.diagnostics, read_line_of_file)
    golden(FOLDER / f"{name}.txt", text + "\n")


def test_every_text_has_its_spec() -> None:
    texts, specs = ({path.stem for path in FOLDER.glob(f"*.{end}")} for end in ("txt", "yaml"))
    assert texts == specs


@pytest.mark.parametrize(
    ("layers", "at"),
    [
        ("[linear: 10]", "linear 'linear1'"),
        ("[relu, linear: 10]", "relu 'relu1'"),
        ("[{formula: 2 * x}, linear: 10]", "formula 'formula1'"),
        ("[{add: , from: [x, x]}, linear: 10]", "add 'add1'"),
    ],
)
def test_whole_numbers_are_no_input_of_a_layer(tmp_path: Path, layers: str, at: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(BODY.replace(BODY[BODY.index("  -") : BODY.index("loss")], f"  {layers}\n"))
    net = api.compile(path)
    x = replace(net.description.inputs["x"], dtype=I64)
    whole = replace(net.description, inputs={"x": x})
    with pytest.raises(SpecError) as caught:
        build_entries(net.spec, whole)
    (found,) = caught.value.diagnostics
    assert found.message == f"{at} computes with floats, the input x is i64"
    assert found.span is not None and found.span.line == 4


BODY = """\
bpc: 1
data: {source: digits, batch: 64}
model:
  - linear: 32
  - {repeat: 2, layers: [linear: 32, residual: [linear: {out: 32}, relu]]}
  - linear: 12
loss: cross_entropy
train: {lr: 0.1, clip: {global_norm: 1.0}}
"""


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., api.Net]:
    (tmp_path / "net.yaml").write_text(BODY)
    return lambda **sets: api.compile(tmp_path / "net.yaml", set=sets)


def test_more_scores_than_classes_are_allowed(build: Callable[..., api.Net]) -> None:
    states = {state.name: state for state in build().entries.states_of("parameter")}
    assert states["linear2.bias"].value.shape == (12,)


@pytest.mark.parametrize(
    ("key", "shapes"),
    [
        ("model.linear1.out", {"linear1.bias": (48,)}),
        ("model.linear2.linear.out", {"linear2.bias": (48,)}),
        ("model.0.linear.out", {"linear1.bias": (48,)}),
        ("model.linear1.linear", {"linear1.bias": (48,)}),
    ],
)
def test_set_takes_default_names(key: str, shapes: object, build: Callable[..., api.Net]) -> None:
    net = build(**{key: "48"})
    found = {state.name: state.value.shape for state in net.entries.states_of("parameter")}
    assert isinstance(shapes, dict) and found | shapes == found


def test_set_in_a_repeat_changes_every_round(build: Callable[..., api.Net]) -> None:
    net = build(**{"model.repeat1.0.residual1.linear1.bias": "false"})
    names = {state.name for state in net.entries.states_of("parameter")}
    assert {f"repeat1.{k}.residual1.linear1.weight" for k in (0, 1)} <= names
    assert not {f"repeat1.{k}.residual1.linear1.bias" for k in (0, 1)} & names


@pytest.mark.parametrize("text", ["null", "~", "", "Null"])
def test_null_can_be_set(text: str, build: Callable[..., api.Net]) -> None:
    assert build().spec.train.clip == 1.0
    assert build(**{"train.clip": text}).spec.train.clip is None


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("train.lr", "-1", "must be at least 0, found -1"),
        ("train.lr", '"0.1"', "must be a number, found the text '0.1'"),
        ("train.lr", "# 1", "it is a comment"),
        ("name", '""', "the text '' cannot be the name"),
    ],
)
def test_other_scalars_that_are_set(
    key: str, text: str, said: str, build: Callable[..., api.Net]
) -> None:
    with pytest.raises(SpecError, match=said):
        build(**{key: text})
    assert build(**{"data.shape": "[64]"}).spec.data.options["shape"] == (64,)


def test_a_faulty_budget_stands_where_it_was_given(build: Callable[..., api.Net]) -> None:
    path = build().spec.path
    with pytest.raises(SpecError) as caught:
        api.compile(path, memory="5x")
    assert [str(item.span) for item in caught.value.diagnostics] == ["--memory"]


def test_standard_input_is_no_spec() -> None:
    with pytest.raises(SpecError) as caught:
        api.compile("-")
    assert "not from standard input" in str(caught.value.diagnostics[0].help)
