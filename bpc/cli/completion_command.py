"""`bpc completion bash|zsh|fish`."""

from __future__ import annotations

import click

from bpc.cli.options import output_options
from bpc.cli.output import emit_json, show

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_BPC_COMPLETE"


@click.command("completion", short_help="Print what completes words in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@output_options
@click.pass_context
def completion_command(context: click.Context, /, shell: str, as_json: bool, quiet: bool) -> None:
    """Print the lines that make SHELL complete commands, options, choices and files of bpc.

    \b
    bash   eval "$(bpc completion bash)"             in ~/.bashrc
    zsh    eval "$(bpc completion zsh)"              in ~/.zshrc, after compinit
    fish   bpc completion fish > ~/.config/fish/completions/bpc.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    made = found(context.find_root().command, {}, "bpc", VARIABLE)
    # Not `source`, which would run the shell to ask for its version.
    text = made.source_template % made.source_vars()
    if as_json:
        emit_json("completion", True, {"shell": shell, "script": text})
    else:
        show(text.strip("\n"))
