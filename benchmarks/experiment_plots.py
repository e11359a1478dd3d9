"""Plots of the experiments as small SVG files: ours as dots and lines, reported as diamonds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# Okabe and Ito 2008: colours that stay apart for all common forms of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
INK, CALM = "#333333", "#DDDDDD"
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bpc",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": CALM,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "path.simplify": True,
}
REPORTED = {"marker": "D", "facecolors": "none", "edgecolors": INK, "s": 44, "zorder": 5}
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_LONG = re.compile(r'(?<= d=")[^"]+|(?<= points=")[^"]+|(?<= (?:x|y)=")[\d.-]+')
_NEEDLESS = (  # what matplotlib writes and no viewer needs
    (re.compile(r"<metadata>.*?</metadata>\n|<!--.*?-->\n", re.DOTALL), ""),
    (re.compile(r"font-family: [^;\"]+"), "font-family: sans-serif"),
    (re.compile(r' transform="rotate\(-0 [^"]+"'), ""),
    (re.compile(r'<g id="\w[^"]*"'), "<g"),
    (re.compile(r"\n<use "), "<use "),
)
_TRIED = 1e6  # what lies above is no figure but the sign of a run that was not finite


def draw(name: str, sheet: Mapping[str, Any], path: Path) -> bool:
    """Write an experiment's plot; False if it has none."""
    if name not in PLOTS:
        return False
    with pyplot.rc_context(SETTINGS):
        figure = PLOTS[name](sheet)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    path.write_text(_shorten(path.read_text(encoding="utf-8")), encoding="utf-8")
    return True


def _shorten(text: str) -> str:
    """Coordinates with one decimal place, a tenth of a point; no indentation."""

    def round_all(part: re.Match[str]) -> str:
        rounded = _NUMBER.sub(lambda n: f"{float(n[0]):.1f}", part[0])
        return " ".join(rounded.split()).replace(" L ", "L").replace("M ", "M")

    text = re.sub(r"^ +", "", _LONG.sub(round_all, text), flags=re.MULTILINE)
    for pattern, kept in _NEEDLESS:
        text = pattern.sub(kept, text)
    return text


# -- lines ----------------------------------------------------------------------------------------


def _lines(sheet: Mapping[str, Any], log_y: bool = True, log_x: bool = False) -> Figure:
    """One panel for each ending of the cases' names; one colour for each beginning."""
    curves = {case: curve for case, curve in sheet["curves"].items() if curve["x"]}
    panels = _endings(curves)
    figure, axes = _panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for index, (case, start) in enumerate(_of_panel(curves, panel)):
            _line(axis, curves[case], start, index)
            for x, y in sheet.get("marks", {}).get(start, ()):
                axis.scatter([x], [y], **{**REPORTED, "edgecolors": COLOURS[index]})
        axis.set_title(panel, loc="left", fontsize=9)
        axis.set_xlabel(sheet["axes"][0])
        if log_y:
            axis.set_yscale("log")
        if log_x:
            axis.set_xscale("log")
        axis.minorticks_off()
    axes[0].set_ylabel(sheet["axes"][1])
    _legend(axes[-1], bool(sheet.get("marks")))
    return figure


def _endings(cases: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(_ending(case) for case in cases))


def _ending(case: str) -> str:
    return case.rpartition(", ")[2] if ", " in case else ""


def _of_panel(cases: Iterable[str], panel: str) -> list[tuple[str, str]]:
    return [(c, c.rpartition(", ")[0] or c) for c in cases if _ending(c) == panel]


def _line(axis: Axes, curve: Mapping[str, Sequence[float]], label: str, index: int) -> None:
    known = [k for k, y in enumerate(curve["high"]) if abs(y) < _TRIED]
    x, y, low, high = ([curve[part][k] for k in known] for part in ("x", "y", "low", "high"))
    colour = COLOURS[index % len(COLOURS)]
    axis.plot(x, y, color=colour, linestyle=STYLES[index % len(STYLES)], label=label)
    if low != high:
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    size = (3.6 * count + 1.4, 3.0)
    figure, axes = pyplot.subplots(1, count, figsize=size, sharey=True, layout="constrained")
    return figure, [axes] if count == 1 else list(axes)


def _legend(axis: Axes, with_reported: bool) -> None:
    handles, _ = axis.get_legend_handles_labels()
    if with_reported:
        handles.append(_reported_handle())
    axis.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _reported_handle() -> Line2D:
    return Line2D([], [], marker="D", color="none", mfc="none", mec=INK, ms=5, label="reported")


# -- dots -----------------------------------------------------------------------------------------


def _dots(sheet: Mapping[str, Any], keys: Sequence[str], label: str, log_x: bool) -> Figure:
    """Cases from top to bottom; a dot with its spread for each key, diamonds for reported ones."""
    rows = [row for row in sheet["rows"] if any(_positive(row, key) for key in keys)]
    size = (7.2, 0.26 * len(rows) + 1.0)
    figure, axis = pyplot.subplots(figsize=size, layout="constrained")
    said = False
    for index, key in enumerate(keys):
        shift = 0.18 * (index - (len(keys) - 1) / 2)
        for place, row in enumerate(rows):
            if _positive(row, key):
                _dot(axis, row["values"][key], place + shift, COLOURS[index])
            found = row["reported"].get(key)
            if isinstance(found, int | float) and found > 0:
                axis.scatter([found], [place + shift], **{**REPORTED, "edgecolors": COLOURS[index]})
                said = True
        axis.scatter([], [], s=22, color=COLOURS[index], label=sheet["columns"][key])
    axis.set_yticks(range(len(rows)), [row["case"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel(label)
    if log_x:
        axis.set_xscale("log")
    axis.minorticks_off()
    _legend(axis, said)
    return figure


def _positive(row: Mapping[str, Any], key: str) -> bool:
    value = row["values"].get(key)
    mean = value["mean"] if isinstance(value, Mapping) else value
    return isinstance(mean, int | float) and 0 < mean < _TRIED


def _dot(axis: Axes, value: Any, place: float, colour: str) -> None:
    mean, spread = (value["mean"], value["spread"]) if isinstance(value, Mapping) else (value, 0)
    least = min(spread, 0.9 * mean)  # an axis of powers of ten ends above 0
    axis.plot([mean - least, mean + spread], [place, place], color=colour, linewidth=1)
    axis.scatter([mean], [place], s=22, color=colour, zorder=4)


# -- each experiment's own ------------------------------------------------------------------------


def _initialisations(sheet: Mapping[str, Any]) -> Figure:
    label = "norm of the weight's gradient at the first step, full batch"
    first = [row for row in sheet["rows"] if "zeros" not in row["case"]]
    return _dots({**sheet, "rows": first}, ("layer1", "layer2", "layer3"), label, True)


def _clipping(sheet: Mapping[str, Any]) -> Figure:
    return _dots(sheet, ("needed",), "rounds until the mean loss is under 0.1", False)


def _warmup(sheet: Mapping[str, Any]) -> Figure:
    """Rounds; a diamond where 18 % fewer than with the fixed warm-up would be."""
    fixed: dict[str, float] = {}
    rows = []
    for row in sheet["rows"]:
        start, _, steps = row["case"].rpartition(", ")
        if start.startswith("fixed"):
            fixed[steps] = row["values"]["rounds"]["mean"]
        share = row["reported"].get("saved")
        said = {} if share is None else {"rounds": fixed[steps] * (1 - share / 100)}
        rows.append({**row, "reported": said})
    label = "rounds until the mean loss is under 0.1"
    return _dots({**sheet, "rows": rows}, ("rounds",), label, False)


def _checkpoints(sheet: Mapping[str, Any]) -> Figure:
    """Fronts of all lengths, what real programs took, and what was reported."""
    figure = _lines(sheet, log_y=False, log_x=True)
    axis = figure.axes[0]
    for row in sheet["rows"]:
        if isinstance(row["values"].get("time"), Mapping):
            share = float(re.findall(r"(\d+) %", row["case"])[0])
            time = row["values"]["time"]["mean"]
            axis.scatter([share], [time], marker="s", s=22, color=INK, zorder=4)
    axis.scatter([100 * 8 / 14], [12], **REPORTED)
    axis.axhspan(20, 30, color=CALM, alpha=0.5, zorder=0)
    axis.set_ylim(0, 100)
    axis.set_xticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
    handles, _ = axis.get_legend_handles_labels()
    measured = Line2D([], [], marker="s", color="none", mfc=INK, mec=INK, ms=5)
    measured.set_label("measured time, 100 blocks")
    band = Line2D([], [], color=CALM, linewidth=6, label="reported for sqrt(n)")
    handles += [measured, _reported_handle(), band]
    axis.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _mask_bytes(sheet: Mapping[str, Any]) -> Figure:
    return _dots(sheet, ("bytes",), "bytes that the backward pass reads, [32, 256]", True)


PLOTS = {
    "initialisations": _initialisations,
    "activations": _lines,
    "learning_rates": _lines,
    "warmup": _warmup,
    "clipping": _clipping,
    "norm_order": _lines,
    "checkpoints": _checkpoints,
    "mask_bytes": _mask_bytes,
}
