"""Forward and backward as a picture: boxes and arrows, as text for Graphviz and as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from bpc.diagnose.symbols import gradients_of
from bpc.expr import Var
from bpc.ir import Graph, Node, Value
from bpc.types import format_shape

FILL = {
    "input": "#e8e8e8",
    "parameter": "#d9ecd0",
    "forward": "#d7e6f5",
    "loss": "#f5e9b8",
    "backward": "#fbdcc4",
}
"""A colour for each kind of box; the kind also shows in its label and outline."""


@dataclass(frozen=True, slots=True)
class Box:
    """A value: its name, what makes it, its shape. `beside` is the layer at whose height it is."""

    name: str
    lines: tuple[str, ...]
    kind: str
    beside: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A value that is read. `kept`: it is made in the forward and read in the backward pass."""

    source: str
    target: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn, in the order in which it runs."""

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def draw_graph(graph: Graph) -> Picture:
    """Boxes and arrows of a joint graph; views, constants and positions are left out."""
    return _Drawing(graph).picture()


@dataclass(slots=True)
class _Drawing:
    """Decides what is drawn, and by which box a value that is not drawn is stood for."""

    graph: Graph
    makers: Mapping[str, Node] = field(init=False)
    titles: Mapping[str, str] = field(init=False)
    boxes: dict[str, Box] = field(init=False)
    stands: dict[str, str | None] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = self.graph.producers()
        self.titles = _titles(self.graph)
        self.boxes, self.stands = {}, {}

    def picture(self) -> Picture:
        """Fill in all boxes, then the arrows between them."""
        parameters = [state.value for state in self.graph.states if state.kind == "parameter"]
        beside = {name: node.scope for node in reversed(self.graph.nodes) for name in node.inputs}
        for kind, values in (("input", self.graph.inputs), ("parameter", parameters)):
            for value in values:
                self._add(value.name, Box(*_label(value, kind), kind, beside.get(value.name, "")))
        for node in self.graph.nodes:
            self._place(node)
        arrows = dict.fromkeys(arrow for node in self.graph.nodes for arrow in self._arrows(node))
        return Picture(self.graph.name, tuple(self.boxes.values()), tuple(arrows))

    def _add(self, name: str, box: Box) -> None:
        self.boxes[box.name] = box
        self.stands[name] = box.name

    def _place(self, node: Node) -> None:
        """A box for the node, or what stands for it: the box of what it views, or nothing."""
        sources = [self.stands.get(name) for name in node.inputs]
        drawn = [source for source in sources if source]
        stand: str | None = node.name
        if not drawn or (node.output.shape == () and node.scope != node.name):
            stand = None  # a constant, or a scalar beside the loss: its seed, its weight
        elif _is_view(node):
            stand = drawn[0]
        for value in node.outputs:
            self.stands[value.name] = stand
        if stand == node.name:
            self.boxes[node.name] = self._box(node)

    def _box(self, node: Node) -> Box:
        title = self.titles.get(node.output.name, node.output.name)
        if node.phase == "backward":
            kind, told = "backward", ""
        else:
            kind = "loss" if node.scope == "loss" else "forward"
            told = node.op if node.op != "map" else "formula"
        facts = f"{told}  {_type(node.output)}".strip()
        return Box(node.name, (title, facts, f":{node.span.line}"), kind, node.scope)

    def _arrows(self, node: Node) -> list[Arrow]:
        if self.stands.get(node.output.name) != node.name:
            return []
        sources = [self.stands.get(name) for name in node.inputs]
        found = dict.fromkeys(source for source in sources if source)
        backward = node.phase == "backward"
        arrows = [
            Arrow(source, node.name, backward and self.boxes[source].kind != "backward")
            for source in found
        ]
        if backward and node.scope == "loss" and all(arrow.kept for arrow in arrows):
            begin = Arrow(self._loss(), node.name, False)
            arrows = [begin, *(arrow for arrow in arrows if arrow.source != begin.source)]
        return [arrow for arrow in arrows if arrow.source != arrow.target]

    def _loss(self) -> str:
        """The box of the loss: the backward pass begins there."""
        return self.stands[self.graph.output("loss")] or ""


def _is_view(node: Node) -> bool:
    if node.op == "reshape":
        return node.output.name != node.scope
    return node.op == "map" and isinstance(node.attr("expr"), Var)


def _titles(graph: Graph) -> dict[str, str]:
    """Gradients as dL/dv, the parts of a sum numbered."""
    titles: dict[str, str] = {}
    for of, gradients in gradients_of(graph).items():
        for k, name in enumerate(gradients, 1):
            part = f" ({k})" if k < len(gradients) else ""
            titles[name] = f"dL/d{of}{part}"
    return titles


def _label(value: Value, kind: str) -> tuple[str, tuple[str, ...]]:
    return value.name, (value.name, f"{kind}  {_type(value)}")


def _type(value: Value) -> str:
    return f"{value.dtype}{format_shape(value.shape)}"


# -- Graphviz -------------------------------------------------------------------------------------


def write_dot(picture: Picture) -> str:
    """The picture in Graphviz's language: forward runs down, backward up beside it."""
    lines = [
        f"digraph {_quote(picture.name)} {{",
        '  graph [rankdir=TB, nodesep=0.3, ranksep=0.35, fontname="Helvetica"];',
        '  node [shape=box, style="filled", fontname="Helvetica", fontsize=10, margin="0.1,0.05"];',
        "  edge [arrowsize=0.6];",
    ]
    kinds = {box.name: box.kind for box in picture.boxes}
    for box in picture.boxes:
        style = _dot_style(box.kind)
        lines.append(f"  {_quote(box.name)} [label={_quote(*box.lines)}, {style}];")
    lines += [_dot_arrow(arrow, kinds) for arrow in picture.arrows]
    lines.append("}")
    return "\n".join(lines) + "\n"


def _dot_style(kind: str) -> str:
    outline = {"input": ', style="filled,rounded"', "parameter": ', style="filled,rounded"'}
    thick = ", penwidth=2" if kind == "loss" else ""
    dashed = ', style="filled,dashed"' if kind == "backward" else outline.get(kind, "")
    return f'fillcolor="{FILL[kind]}"{dashed}{thick}'


def _dot_arrow(arrow: Arrow, kinds: Mapping[str, str]) -> str:
    """Arrows of the backward pass are given the other way round, so that it is drawn upwards."""
    source, target = _quote(arrow.source), _quote(arrow.target)
    if arrow.kept:
        return f'  {source} -> {target} [style=dashed, constraint=false, color="#888888"];'
    if kinds[arrow.target] == "backward" and kinds[arrow.source] == "backward":
        return f"  {target} -> {source} [dir=back];"
    if kinds[arrow.target] == "backward":
        return f"  {source} -> {target} [constraint=false];"
    return f"  {source} -> {target};"


def _quote(*lines: str) -> str:
    plain = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(plain) + '"'


# -- SVG ------------------------------------------------------------------------------------------

_WIDTH, _LINE, _GAP, _COLUMN = 220, 14, 18, 300
_COLUMNS = {"parameter": 0, "input": 0, "forward": 1, "loss": 1, "backward": 2}
_MARKER = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#444"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class _Place:
    x: float
    y: float
    height: float


def write_svg(picture: Picture) -> str:
    """The picture without Graphviz: inputs and parameters, forward down, backward up, in columns.

    Every layer has a band of its own, as high as the tallest of its three columns.
    """
    places, height = _lay_out(picture.boxes)
    width = 3 * _COLUMN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="11">',
        f"<title>{escape(picture.name)}</title>",
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>',
        _MARKER,
        *(_svg_arrow(arrow, places) for arrow in picture.arrows),
        *(_svg_box(box, places[box.name]) for box in picture.boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lay_out(boxes: Sequence[Box]) -> tuple[dict[str, _Place], float]:
    """Places of all boxes, band below band in order of the forward pass, and the whole height."""
    bands: dict[str, list[list[Box]]] = {}
    for box in sorted(boxes, key=lambda box: box.kind not in ("forward", "loss")):
        bands.setdefault(box.beside, [[], [], []])[_COLUMNS[box.kind]].append(box)
    places: dict[str, _Place] = {}
    top = float(_GAP)
    for columns in bands.values():
        columns[2].reverse()  # the backward pass goes up
        heights = [sum(_height(box) + _GAP for box in column) for column in columns]
        for k, column in enumerate(columns):
            y = top + (max(heights) - heights[k]) / 2
            for box in column:
                places[box.name] = _Place(k * _COLUMN + (_COLUMN - _WIDTH) / 2, y, _height(box))
                y += _height(box) + _GAP
        top += max(heights)
    return places, top


def _height(box: Box) -> float:
    return _LINE * len(box.lines) + 8


def _svg_box(box: Box, place: _Place) -> str:
    dash = ' stroke-dasharray="5 3"' if box.kind == "backward" else ""
    round_ = ' rx="9"' if box.kind in ("input", "parameter") else ""
    thick = 2 if box.kind == "loss" else 1
    texts = "".join(
        f'<text x="{place.x + _WIDTH / 2:.0f}" y="{place.y + 15 + k * _LINE:.0f}" '
        f'text-anchor="middle"{" font-weight=" + chr(34) + "bold" + chr(34) if k == 0 else ""}>'
        f"{escape(line)}</text>"
        for k, line in enumerate(box.lines)
    )
    return (
        f'<g><rect x="{place.x:.0f}" y="{place.y:.0f}" width="{_WIDTH}" '
        f'height="{place.height:.0f}" fill="{FILL[box.kind]}" stroke="#444" '
        f'stroke-width="{thick}"{dash}{round_}/>{texts}</g>'
    )


def _svg_arrow(arrow: Arrow, places: Mapping[str, _Place]) -> str:
    """Between columns from side to side, within one from edge to edge or, over others, around."""
    start, end = places[arrow.source], places[arrow.target]
    style = ' stroke-dasharray="4 3" stroke="#999"' if arrow.kept else ' stroke="#444"'
    if start.x != end.x:
        right = start.x < end.x
        x0, x1 = start.x + _WIDTH * right, end.x + _WIDTH * (not right)
        y0, y1 = start.y + start.height / 2, end.y + end.height / 2
        bend = 30 if right else -30
        path = f"M{x0:.0f},{y0:.0f} C{x0 + bend:.0f},{y0:.0f} {x1 - bend:.0f},{y1:.0f} "
        path += f"{x1:.0f},{y1:.0f}"
    else:
        path = _within(start, end, arrow, places)
    return f'<path d="{path}" fill="none" marker-end="url(#head)"{style}/>'


def _within(start: _Place, end: _Place, arrow: Arrow, places: Mapping[str, _Place]) -> str:
    """An arrow in one column: straight to a neighbour, around the boxes between otherwise."""
    low, high = sorted((start.y, end.y))
    between = any(p.x == start.x and low < p.y < high for p in places.values())
    centre = start.x + _WIDTH / 2
    if not between:
        down = start.y < end.y
        y0, y1 = start.y + start.height * down, end.y + end.height * (not down)
        return f"M{centre:.0f},{y0:.0f} L{centre:.0f},{y1:.0f}"
    side = start.x + _WIDTH
    y0, y1 = start.y + start.height / 2, end.y + end.height / 2
    out = side + 28
    return f"M{side:.0f},{y0:.0f} C{out:.0f},{y0:.0f} {out:.0f},{y1:.0f} {side:.0f},{y1:.0f}"
