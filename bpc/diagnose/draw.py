"""Draws a network: its picture from the spec, and SVG with Graphviz or without."""

from __future__ import annotations

import shutil
import subprocess

from bpc.data.describe import Description
from bpc.diagnose.formulas import join_passes
from bpc.diagnose.picture import Picture, draw_graph, write_dot, write_svg
from bpc.lower import lower
from bpc.spec.model import Spec

GRAPHVIZ_SECONDS = 30


def draw_network(spec: Spec, description: Description) -> Picture:
    """The boxes and arrows of a network's forward and backward pass."""
    picture = draw_graph(join_passes(lower(spec, description, training=True), spec))
    return Picture(spec.name, picture.boxes, picture.arrows)


def render_svg(picture: Picture) -> str:
    """SVG laid out by Graphviz; without it, or where it fails or takes long, by bands of layers."""
    program = shutil.which("dot")
    if program is None:
        return write_svg(picture)
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=write_dot(picture),
            capture_output=True,
            text=True,
            timeout=GRAPHVIZ_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return write_svg(picture)
    return done.stdout if done.returncode == 0 else write_svg(picture)
