from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from spec_tables import HEAD, LAYERS, LOSSES, OPTIMIZERS, TAIL, faults, load

from bpc.errors import Collector, SpecError
from bpc.spec import load_spec
from bpc.spec.scalars import NumberFault, resolve
from bpc.spec.yamlnodes import Items, Scalar, Table, read_yaml


def read(text: str) -> object:
    errors = Collector()
    node = read_yaml(text, "f.yaml", errors)
    errors.raise_if_any()
    return node


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E-3", 0.001),
        ("12e03", 12000.0),
        ("1.e+3", 1000.0),
        ("+1", 1),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("08", 8),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("-.inf", -math.inf),
        ("-", "-"),
        ("1e", "1e"),
        ("0b1", "0b1"),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = resolve(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["1e400", "-1e999", "9" * 41, "0." + "1" * 60])
def test_numbers_that_nothing_holds_are_refused(text: str) -> None:
    with pytest.raises(NumberFault):
        resolve(text)


def test_quoted_scalars_are_text() -> None:
    node = read("a: '1e-3'\nb: \"true\"\nc: |\n  12\n")
    assert isinstance(node, Table)
    assert [e.value.value for e in node.entries if isinstance(e.value, Scalar)] == [
        "1e-3",
        "true",
        "12\n",
    ]


def test_places_of_text_are_inside_quotes_and_blocks() -> None:
    node = read("a: 'xy'\nb: |\n\n    x + y\nc: plain\n")
    assert isinstance(node, Table)
    places = [
        (e.value.text_span.line, e.value.text_span.column)
        for e in node.entries
        if isinstance(e.value, Scalar)
    ]
    assert places == [(1, 5), (4, 5), (5, 4)]


def test_merge_keys_and_aliases_keep_their_places() -> None:
    node = read("a: &a {p: 1, q: 2}\nb: {<<: *a, r: 3}\nc: {<<: [*a, {s: 4}]}\nd: *a\n")
    assert isinstance(node, Table)
    b, c, d = (node.get(key) for key in "bcd")
    assert isinstance(b, Table) and isinstance(c, Table) and isinstance(d, Table)
    assert b.keys() == ("r", "p", "q")
    assert c.keys() == ("p", "q", "s")
    assert d.entries[0].key_span.line == 1


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a: 1\na: 2", "BPC0103", 2, 1),
        ("x: {b: {c: 1, c: 2}}", "BPC0103", 1, 15),
        ("a: &a {p: 1}\nb: {<<: *a, p: 2}", "BPC0103", 2, 13),
        ("a: &a {p: 1}\nb: &b {p: 2}\nc: {<<: [*a, *b]}", "BPC0103", 2, 8),
        ("a: &a {p: 1}\nb: {<<: *a, <<: *a}", "BPC0103", 2, 13),
        ("a:\n  - b\n\t- c", "BPC0102", 3, 1),
        ("a: [", "BPC0102", 1, 5),
        ("a: &x 1\nb: &x 2", "BPC0104", 2, 4),
        ("a: \x00", "BPC0101", 1, 4),
        ("\ufeffa: 1", "BPC0101", 1, 1),
        ("a: 1\nb: \x1b[31m", "BPC0101", 2, 4),
        ("a: \ud800", "BPC0101", 1, 4),
        ("", "BPC0107", 1, 1),
        ("~", "BPC0107", 1, 1),
        ("a: !!str 1", "BPC0106", 1, 4),
        ("a: 1\n...\nb: 2", "BPC0102", 3, 1),
    ],
)
def test_bad_yaml_has_a_place(text: str, code: str, line: int, column: int) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)
    spans = [(d.code, d.span.line, d.span.column) for d in caught.value.diagnostics if d.span]
    assert (code, line, column) in spans


def test_both_places_of_a_repeated_key_are_named() -> None:
    with pytest.raises(SpecError) as caught:
        read("a: 1\nb: 2\na: 3")
    found = caught.value.diagnostics[0]
    assert found.span and found.span.line == 3
    assert found.notes[0].span and found.notes[0].span.line == 1


@pytest.mark.parametrize("depth", [65, 500, 20_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    for text in ("[" * depth, "[" * depth + "]" * depth, "{a: " * depth):
        with pytest.raises(SpecError):
            read(text)


def test_allowed_depth_is_read() -> None:
    assert isinstance(read("[" * 64 + "]" * 64), Items)


def test_depth_counts_through_aliases() -> None:
    deep = "[" * 40 + "]" * 40
    with pytest.raises(SpecError, match="BPC0105"):
        read(f"a: &a {deep}\nb: {'[' * 30}*a{']' * 30}")


def test_alias_bombs_are_refused_before_they_expand() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 40):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    with pytest.raises(SpecError, match="BPC0105"):
        read("\n".join(lines))


def test_many_keys_are_refused_before_each_is_looked_up() -> None:
    with pytest.raises(SpecError, match="BPC0105"):
        read("\n".join(f"k{i}: 1" for i in range(1001)))


def test_many_faults_do_not_take_long() -> None:
    entries = "\n".join(f"  - {{re{i}lu: {{a{i}: 1}}}}" for i in range(9000))
    blocks = "\n".join(
        f"  b{i}: {{{', '.join(f'k{j}: 1' for j in range(90))}}}" for i in range(300)
    )
    for text in (f"model:\n{entries}\n", f"blocks:\n{blocks}\n"):
        started = time.perf_counter()
        assert faults(text)
        assert time.perf_counter() - started < 3.0


def test_files_that_are_not_specs(tmp_path: Path) -> None:
    cases = {
        "missing.yaml": None,
        "folder": None,
        "bytes.yaml": b"bpc: 1\nname: \xff\n",
        "empty.yaml": b"",
        "large.yaml": b"# " + b"x" * (1 << 20),
        "nul\x00.yaml": None,
    }
    (tmp_path / "folder").mkdir()
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SpecError) as caught:
            load_spec(tmp_path / name, LAYERS, LOSSES, OPTIMIZERS)
        span = caught.value.diagnostics[0].span
        assert span is not None
        assert (span.line, span.column) == ((2, 7) if name == "bytes.yaml" else (1, 1))


def test_windows_line_ends_keep_places() -> None:
    text = (HEAD + "model: [rellu]" + TAIL).replace("\n", "\r\n")
    assert faults(text) == [("BPC0160", 3, 9)]
    assert load(text.replace("rellu", "relu")).layers[0].span.line == 3
