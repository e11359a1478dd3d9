"""`bpc graph`: what is drawn, and files that other programs read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bpc import api
from bpc.cli.main import main
from bpc.diagnose import draw
from bpc.diagnose.draw import draw_network, render_svg
from bpc.diagnose.picture import FILL, Arrow, Picture, write_dot, write_svg
from bpc.resources import spec_root

SPECS = sorted(spec_root().rglob("*.yaml"))


def picture(path: Path) -> Picture:
    net = api.compile(path, device="reference")
    return draw_network(net.spec, net.description)


@pytest.fixture(scope="module")
def small_conv() -> Picture:
    return picture(spec_root() / "small_conv.yaml")


def test_boxes_carry_names_ops_shapes_and_lines(small_conv: Picture) -> None:
    boxes = {box.name: box for box in small_conv.boxes}
    assert boxes["relu1"].lines == ("relu1", "relu  f32[batch, 8, 8, 8]", ":16")
    assert boxes["conv2d2.weight"].lines == ("conv2d2.weight", "parameter  f32[16, 8, 3, 3]")
    gradient = boxes["d_conv2d2.weight"]
    assert gradient.lines == ("dL/dconv2d2.weight", "f32[16, 8, 3, 3]", ":17")
    assert (gradient.kind, gradient.beside) == ("backward", "conv2d2")
    assert {box.kind for box in small_conv.boxes} == set(FILL)


def test_dashed_arrows_are_what_the_backward_pass_keeps(small_conv: Picture) -> None:
    arrows = set(small_conv.arrows)
    assert Arrow("relu1", "d_conv2d1", True) in arrows
    assert Arrow("conv2d1", "relu1", False) in arrows
    assert Arrow("loss", "d_linear1", False) in arrows
    assert not {arrow for arrow in arrows if arrow.source == "conv2d1" and arrow.kept}
    begins = [arrow.target for arrow in arrows if arrow.source == "loss"]
    assert begins == ["d_linear1"]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_gradient_of_a_parameter_is_reached_from_the_loss(path: Path) -> None:
    drawn = picture(path)
    reached = {"loss"}
    for arrow in drawn.arrows:
        if arrow.source in reached and not arrow.kept:
            reached.add(arrow.target)
    parameters = [box.name for box in drawn.boxes if box.kind == "parameter"]
    assert parameters and {f"d_{name}" for name in parameters} <= reached
    names = {box.name for box in drawn.boxes}
    assert {end for arrow in drawn.arrows for end in (arrow.source, arrow.target)} <= names


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_own_svg_has_every_box_and_none_overlaps(path: Path) -> None:
    drawn = picture(path)
    tree = ET.fromstring(write_svg(drawn))
    space = "{http://www.w3.org/2000/svg}"
    groups = tree.findall(f"{space}g")
    assert [group[1].text for group in groups] == [box.lines[0] for box in drawn.boxes]
    corners = []
    for group in groups:
        x, y, w, h = (float(group[0].attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and x + w <= float(tree.attrib["width"])
        assert y >= 0 and y + h <= float(tree.attrib["height"])
        assert all(x != u or y + h <= v or v + k <= y for u, v, k in corners)
        corners.append((x, y, h))
    assert len(tree.findall(f"{space}path")) == len(drawn.arrows)


def test_dot_is_well_formed(small_conv: Picture) -> None:
    text = write_dot(small_conv)
    assert text.startswith('digraph "small-conv" {') and text.endswith("}\n")
    assert len(re.findall(r"^  \".*\[label=", text, re.MULTILINE)) == len(small_conv.boxes)
    assert text.count(" -> ") == len(small_conv.arrows)
    assert '"d_relu1" -> ' in text, "backward arrows are turned round"
    if shutil.which("dot"):
        done = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr
        assert done.stdout.count("\nnode ") == len(small_conv.boxes)


def test_names_of_users_are_escaped(tmp_path: Path) -> None:
    drawn = Picture('a<b"&\\', (), ())
    assert '"a<b\\"&\\\\"' in write_dot(drawn)
    assert ET.fromstring(write_svg(drawn))[0].text == 'a<b"&\\'


def test_without_graphviz_the_own_layout_is_written(
    small_conv: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw.shutil, "which", lambda name: None)
    assert render_svg(small_conv) == write_svg(small_conv)
    monkeypatch.setattr(draw.shutil, "which", lambda name: "/bin/false")
    assert render_svg(small_conv) == write_svg(small_conv)


def test_the_command_writes_either_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(spec_root() / "worked" / "neuron.yaml")
    for name in ("out.svg", "out.dot"):
        out = tmp_path / "made" / name
        assert main(["graph", spec, "-o", str(out), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["file"] == str(out) and answer["boxes"] == 12
        assert "dL/da" in out.read_text(encoding="utf-8")
    assert main(["graph", spec, "-o", str(tmp_path / "out.png")]) == 2
    assert "ends in none of .svg, .dot" in capsys.readouterr().err
