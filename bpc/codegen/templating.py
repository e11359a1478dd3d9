"""Jinja2 over the package's templates. Templates never compute: lines arrive rendered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from bpc.resources import template_root

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment(target: str) -> Environment:
    """The templates of one target."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(template_root() / target),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(target: str, template: str, values: Mapping[str, object]) -> str:
    """One template with its values."""
    return environment(target).get_template(template).render(values)
