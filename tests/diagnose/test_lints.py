"""Every lint fires where its page says, and only there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bpc import api
from bpc.cli.main import main
from bpc.diagnose.lints import LINTS, PAGE
from bpc.errors import Diagnostic, SpecError
from bpc.resources import spec_root

ZOO = sorted(spec_root().rglob("*.yaml"))
ADAM = "optimizer: {adam: {lr: 1e-3}}"
GOOD_BODY = "[linear: {out: 8, init: he}, relu, linear: {out: 10, init: xavier}]"


def lint(tmp_path: Path, model: str, loss: str = "cross_entropy", train: str = ADAM) -> list[str]:
    return [item.code for item in found(tmp_path, model, loss, train)]


def found(
    tmp_path: Path, model: str, loss: str = "cross_entropy", train: str = ADAM, data: str = ""
) -> list[Diagnostic]:
    path = tmp_path / "net.yaml"
    path.write_text(
        f"bpc: 1\nname: net\ndata: {{source: digits, batch: 8{data}}}\nmodel: {model}\n"
        f"loss: {loss}\ntrain: {{epochs: 1, {train}}}\n",
        encoding="utf-8",
    )
    return api.compile(path, device="reference").lint()


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_no_lint_fires_on_the_zoo(path: Path) -> None:
    assert api.compile(path, device="reference").lint() == []


def hidden(init: str, then: str, layers: int = 1) -> str:
    part = f"linear: {{out: 8, init: {init}}}, {then}, "
    return f"[{part * layers}linear: {{out: 10, init: xavier}}]"


CASES: dict[str, list[tuple[str, str, bool]]] = {
    "BPC0701": [
        ("[linear: 10, softmax]", ADAM, True),
        ("[linear: 10, log_softmax, dropout: 0.1]", ADAM, True),
        ("[linear: 10, softmax, linear: {out: 10, init: xavier}]", ADAM, False),
    ],
    "BPC0703": [
        (hidden("{normal: 1}", "tanh", 2), ADAM, True),
        (hidden("{normal: 0.01}", "sigmoid", 2), ADAM, True),
        (hidden("{normal: 1}", "tanh", 1), ADAM, False),
        (hidden("xavier", "tanh", 4), ADAM, False),
        (hidden("xavier", "sigmoid", 3), ADAM, False),
        (hidden("xavier", "sigmoid", 4), ADAM, True),
        (hidden("{xavier: {gain: 4}}", "layernorm, sigmoid", 4), ADAM, False),
        (hidden("orthogonal", "tanh", 2), ADAM, False),
    ],
    "BPC0704": [
        ("[linear: 8, tanh, linear: 10]", ADAM, True),
        (hidden("he", "sigmoid"), ADAM, True),
        (hidden("xavier_normal", "relu"), ADAM, True),
        (hidden("{he: {gain: 1}}", "tanh"), ADAM, False),
        (hidden("{xavier: {gain: 1.4}}", "relu"), ADAM, False),
        (hidden("he", "gelu"), ADAM, False),
        (hidden("he", "layernorm, tanh"), ADAM, False),
    ],
    "BPC0705": [
        (hidden("zeros", "relu"), ADAM, True),
        (hidden("{constant: 0.1}", "tanh"), ADAM, True),
        ("[linear: {out: 10, init: zeros}]", ADAM, False),
        ("[linear: {out: 8, init: he}, relu, linear: {out: 10, init: zeros}]", ADAM, False),
        (
            "[linear: {out: 8, init: he}, {residual: [relu, linear: {out: 8, init: zeros}]}, "
            "relu, linear: 10]",
            ADAM,
            False,
        ),
    ],
    "BPC0707": [
        (GOOD_BODY, f"{ADAM}, precision: fp16, loss_scale: {{start: 1}}", True),
        (GOOD_BODY, f"{ADAM}, precision: fp16", False),
        (GOOD_BODY, f"{ADAM}, precision: bf16, loss_scale: {{start: 1}}", False),
    ],
    "BPC0708": [
        (GOOD_BODY, "optimizer: {adamw: {lr: 0.02}}", True),
        (GOOD_BODY, "optimizer: {adamw: {lr: 0.02}}, warmup: {steps: 5}", False),
        (GOOD_BODY, "optimizer: {sgd: {lr: 0.2, momentum: 0.9}}", True),
        (GOOD_BODY, "optimizer: {sgd: {lr: 0.2}}", False),
    ],
    "BPC0709": [
        ("[linear: 12]", ADAM, True),
        ("[linear: 10]", ADAM, False),
    ],
}
FLAT = [(code, *case) for code, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("code", "model", "train", "fires"), FLAT)
def test_a_lint_fires_where_it_should(
    code: str, model: str, train: str, fires: bool, tmp_path: Path
) -> None:
    codes = lint(tmp_path, model, train=train)
    assert (code in codes) == fires, codes
    assert fires or not set(codes) - {code}, "what is good for one lint is good for all"


def test_a_sigmoid_before_its_loss(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "bpc: 1\nname: net\ndata: {source: synthetic, shape: [3], batch: 4}\n"
        "model: [linear: {out: 1, init: xavier}, sigmoid]\nloss: bce_with_logits\n"
        "train: {steps: 1, optimizer: {sgd: {lr: 0.1}}}\n"
    )
    assert [item.code for item in api.compile(path, device="reference").lint()] == ["BPC0701"]


@pytest.mark.parametrize(
    ("bias", "axes", "fires"), [("true", 2, True), ("true", 3, False), ("false", 2, False)]
)
def test_a_bias_that_a_norm_cancels_has_no_gradient(
    bias: str, axes: int, fires: bool, tmp_path: Path
) -> None:
    model = f"[conv2d: {{out: 3, bias: {bias}, name: c}}, layernorm: {axes}, flatten, linear: 10]"
    warnings = found(tmp_path, model, data=", shape: [1, 8, 8]", train=f"precision: fp64, {ADAM}")
    assert ("BPC0702" in [item.code for item in warnings]) == fires
    if bias == "true":
        net = api.compile(tmp_path / "net.yaml", device="reference")
        batch = {name: array[:8] for name, array in net.data.train.items()}
        gradient = net.gradients(batch, ["c.bias", "c.weight"])
        share = abs(gradient["c.bias"]).max() / abs(gradient["c.weight"]).max()
        assert (share < 1e-12) == fires


def test_a_rate_written_as_text_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        lint(tmp_path, GOOD_BODY, train='lr: "1e-3"')
    (item,) = caught.value.diagnostics
    assert item.code == "BPC0152" and item.span is not None and item.span.line == 6


def test_every_code_has_a_section_and_every_finding_a_place(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    sections = re.findall(r"^## (BPC07\d\d)$", text, re.MULTILINE)
    assert sections == [f"BPC07{k:02d}" for k in range(1, 11)]
    assert set(LINTS) == set(sections) - {"BPC0706", "BPC0710"}
    item = found(tmp_path, "[linear: {out: 8, init: he}, tanh, linear: 10]")[0]
    assert (item.severity, str(item.span)) == ("warning", f"{tmp_path}/net.yaml:4:32")
    assert item.help is not None and item.help.endswith(f"{PAGE}#bpc0704")


MANY = "[linear: 8, tanh, linear: 8, tanh, linear: 8, tanh, linear: 12, softmax]"


def test_train_tells_three_warnings_and_json_holds_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(found(tmp_path, MANY)) == 5
    words = ["train", "net.yaml", "--steps", "1", "--device", "reference"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err.count("warning BPC07") == 3 and err.endswith("2 more: bpc lint\n")
    assert "warning" not in out
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["warnings"]) == 5 and answer["warnings"][0]["place"]["line"] == 4


def test_lint_prints_all_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found(tmp_path, MANY)
    path = str(tmp_path / "net.yaml")
    assert main(["lint", path]) == 0
    assert capsys.readouterr().out.count("warning BPC07") == 5
    assert main(["lint", path, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 5
    assert main(["lint", path, "--quiet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    found(tmp_path, GOOD_BODY)
    assert main(["lint", path]) == 0
    assert capsys.readouterr().out == "nothing to warn of\n"
