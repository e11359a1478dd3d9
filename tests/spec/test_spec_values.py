from __future__ import annotations

import warnings

import pytest

from bpc.errors import Span, SpecError
from bpc.spec.integers import compute
from bpc.spec.sizes import SizeFault, parse_size
from bpc.spec.words import is_name

PLACE = Span("f.yaml", 4, 10)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GiB", 2 * 2**30),
        ("2GB", 2 * 10**9),
        ("64MiB", 2**26),
        ("64 MB", 64 * 10**6),
        ("1.5KiB", 1536),
        ("1kB", 1000),
        ("1TB", 10**12),
        ("100", 100),
        (100, 100),
        ("7B", 7),
    ],
)
def test_sizes(text: object, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text", ["2G", "2gib", "GiB", "-1GiB", "0", "1.0001KiB", "9" * 18 + "TiB", "1PB", "", True, 1.5]
)
def test_sizes_that_mean_nothing(text: object) -> None:
    with pytest.raises(SizeFault):
        parse_size(text)


def test_an_ambiguous_unit_is_answered_with_both_readings() -> None:
    with pytest.raises(SizeFault) as caught:
        parse_size("2G")
    assert "2GiB" in caught.value.help and "2GB" in caught.value.help


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${4 * dim}", 32),
        ("${ dim // 3 }", 2),
        ("${dim % 3 - -1}", 3),
        ("${(dim + 1) ** 2}", 81),
        ("${7}", 7),
        (" ${dim} ", 8),
    ],
)
def test_expressions(text: str, value: int) -> None:
    assert compute(text, {"dim": 8}, PLACE) == value


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("${dim + dmi}", 18),
        ("${dim.real}", 15),
        ("${open('f')}", 17),
        ("${__import__}", 12),
        ("${dim(3)}", 12),
        ("${lambda}", 10),
        ("${2 ** 100}", 12),
        ("${1 // 0}", 12),
        ("${9223372036854775807 + 1}", 12),
        ("${1 if dim else 2}", 12),
        ("${1if dim else 2}", 12),
        ("${dim} + 1", 10),
        ("${}", 10),
        ("${" + "(" * 150 + ")" * 150 + "}", 12),
        ("${" + "-" * 199 + "}", 10),
        ("${True}", 12),
        ("${dim and 1}", 12),
        ("${0x10}", 12),
        ("${1_000}", 12),
        ("${dim\n+ 1}", 15),
    ],
)
def test_other_expressions_are_refused_with_their_place(text: str, column: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SpecError) as caught:
            compute(text, {"dim": 8}, PLACE)
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert (span.line, span.column) == (4, column)


@pytest.mark.parametrize("name", ["x", "fc1", "_a", "no", "a" * 64])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "1a", "a-b", "a b", "ä", "a.b", "int", "class", "lambda", "threadIdx", "__x"),
        *("true", "a" * 65, "a\n", "a;", "nullptr", "def"),
    ],
)
def test_names_that_could_not_be_identifiers(name: str) -> None:
    assert not is_name(name)
