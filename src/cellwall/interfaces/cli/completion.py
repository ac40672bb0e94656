"""`cellwall completion`: the script that a shell needs."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

_SETUP = {
    "bash": ("~/.bashrc", 'eval "$(cellwall completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(cellwall completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "cellwall completion fish | source"),
}


@click.command(
    epilog="""\b
Examples:
  cellwall completion bash >> ~/.bashrc
  cellwall completion zsh > ~/.cellwall-completion.zsh
  cellwall completion fish > ~/.config/fish/completions/cellwall.fish
"""
)
@click.argument("shell", type=click.Choice(list(_SETUP)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell, with a line that says where it goes."""
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101  # click knows the three names
    script = found(ctx.find_root().command, {}, "cellwall", "_CELLWALL_COMPLETE")
    place, line = _SETUP[shell]
    # The base class's way: bash's own would start bash to ask for its version.
    click.echo(f"# Put this into {place}:\n#   {line}\n{ShellComplete.source(script)}")
