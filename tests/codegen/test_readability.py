"""Every question of docs/cuda_readability.md can be answered from the .cu file alone."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bpc

ROOT = Path(__file__).resolve().parents[2]
SPECS = ("mnist_mlp", "digits_mlp", "small_conv")


def load_script() -> Any:
    path = ROOT / "docs/check_readability.py"
    spec = importlib.util.spec_from_file_location("check_readability", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()
VERBS = ("then", "reads", "writes", "nodes", "from", "serves")
WHO = {
    "elements of acc": "matrix product",
    "one row": "per row",
    "columns": "column sums",
    "chunk": "sums of chunks",
    "neighbouring elements": "element-wise",
}


def headers(text: str) -> Iterator[tuple[str, list[str]]]:
    """The name and the comment lines of each function."""
    pattern = re.compile(r"^// (\w+)\n((?://   .*\n)+)(?=static|extern)", re.MULTILINE)
    for found in pattern.finditer(text):
        yield found[1], [line[5:] for line in found[2].splitlines()]


def fields(lines: list[str]) -> dict[str, str]:
    """What follows each verb, continuation lines joined."""
    found: dict[str, str] = {}
    verb = ""
    for line in lines:
        word = line.split(" ", 1)[0]
        if word in VERBS:
            verb = word
            found[verb] = line[len(word) :].strip()
        elif verb and line.startswith("  "):
            found[verb] += " " + line.strip()
        else:
            verb = ""
            found["text"] = found.get("text", "") + line + "\n"
    return found


def tensors(words: str) -> dict[str, str]:
    listed = re.findall(r"(?:\w+ = )?([\w.#]+) ((?:f|bf|i)\d+|bit)(\[[^\]]*\])", words)
    return {name: f"{kind}{shape}" for name, kind, shape in listed}


def numbers(words: str) -> list[int]:
    return sorted({int(line) for line in re.findall(r":(\d+)", words)})


def answer(text: str) -> dict[str, dict[str, Any]]:
    known = {name: fields(lines) for name, lines in headers(text)}
    section = re.compile(r"^// (\w+): .*\n//    launches ((?:.*\n//  {5,})*.*)$", re.MULTILINE)
    entries = section.findall(text)
    launched = {name: re.findall(r"\w+", words.replace("//", "")) for name, words in entries}
    found = {}
    for name in re.findall(r"__global__ \S+ void (\w+)\(", text):
        own = known[name]
        calls = re.search(r"every block runs (\w+);", own["text"])
        tails = re.findall(r"(\w+) \(", own["then"]) if calls else []
        parts = [known[part] for part in ([calls[1], *tails] if calls else [name])]
        found[name] = read_parts(parts) | {
            "lines": numbers(own["from"]),
            "entries": [entry for entry, names in launched.items() if name in names],
            "last_block": tails,
        }
    return found


def read_parts(parts: list[dict[str, str]]) -> dict[str, Any]:
    main = parts[0]
    made: set[str] = set()
    reads: dict[str, str] = {}
    writes: dict[str, str] = {}
    for part in parts:
        reads |= {k: v for k, v in tensors(part.get("reads", "")).items() if k not in made}
        writes |= tensors(part["writes"])
        made |= set(writes)
        for served in re.findall(r"norm_(\w+) \[", part.get("serves", "")):
            made.add(f"squares.{re.sub('_(?=[a-z]+$)', '.', served)}.chunks")
    terms = re.search(r"acc\[r, c\] = sum over k < (\w+)", main["text"])
    space = re.search(r"space (\[[^\]]*\])", main["text"])
    product = "convolution" if re.search("acc = (gradient of a )?convolution", main["text"]) else ""
    assert space
    return {
        "operation": product or next(v for k, v in WHO.items() if k in main["text"]),
        "terms": terms[1] if terms else None,
        "reads": reads,
        "writes": writes,
        "tensors": re.findall(r"\w (\[[^\]]*\]) \(", main.get("serves", "")) or [space[1]],
        "nodes": [node for part in parts for node in part["nodes"].split(", ")],
    }


@pytest.mark.parametrize("name", SPECS)
def test_the_text_alone_answers_every_question(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    bpc.compile(f"specs/{name}.yaml").write(target="cuda", out=tmp_path)
    (source,) = tmp_path.glob("*.cu")
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    expected = SCRIPT.expected_answers(manifest)
    assert list(SCRIPT.compare(expected, answer(source.read_text("utf-8")))) == []


def test_the_script_finds_wrong_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    bpc.compile("specs/mnist_mlp.yaml").write(target="cuda", out=tmp_path)
    expected = SCRIPT.expected_answers(json.loads((tmp_path / "manifest.json").read_text("utf-8")))
    given = json.loads(json.dumps(expected))
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps(given), encoding="utf-8")
    asked = len(expected) * len(SCRIPT.QUESTIONS)
    assert SCRIPT.main(str(tmp_path), str(answers)) == 0
    assert capsys.readouterr().out.startswith(f"{asked} of {asked} answers")
    given["linear1_relu1"]["lines"] = [16]
    given["linear1_weight_gradient"]["terms"] = "784"
    given["adam"]["reads"]["factor"] = "f64[]"
    del given["linear3"]
    answers.write_text(json.dumps(given), encoding="utf-8")
    assert SCRIPT.main(str(tmp_path), str(answers)) == 1
    out = capsys.readouterr().out
    assert "linear1_relu1, lines: expected [16, 17], found [16]" in out
    assert f"{asked - 3 - len(SCRIPT.QUESTIONS)} of {asked} answers" in out
