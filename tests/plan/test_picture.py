"""The arena picture: complete, well-formed, self-contained and the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from bpc.plan.classes import find_fullest, find_peak, sum_classes
from bpc.plan.model import Kind, Placed
from bpc.plan.picture import COLOURS, HEIGHT, WIDTH, arena_svg

SVG = "{http://www.w3.org/2000/svg}"
TENSORS = [
    Placed("fc1.weight", Kind.PARAMETERS, 4000, 0, 9, 0),
    Placed("fc1.weight.m", Kind.OPTIMIZER, 4000, 0, 9, 4032),
    Placed("act<1>&co", Kind.SAVED, 2000, 1, 7, 8064),
    Placed("d.act1", Kind.WORKSPACE, 2000, 6, 7, 10112),
    Placed("d.fc1.weight", Kind.GRADIENTS, 4000, 7, 9, 12160),
    Placed("empty", Kind.WORKSPACE, 0, 3, 4, 0),
]
PEAK = 16160


def tooltips(root: ElementTree.Element) -> list[str]:
    return [t.text or "" for rect in root.iter(f"{SVG}rect") for t in rect.iter(f"{SVG}title")]


def test_every_tensor_has_a_rectangle_in_its_colour_with_a_tooltip() -> None:
    root = ElementTree.fromstring(arena_svg(TENSORS, PEAK, 17_000, "mlp"))
    assert len(tooltips(root)) == 5
    for tensor in TENSORS[:5]:
        (rect,) = [
            r
            for r in root.iter(f"{SVG}rect")
            if any((t.text or "").startswith(f"{tensor.name}:") for t in r.iter(f"{SVG}title"))
        ]
        tip = tooltips(rect)[0]
        assert f"{tensor.nbytes:,} bytes" in tip
        assert f"launches {tensor.first} to {tensor.last}" in tip
        assert rect.get("fill") == COLOURS[tensor.kind][0]


def test_rectangles_are_at_their_place_and_time() -> None:
    root = ElementTree.fromstring(arena_svg(TENSORS, PEAK))
    rects = [r for r in root.iter(f"{SVG}rect") if list(r)]
    boxes = [tuple(float(r.get(k) or 0) for k in ("x", "y", "width", "height")) for r in rects]
    assert all(x >= 0 and y >= 0 and x + w <= WIDTH and y + h <= HEIGHT for x, y, w, h in boxes)
    width, height = boxes[0][2:]
    bottom = boxes[0][1] + height
    for box, tensor in zip(boxes, sorted(TENSORS[:5], key=lambda t: t.offset), strict=True):
        assert abs(box[2] / width - (tensor.last - tensor.first + 1) / 10) < 1e-3
        assert abs((bottom - box[1] - box[3]) / height - tensor.offset / 4000) < 1e-3


def test_text_is_deterministic_and_self_contained() -> None:
    text = arena_svg(TENSORS, PEAK, 17_000, "a < b & c")
    assert text == arena_svg(list(reversed(TENSORS)), PEAK, 17_000, "a < b & c")
    assert not re.search(r"href|url\(|<script|<image|@import", text)
    assert text.count("http") == 1  # the name space


def test_peak_budget_legend_and_moment_are_written() -> None:
    text = arena_svg(TENSORS, PEAK, 17_000, "mlp")
    assert "peak 15.78 KiB (16,160 bytes)" in text
    assert "budget 16.60 KiB" in text
    assert "at launch 7" in text
    for kind in Kind:
        assert f">{kind} " in text
    assert "above the picture" in arena_svg(TENSORS, PEAK, 10**9)
    assert "budget" not in arena_svg(TENSORS, PEAK)


def test_a_budget_below_the_peak_and_an_empty_plan_can_be_drawn() -> None:
    assert "budget 1.00 KiB" in arena_svg(TENSORS, PEAK, 1024)
    ElementTree.fromstring(arena_svg([], 0, 0, "nothing"))


def test_classes_sum_to_what_is_alive() -> None:
    launch = find_fullest(TENSORS)
    assert launch == 7 and find_peak(TENSORS) == 7
    sums = sum_classes(TENSORS, launch)
    assert sums == {
        Kind.PARAMETERS: 4000,
        Kind.GRADIENTS: 4000,
        Kind.OPTIMIZER: 4000,
        Kind.SAVED: 2000,
        Kind.WORKSPACE: 2000,
    }
    assert find_fullest([]) == 0 and sum(sum_classes([], 0).values()) == 0
