"""`bpc explain`: formulas that the graph gives, and that are true of its numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import api
from bpc.cli.main import main
from bpc.diagnose.document import format_tex
from bpc.diagnose.explain import Explanation, explain, format_text
from bpc.diagnose.formulas import AXES
from bpc.diagnose.notation import format_array, format_number, tex_symbol
from bpc.expr import FUNCTIONS, Call, Const, Expr, Var, walk
from bpc.resources import spec_root

WORKED = ["neuron", "two_layer", "three_layer"]
SMALL = {
    "classes": """\
model:
  - linear: {name: fc1, out: 4}
  - gelu: {name: act}
  - layernorm: {name: norm}
  - linear: {name: fc2, out: 3}
loss: {cross_entropy: {label_smoothing: 0.1}}
""",
    "softmax": """\
model:
  - residual: [{linear: {name: inner, out: 3}}, tanh]
  - softmax: {name: s}
  - prelu: {name: p}
  - mean: {name: average, axes: -1, keepdims: true}
  - linear: {name: out, out: 3}
loss: cross_entropy
""",
    "tied": """\
parameters: {w: {shape: [3, 3], init: {normal: 0.5}}}
model:
  - linear: {weight: w, out: 3, name: one}
  - formula: {formula: "x * exp(-x)", name: bump}
  - linear: {weight: w, out: 3, name: two}
  - clip
loss: cross_entropy
""",
}


def make(text: str, tmp_path: Path, batch: int = 4) -> api.Net:
    path = tmp_path / "small.yaml"
    path.write_text(
        "bpc: 1\nname: small\n"
        f"data: {{source: synthetic, shape: [3], classes: 3, rows: 8, batch: {batch}}}\n{text}"
        "train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}\n"
    )
    return api.compile(path, device="reference")


def explained(net: api.Net, values: bool = True) -> Explanation:
    return explain(net.spec, net.description, values)


def worked(name: str) -> Explanation:
    return explained(api.compile(spec_root() / "worked" / f"{name}.yaml", device="reference"))


def evaluate(expr: Expr, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """A formula in numbers, by rules written here: letters are axes, reductions keep them."""
    done: dict[Expr, Any] = {}
    for node in walk(expr):
        if isinstance(node, Const):
            done[node] = np.asarray(node.value)
        elif isinstance(node, Var) and node.name in AXES and node.name not in arrays:
            axis = AXES.index(node.name)
            sizes = [-1 if k == axis else 1 for k in range(len(shape))]
            done[node] = np.arange(shape[axis]).reshape(sizes)
        elif isinstance(node, Var):
            done[node] = arrays[node.name]
        else:
            assert isinstance(node, Call)
            done[node] = _call(node.function, [done[item] for item in node.arguments])
    return done[expr]


def _call(function: str, parts: list[np.ndarray]) -> np.ndarray:
    name, _, letters = function.partition("_")
    if letters and name in ("sum", "max"):
        axes = tuple(AXES.index(letter) for letter in letters)
        return getattr(np, name)(parts[0], axis=axes, keepdims=True)
    if function == "matmul":
        return np.matmul(*parts)
    if function == "transpose":
        return parts[0].T
    if function == "reshape":
        return parts[0]
    return FUNCTIONS[function].evaluate(*parts)


def check_formulas(made: Explanation) -> None:
    """Every formula, worked out anew from the numbers of the others, gives its own number."""
    by_symbol = {symbol: name for name, symbol in made.names.items()}
    arrays = {by_symbol[symbol]: array for symbol, array in made.given}
    classes = {name: a[:, None] for name, a in arrays.items() if a.dtype.kind == "i"}
    for line in made.lines:
        assert line.array is not None
        reads = [node.name for node in walk(line.expr) if isinstance(node, Var)]
        widest = max((arrays[name].shape for name in reads if name in arrays), key=prod)
        found = evaluate(line.expr, {**arrays, **classes}, widest)
        found = found.reshape(line.array.shape) if found.size == line.array.size else found
        np.testing.assert_allclose(
            np.broadcast_to(found, line.array.shape),
            line.array,
            rtol=1e-12,
            atol=1e-15,
            err_msg=line.symbol,
        )
        arrays[by_symbol[line.symbol]] = line.array


@pytest.mark.parametrize("name", WORKED)
def test_worked_examples_read_as_on_paper(
    name: str, golden: Callable[[Path, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec_root() / "worked" / f"{name}.yaml"
    assert main(["explain", str(path), "--values", "--device", "reference"]) == 0
    text = capsys.readouterr().out
    golden(Path(__file__).parent / "explained" / f"{name}.txt", text)


@pytest.mark.parametrize("name", WORKED)
def test_formulas_of_worked_examples_are_true(name: str) -> None:
    check_formulas(worked(name))


@pytest.mark.parametrize("name", SMALL)
def test_formulas_of_small_networks_are_true(name: str, tmp_path: Path) -> None:
    made = explained(make(SMALL[name], tmp_path))
    assert not made.refused
    check_formulas(made)


def test_gradients_are_those_of_the_network(tmp_path: Path) -> None:
    net = make(SMALL["tied"], tmp_path)
    found = {line.symbol: line.array for line in explained(net).lines}
    batch = {name: array[:4] for name, array in net.data.train.items()}
    expected = net.gradients(batch, ["w", "one.bias", "two.bias"])
    for symbol, array in zip(("dL/dw", "dL/db_one", "dL/db_two"), expected.values(), strict=True):
        np.testing.assert_allclose(found[symbol], array, rtol=1e-12)


def test_a_large_network_has_shapes_and_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(spec_root() / "small_conv.yaml"), "--values", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["refused"].startswith("numbers are shown for at most 8 rows")
    assert {line["numbers"] for line in answer["lines"]} == {None}
    by_symbol = {line["symbol"]: line for line in answer["lines"]}
    assert by_symbol["dL/dW_conv2d2"]["formula"] == "conv2d_weight(relu1, dL/dconv2d2)"
    assert by_symbol["dL/dW_conv2d2"]["shape"] == [16, 8, 3, 3]
    assert by_symbol["dL/dlinear1"]["shape"] == ["batch", 10]
    assert by_symbol["dL/dlayernorm1"]["note"] == "draws again, no mask is kept"
    assert by_symbol["dL/dconv2d1"]["note"] == "reads relu1, not conv2d1"
    assert by_symbol["L"]["place"]["line"] == 25


def test_every_line_of_a_formula_has_its_place() -> None:
    for line in explained(api.compile(spec_root() / "small_conv.yaml"), values=False).lines:
        assert line.span.file.endswith("small_conv.yaml") and line.span.line >= 15
        assert line.array is None


def document(name: str, tmp_path: Path) -> str:
    return format_tex(worked(name) if name in WORKED else explained(make(SMALL[name], tmp_path)))


@pytest.mark.parametrize("name", ["neuron", "three_layer", "classes"])
def test_latex_is_whole(name: str, tmp_path: Path) -> None:
    text = document(name, tmp_path)
    assert text.startswith(r"\documentclass{article}") and text.endswith("\\end{document}\n")
    for kind in ("document", "align*", "pmatrix", "cases"):
        assert text.count(rf"\begin{{{kind}}}") == text.count(rf"\end{{{kind}}}")
    assert text.count(r"\left") == text.count(r"\right")
    assert text.count("{") == text.count("}")
    assert r"\frac{\partial L}{\partial " in text and r"\tag{line " in text


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no LaTeX here")
@pytest.mark.parametrize("name", ["three_layer", "classes", "softmax"])
def test_latex_compiles(name: str, tmp_path: Path) -> None:
    (tmp_path / "made.tex").write_text(document(name, tmp_path))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "made.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_numbers_are_short_where_they_are_exact() -> None:
    numbers = [2.0, 0.5, -0.1, 0.7502601055951177, 2.684e-4 / 3, 1e9, float("nan"), 0.0]
    assert [format_number(x) for x in numbers] == [
        "2", "0.5", "-0.1", "0.750260", "8.94667e-05", "1e+09", "nan", "0",
    ]  # fmt: skip
    assert format_array(np.array([[1.0, 2.5], [3.0, 4.0]])) == "[1 2.5; 3 4]"
    symbols = ["x", "W1", "dL/dz", "W_conv2d1", "a_b&c"]
    assert [tex_symbol(s) for s in symbols] == [
        "x", "W_{1}", r"\frac{\partial L}{\partial z}", r"W_{\mathrm{conv2d1}}",
        r"a_{\mathrm{b\&c}}",
    ]  # fmt: skip


def test_text_names_what_the_letters_mean(tmp_path: Path) -> None:
    lines = format_text(explained(make(SMALL["classes"], tmp_path), values=False))
    assert lines[-1].startswith("i is the first axis")
    assert not any("  = " in line and "nan" in line for line in lines)
