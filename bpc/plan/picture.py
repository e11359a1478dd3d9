"""The arena over time as an SVG: launches to the right, bytes upwards, a rectangle per tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bpc.plan.classes import find_fullest, sum_classes
from bpc.plan.model import Kind, Placed
from bpc.types import format_bytes

WIDTH, HEIGHT = 1200, 700
LEFT, RIGHT, TOP, BOTTOM = 92, 24, 96, 58
COLOURS: dict[Kind, tuple[str, str]] = {  # fill, text on it
    Kind.PARAMETERS: ("#4477aa", "#ffffff"),
    Kind.GRADIENTS: ("#ee8866", "#1c1c1c"),
    Kind.OPTIMIZER: ("#8a7bb5", "#ffffff"),
    Kind.SAVED: ("#44aa77", "#12241a"),
    Kind.WORKSPACE: ("#d9d2b4", "#1c1c1c"),
}
GLYPH = 0.6  # width of a character of the label font as a share of its size


@dataclass(frozen=True, slots=True)
class _Scale:
    """From launches and bytes to pixels."""

    launches: int
    top_bytes: int

    def x(self, launch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * launch / self.launches

    def y(self, offset: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * offset / self.top_bytes


def arena_svg(
    tensors: Sequence[Placed], peak_bytes: int, budget_bytes: int | None = None, title: str = ""
) -> str:
    """Draw every tensor of a plan at its place and time.

    Args:
        tensors: with offsets, classes and lifetimes in launch indices.
        peak_bytes: size of the arena, drawn as a line.
        budget_bytes: drawn as a dashed line, at the top edge with its number if far above the peak.
        title: printed above the picture.

    Returns:
        A self-contained SVG document, the same text for the same arguments.
    """
    scale = _scale(tensors, peak_bytes, budget_bytes)
    order = sorted(tensors, key=lambda t: (t.offset, t.first, t.name))
    shown = [tensor for tensor in order if tensor.nbytes]
    parts = [
        _head(title),
        *_legend(tensors),
        *_axes(scale),
        *(_tensor(tensor, scale) for tensor in shown),
        *_moment(tensors, scale),
        *_limits(scale, peak_bytes, budget_bytes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _scale(tensors: Sequence[Placed], peak_bytes: int, budget_bytes: int | None) -> _Scale:
    highest = max([peak_bytes, 1, *(t.end for t in tensors)])
    if budget_bytes is not None and budget_bytes <= 1.6 * highest:
        highest = max(highest, budget_bytes)
    launches = max((t.last + 1 for t in tensors), default=1)
    return _Scale(max(launches, 1), -(-highest * 106 // 100))


def _head(title: str) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="DejaVu Sans, Helvetica, Arial, '
            'sans-serif" font-size="13" fill="#1c1c1c">',
            f"<title>{escape(title or 'arena over time')}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _text(LEFT, 32, title, size=19, weight="bold"),
        ]
    )


def _legend(tensors: Sequence[Placed]) -> list[str]:
    """A square for each class with its bytes at the fullest moment."""
    sums = sum_classes(tensors, find_fullest(tensors))
    parts: list[str] = []
    x = float(LEFT)
    for kind in Kind:
        label = f"{kind} {format_bytes(sums[kind])}"
        parts.append(_rect(x, 49, 14, 14, COLOURS[kind][0]) + "</rect>")
        parts.append(_text(x + 20, 61, label))
        x += 20 + 13 * 0.58 * len(label) + 20
    note = "classes: bytes at the fullest launch"
    parts.append(_text(WIDTH - RIGHT, 32, note, size=11, anchor="end", grey=True))
    return parts


def _axes(scale: _Scale) -> list[str]:
    """Ticks at round numbers of bytes and launches."""
    bottom, left, right = scale.y(0), scale.x(0), scale.x(scale.launches)
    parts: list[str] = []
    for value in _byte_ticks(scale.top_bytes):
        y = scale.y(value)
        parts.append(_line(left, y, right, y, "#e4e4e4"))
        parts.append(_text(left - 8, y + 4, format_bytes(value), size=11, anchor="end"))
    for launch in _launch_ticks(scale.launches):
        x = scale.x(launch + 0.5)
        parts.append(_line(x, bottom, x, bottom + 5, "#808080"))
        parts.append(_text(x, bottom + 19, str(launch), size=11, anchor="middle"))
    parts.append(_line(left, bottom, right, bottom, "#404040"))
    parts.append(_text(left - 8, bottom + 19, "launch", size=11, anchor="end"))
    return parts


def _byte_ticks(top_bytes: int) -> Iterable[int]:
    step = 1
    while top_bytes // step > 10:
        step *= 2
    return range(0, top_bytes + 1, step)


def _launch_ticks(launches: int) -> Iterable[int]:
    step = next(
        base * scale
        for scale in (10**k for k in range(12))
        for base in (1, 2, 5)
        if launches <= 24 * base * scale
    )
    return range(0, launches, step)


def _tensor(tensor: Placed, scale: _Scale) -> str:
    """A rectangle with a tooltip, and the name where it fits."""
    x, right = scale.x(tensor.first), scale.x(tensor.last + 1)
    y, bottom = scale.y(tensor.end), scale.y(tensor.offset)
    fill, ink = COLOURS[tensor.kind]
    tip = (
        f"{tensor.name}: {tensor.kind}, {format_bytes(tensor.nbytes)} ({tensor.nbytes:,} bytes), "
        f"launches {tensor.first} to {tensor.last}, offset {tensor.offset:,}"
    )
    rect = _rect(x, y, right - x, bottom - y, fill, stroke=True)
    label = _label(tensor.name, x, y, right - x, bottom - y, ink)
    return f"{rect}<title>{escape(tip)}</title></rect>{label}"


def _label(name: str, x: float, y: float, width: float, height: float, ink: str) -> str:
    """The name across the rectangle, else upright, else nothing."""
    for length, breadth, upright in ((width, height, False), (height, width, True)):
        size = min(12.0, breadth - 2, (length - 6) / (GLYPH * max(len(name), 1)))
        if size >= 6.5:
            middle = (x + width / 2, y + height / 2)
            return _text(*middle, name, size=size, anchor="middle", ink=ink, upright=upright)
    return ""


def _moment(tensors: Sequence[Placed], scale: _Scale) -> list[str]:
    """The fullest launch, marked below the axis and by a thin frame."""
    if not tensors:
        return []
    launch = find_fullest(tensors)
    x, right, bottom = scale.x(launch), scale.x(launch + 1), scale.y(0)
    live = sum(sum_classes(tensors, launch).values())
    middle = (x + right) / 2
    text = f"most alive: {format_bytes(live)} at launch {launch}"
    side = "start" if middle < WIDTH / 2 else "end"
    top = scale.y(max(tensor.end for tensor in tensors))
    return [
        f'<rect x="{x:.2f}" y="{top:.2f}" width="{right - x:.2f}" height="{bottom - top:.2f}" '
        'fill="none" stroke="#b00020" stroke-width="1.2" stroke-dasharray="3 2"/>',
        f'<path d="M {middle:.2f} {bottom + 26:.2f} l -5 9 h 10 z" fill="#b00020"/>',
        _text(
            middle + (9 if side == "start" else -9), bottom + 36, text, anchor=side, ink="#b00020"
        ),
    ]


def _limits(scale: _Scale, peak_bytes: int, budget_bytes: int | None) -> list[str]:
    """The peak and the budget as lines across, their numbers at the right edge."""
    left, right = scale.x(0), scale.x(scale.launches)
    y = scale.y(peak_bytes)
    text = f"peak {format_bytes(peak_bytes)} ({peak_bytes:,} bytes)"
    parts = [
        _line(left, y, right, y, "#b00020", width=1.6),
        _text(right - 4, y - 5, text, anchor="end", ink="#b00020", halo=True),
    ]
    if budget_bytes is None:
        return parts
    inside = budget_bytes <= scale.top_bytes
    level = scale.y(budget_bytes) if inside else float(TOP)
    note = f"budget {format_bytes(budget_bytes)}" + ("" if inside else " (above the picture)")
    return [
        *parts,
        _line(left, level, right, level, "#1c1c1c", width=1.6, dash="7 4"),
        _text(left + 4, level - 5, note, halo=True),
    ]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: float = 13,
    anchor: str = "start",
    weight: str = "normal",
    ink: str = "",
    grey: bool = False,
    upright: bool = False,
    halo: bool = False,
) -> str:
    style = [f'x="{x:.2f}" y="{y:.2f}" font-size="{size:.1f}"']
    if anchor != "start":
        style.append(f'text-anchor="{anchor}"')
    if weight != "normal":
        style.append(f'font-weight="{weight}"')
    if ink or grey:
        style.append(f'fill="{ink or "#606060"}"')
    if anchor == "middle" and ink and not halo:  # inside a rectangle: centred on y
        style.append(f'dy="{size * 0.36:.1f}" pointer-events="none"')
    if upright:
        style.append(f'transform="rotate(-90 {x:.2f} {y:.2f})"')
    words = escape(text)
    plain = f"<text {' '.join(style)}>{words}</text>"
    if not halo:
        return plain
    style.append('stroke="#ffffff" stroke-width="4" stroke-linejoin="round"')
    return f"<text {' '.join(style)}>{words}</text>{plain}"


def _rect(x: float, y: float, width: float, height: float, fill: str, stroke: bool = False) -> str:
    """An open `<rect>`; the caller closes it."""
    edge = ' stroke="#ffffff" stroke-width="0.6"' if stroke else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
        f'fill="{fill}"{edge}>'
    )


def _line(
    x: float, y: float, x2: float, y2: float, colour: str, *, width: float = 1.0, dash: str = ""
) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x:.2f}" y1="{y:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" '
        f'stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )
