"""The argument and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

DEVICES = ("auto", "cpu", "cuda", "sim", "reference")


def spec_options(command: Command) -> Command:
    """SPEC, and what `bpc.api.compile` takes beside it under the same names."""
    return click.argument("spec", type=click.Path())(wish_options(command))


def wish_options(command: Command) -> Command:
    """What `spec_options` adds, without SPEC."""
    for decorate in reversed(_WISH_OPTIONS):
        command = decorate(command)
    return command


def output_options(command: Command) -> Command:
    """`--json` and `--quiet`."""
    for decorate in reversed(_OUTPUT_OPTIONS):
        command = decorate(command)
    return command


def parse_settings(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """`("train.lr=1e-3",)` as a mapping; the spec's schema gives the values their types."""
    settings = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"'{value}' is not of the form train.lr=1e-3")
        settings[key.strip()] = text.strip()
    return settings


_WISH_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--set",
        "set",
        multiple=True,
        metavar="KEY=VALUE",
        callback=parse_settings,
        help="Change a value of the spec, such as train.lr=1e-3; may be repeated.",
    ),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="Where to run; auto takes the fastest that works.",
    ),
    click.option("--memory", metavar="SIZE", help="Budget for the whole arena, such as 64MiB."),
    click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads of the CPU."),
    click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of all draws."),
)

_OUTPUT_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option("--quiet", is_flag=True, help="Print the result alone."),
)
