"""`loom completion`: only misuse comes here; the answer itself needs no CLI library."""

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.completion import SCRIPTS


@click.command("completion", cls=LoomCommand)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def command(shell: str) -> None:
    """Print shell completion. For bash: `source <(loom completion bash)`."""
    click.echo(SCRIPTS[shell], nl=False)
