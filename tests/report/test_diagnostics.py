from __future__ import annotations

from bpc.errors import Diagnostic, Note, Span
from bpc.report.diagnostics import read_line_of_text, render_diagnostics


def render(item: Diagnostic, line: str | None) -> list[str]:
    return render_diagnostics([item], lambda file, number: line).split("\n")


def test_the_whole_form() -> None:
    item = Diagnostic(
        "BPC0204",
        "linear 'fc2': sizes differ, input has 128 columns, weight 'w2' has 256 rows",
        Span("specs/mlp.yaml", 9, 22, 2),
        (
            Note("w2 is declared [256, 10]", Span("specs/mlp.yaml", 5, 7)),
            Note("a note without a place"),
        ),
        "give fc2 its own weight, or declare w2 as [128, 10]",
    )
    assert render(item, "  - linear: {weight: w2, out: 10}") == [
        "specs/mlp.yaml:9:22: error BPC0204: linear 'fc2': sizes differ, input has 128 columns,"
        " weight 'w2' has 256 rows",
        "    9 |   - linear: {weight: w2, out: 10}",
        "      |                      ^^",
        "      = w2 is declared [256, 10] at specs/mlp.yaml:5:7",
        "      = a note without a place",
        "      help: give fc2 its own weight, or declare w2 as [128, 10]",
        "1 error in specs/mlp.yaml",
    ]


def test_wide_combining_and_tab_characters_keep_the_caret_in_place() -> None:
    item = Diagnostic("BPC0001", "m", Span("f", 1, 6, 2))
    assert render(item, "\t層e\u0301:ab")[1:3] == [
        "    1 |     層e\u0301:ab",
        "      |         ^^",
    ]
    assert render(Diagnostic("BPC0001", "m", Span("f", 1, 2, 2)), "a層層b")[2] == ("      |  ^^^^")


def test_a_long_line_is_cut_around_the_caret() -> None:
    line = "x" * 500 + "HERE" + "y" * 500
    _, source, caret, _ = render(Diagnostic("BPC0001", "m", Span("f", 1, 501, 4)), line)
    assert len(source) < 130
    assert source[caret.index("^") : caret.rindex("^") + 1] == "HERE"
    assert "..." in source[:12] and source.endswith("...")


def test_a_place_beyond_the_line_still_has_a_caret() -> None:
    assert render(Diagnostic("BPC0001", "m", Span("f", 3, 99)), "abc")[1:3] == [
        "    3 | abc",
        "      |    ^",
    ]


def test_control_and_turning_characters_do_not_reach_the_terminal() -> None:
    text = "\n".join(render(Diagnostic("BPC0001", "a\x1b[31mb\u202e", Span("f", 1, 1)), "\x1b[2J"))
    assert "\x1b" not in text and "\u202e" not in text


def test_counting() -> None:
    items = [
        Diagnostic("BPC0001", "a", Span("a.yaml", 1, 1)),
        Diagnostic("BPC0001", "b", Span("b.yaml", 1, 1)),
        Diagnostic("BPC0001", "c", Span("--set train.lr", 1, 1)),
        Diagnostic("BPC0002", "d", Span("c.yaml", 1, 1), severity="warning"),
    ]
    text = render_diagnostics(items, lambda file, line: None)
    assert text.split("\n")[-1] == "3 errors in a.yaml, b.yaml, --set"
    assert "warning BPC0002" in text
    assert render_diagnostics(items[3:], lambda file, line: None).count("\n") == 0
    assert render_diagnostics([Diagnostic("BPC0001", "a", None)], lambda f, n: None) == (
        "error BPC0001: a\n1 error"
    )


def test_lines_end_where_yaml_ends_them() -> None:
    text = "a\r\nb\rc\u2028d\x85e\nf\x0cg"
    assert [read_line_of_text(text, n) for n in range(8)] == [
        None,
        *("a", "b", "c", "d", "e", "f\x0cg"),
        None,
    ]
