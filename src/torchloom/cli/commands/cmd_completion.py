"""`loom completion`: help and errors; `main` prints the scripts without importing click."""

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.completion import SCRIPTS


@click.command(
    "completion",
    cls=LoomCommand,
    epilog=examples(
        "source <(loom completion bash)",
        "loom completion fish > ~/.config/fish/completions/loom.fish",
    ),
)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def command(shell: str) -> None:
    """Print the completion script of a shell. For bash: `source <(loom completion bash)`."""
    click.echo(SCRIPTS[shell], nl=False)
