"""`bpc init [DIR] --template NAME`."""

from __future__ import annotations

from pathlib import Path

import click

from bpc.cli.options import output_options
from bpc.cli.output import emit_json, show, table
from bpc.resources import template_root

FIRST = "classes"


@click.command("init", short_help="Write a commented spec to start from.")
@click.argument("folder", type=click.Path(), metavar="[DIR]", default=".")
@click.option("--list", "listed", is_flag=True, help="List the templates.")
@click.option(
    "--template",
    metavar="NAME",
    default=FIRST,
    show_default=True,
    help="Which one to write.",
)
@output_options
def init_command(folder: str, listed: bool, template: str, as_json: bool, quiet: bool) -> None:
    """Write a commented spec into DIR, or here. Nothing is overwritten."""
    known = read_templates()
    if listed:
        _list(known, as_json, quiet)
        return
    if template not in known:
        message = f"there is no template '{template}'; known are {', '.join(known)}"
        raise click.BadParameter(message, param_hint="--template")
    path = Path(folder) / f"{template}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template_path(template).read_text(encoding="utf-8"))
    except FileExistsError:
        message = f"'{path}' is there already, and nothing is overwritten"
        raise click.BadParameter(message, param_hint="DIR") from None
    if as_json:
        emit_json("init", True, {"file": str(path), "template": template})
    elif quiet:
        show(str(path))
    else:
        show(f"wrote {path}: {known[template]}")
        show(f"next: bpc train {path}")


def read_templates() -> dict[str, str]:
    """What each template is for, by name, the first one to try before the others."""
    names = sorted(path.stem for path in (template_root() / "init").glob("*.yaml"))
    return {name: _describe(name) for name in sorted(names, key=lambda name: name != FIRST)}


def template_path(name: str) -> Path:
    """The file of a template."""
    return template_root() / "init" / f"{name}.yaml"


def _describe(name: str) -> str:
    """Its first line says it after a colon."""
    with template_path(name).open(encoding="utf-8") as file:
        return file.readline().partition(": ")[2].strip()


def _list(known: dict[str, str], as_json: bool, quiet: bool) -> None:
    if as_json:
        templates = [{"name": name, "about": about} for name, about in known.items()]
        emit_json("init", True, {"templates": templates})
    elif quiet:
        show("\n".join(known))
    else:
        show("\n".join(table(("template", "what it shows"), known.items(), left=(0, 1))))
