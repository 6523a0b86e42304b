"""`sightline completion`: a script that lets a shell complete commands, options and files."""

import click

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """
\b
Examples:
  sightline completion bash >> ~/.bashrc
  sightline completion zsh >> ~/.zshrc
  sightline completion fish > ~/.config/fish/completions/sightline.fish
"""


@click.command("completion", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL; it takes effect in the next one that you open."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(context.find_root().command, {}, "sightline", "_SIGHTLINE_COMPLETE").source())
