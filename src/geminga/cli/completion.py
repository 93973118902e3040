"""``geminga completion``: completion of commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    bash and zsh: put `eval "$(geminga completion bash)"` into ~/.bashrc, or with zsh into ~/.zshrc.
    fish: geminga completion fish > ~/.config/fish/completions/geminga.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "geminga", "_GEMINGA_COMPLETE").source())
