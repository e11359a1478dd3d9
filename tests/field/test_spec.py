"""Field cases about how specs are read."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from field_cases import expected, setup_of

import bpc
from bpc.errors import BpcError, DataError, Diagnostic, SpecError

GOOD = """\
bpc: 1
name: case
data: {source: synthetic, shape: [4], classes: 3}
model:
  - linear: {name: fc, out: 3, init: {normal: {mean: 0.5, std: 0.1}}}
loss: cross_entropy
train: {lr: 0.1}
"""


def compile_text(folder: Path, text: str | bytes) -> bpc.Net:
    path = folder / "case.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return bpc.compile(path, device="reference")


def faults_of(folder: Path, text: str | bytes) -> tuple[Diagnostic, ...]:
    """The errors of a text, each with a place."""
    with pytest.raises((SpecError, DataError)) as caught:
        compile_text(folder, text)
    for found in caught.value.diagnostics:
        assert found.span is not None and found.span.line >= 1 and found.span.column >= 1
    return caught.value.diagnostics


def read_number(folder: Path, text: str) -> float | None:
    """What a float option reads from a text, None for a typed error that names place and key."""
    whole = GOOD.replace("mean: 0.5", f"mean: {text}")
    try:
        net = compile_text(folder, whole)
    except SpecError as fault:
        found = fault.diagnostics[0]
        assert found.span is not None and found.span.line == 5
        # what is no value at all is refused before its key matters
        assert "mean" in found.message or "number" in found.message or text == "- 1"
        return None
    (layer,) = net.spec.layers
    init = layer.options["init"]
    values = dict(getattr(init, "options", ()))
    return float(values["mean"])


EITHER = {"010": (10, None), "08": (8, None)}
WHOLE = {"+1": 1, "0x1F": 31, "0o10": 8, "010": 10, "08": 8}
REFUSED = ("1_000", "1:30", ".inf", ".nan", "1e400", "- 1")


@pytest.mark.parametrize("text", setup_of("yaml-float-without-dot")["yaml_values"])
def test_yaml_float_without_dot(tmp_path: Path, text: str) -> None:
    want = expected("yaml-float-without-dot")["read_as"][text]
    found = read_number(tmp_path, text)
    if text in EITHER:
        assert found in EITHER[text]
    elif isinstance(want, str):
        assert text in REFUSED and found is None
    else:
        assert found == want
    # whole numbers take the same forms
    whole = GOOD.replace("lr: 0.1", f"lr: 0.1, accumulate: {text}")
    if text in WHOLE:
        assert compile_text(tmp_path, whole).spec.train.accumulate == WHOLE[text]
    else:
        (fault, *_) = faults_of(tmp_path, whole)
        assert fault.span is not None and fault.span.line == 7


def test_yaml_on_off_no_keys(tmp_path: Path) -> None:
    # names of layers: words that YAML 1.1 read as truth values, and others that are none
    for word in ("on", "no", "off", "yes"):
        net = compile_text(tmp_path, GOOD.replace("name: fc", f"name: {word}"))
        assert [layer.name for layer in net.spec.layers] == [word]
    for word in ("null", "~", "1", "1.0", "true", "2020-01-01"):
        faults = faults_of(tmp_path, GOOD.replace("name: fc", f"name: {word}"))
        assert faults[0].span is not None and faults[0].span.line == 5
    # keys
    for word in ("1", "null", "~", "true", "1.0"):
        text = GOOD.replace("train:", f"functions:\n  {word}: x + 1\ntrain:")
        found = faults_of(tmp_path, text)
        assert any(item.span is not None and item.span.line == 8 for item in found), word
    # values of truth
    for word in ("off", "no", "on", "yes"):
        (found_fault,) = faults_of(tmp_path, GOOD.replace("out: 3", f"out: 3, bias: {word}"))
        help = found_fault.help or ""
        assert "bias" in found_fault.message
        assert ("true" if word in ("on", "yes") else "false") in found_fault.message + help
    # keys that become equal
    for pair in (("1", "1.0"), ("true", "True"), ("on", "on")):
        one, other = pair
        text = GOOD.replace("train:", f"functions:\n  {one}: x + 1\n  {other}: x + 2\ntrain:")
        faults_of(tmp_path, text)
    # the case's own text
    faults_of(tmp_path, setup_of("yaml-on-off-no-keys")["yaml"])


def bombs() -> Iterator[tuple[str, str | bytes]]:
    """The case's texts in order; those told in words are made here."""
    texts = setup_of("yaml-duplicate-keys")["yaml"]
    yield "same key", texts[0]
    yield "same key below", texts[1]
    yield "merge", texts[2]
    levels = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    levels += [
        f"{chr(98 + k)}: &{chr(98 + k)} [{','.join([f'*{chr(97 + k)}'] * 10)}]" for k in range(9)
    ]
    yield "aliases", "\n".join(levels)
    yield "nested", "a: " + "[" * 10_000
    yield "long scalar", "a: " + "x" * (100 << 20)
    yield "tag", texts[6]
    yield "recursive", texts[7]
    yield "documents", f"{GOOD}---\n{GOOD}"
    yield "tab", "bpc: 1\ndata:\n\tsource: digits\n"
    yield "byte order mark", b"\xef\xbb\xbf" + GOOD.encode()
    yield "nul", GOOD.replace("case", "ca\x00se")
    yield "no UTF-8", GOOD.encode().replace(b"case", b"ca\xffse")


@pytest.mark.parametrize("kind", [kind for kind, _ in bombs() if kind != "merge"])
def test_yaml_duplicate_keys(tmp_path: Path, kind: str) -> None:
    text = dict(bombs())[kind]
    path = tmp_path / "case.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.process_time()
    with pytest.raises(BpcError) as caught:
        bpc.compile(path, device="reference")
    assert time.process_time() - started < 1
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (after.ru_maxrss - before.ru_maxrss) * 1024 < 50e6
    found = caught.value.diagnostics[0]
    assert found.span is not None
    assert (found.span.line, found.span.column) >= (1, 1)


def test_yaml_duplicate_keys_through_a_merge(tmp_path: Path) -> None:
    """Documented: a key that `<<` brings and that is written too is an error."""
    text = GOOD.replace("train: {lr: 0.1}", "train: {<<: *b, lr: 0.2}").replace(
        "loss:", "x: &b {lr: 0.1}\nloss:"
    )
    assert any("lr" in found.message for found in faults_of(tmp_path, text))
    faults_of(tmp_path, setup_of("yaml-duplicate-keys")["yaml"][2])
