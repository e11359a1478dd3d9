"""The tables of docs/experiments.md, from the stored figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

NO_NUMBER = 1e30
_PLACE = re.compile(r"(<!-- figures: ([a-z_]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def embed(text: str, sheets: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the figures of every experiment that has a sheet written anew."""

    def fill(found: re.Match[str]) -> str:
        sheet = sheets.get(found[2])
        return found[0] if sheet is None else found[1] + describe(sheet) + found[3]

    return _PLACE.sub(fill, text)


def places(text: str) -> list[str]:
    """The experiments that the page has a place for, in order."""
    return [found[2] for found in _PLACE.finditer(text)]


def describe(sheet: Mapping[str, Any]) -> str:
    """The spec of the first case and the table, as Markdown."""
    seeds = sheet["seeds"]
    note = f"Mean and standard deviation over {seeds} seeds." if seeds > 1 else "One seed."
    spec = "\n".join(line for line in sheet["spec"].splitlines() if line.strip())
    return f"\n```yaml\n{spec}\n```\n\n{note}\n\n{make_table(sheet)}\n"


def make_table(sheet: Mapping[str, Any]) -> str:
    """One line a case; a column that somebody reported is followed by what was reported."""
    said = {key for row in sheet["rows"] for key in row["reported"]}
    header, keys = ["case"], []
    for key, title in sheet["columns"].items():
        header.append(title)
        keys.append((key, "values"))
        if key in said:
            header.append("reported")
            keys.append((key, "reported"))
    lines = [header, ["---"] * len(header)]
    for row in sheet["rows"]:
        lines.append([row["case"], *(write(row[part].get(key, "")) for key, part in keys)])
    return "".join(_line(cells) for cells in lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") or " " for cell in cells) + " |\n"


def write(value: object) -> str:
    """`0.742 ± 0.013`, a plain number with three digits, or text as it is."""
    if isinstance(value, Mapping):
        mean, spread = value["mean"], value["spread"]
        return write(mean) if spread == 0 else f"{write(mean)} ± {write(spread)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if abs(value) >= NO_NUMBER:
        return "not finite"
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"
