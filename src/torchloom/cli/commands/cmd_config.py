"""`loom config`: show the values of the config files, or write a new file."""

import io
from pathlib import Path

import click

from torchloom.cli.command import LoomGroup, examples
from torchloom.cli.output import echo_json
from torchloom.errors import Failure, NotFound, UserError
from torchloom.runner import config
from torchloom.runner.api import get_runner
from torchloom.schedulers import engines

NAME = ".loomconfig"


class _ConfigGroup(LoomGroup):
    """A group whose default command is `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        elif not args[0].startswith("-") and args[0] not in self.commands:
            raise NotFound(
                "config command", args[0], self.commands, "`loom config --help` lists them"
            )
        return super().parse_args(ctx, args)


@click.group(
    "config",
    cls=_ConfigGroup,
    epilog=examples("loom config show --origin", "loom config init -s slurm"),
)
def command() -> None:
    """Show the values of the config files, or write a config file."""


@command.command("show", epilog=examples("loom config show --origin"))
@click.option("--origin", is_flag=True, help="Print the file of each value.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def show(origin: bool, as_json: bool) -> None:
    """Print every effective value."""
    rows = config.origins()
    if as_json:
        keys = ("section", "key", "value", "file")
        echo_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    if not rows:
        click.echo(f"no config file here or in your home; `loom config init` writes {NAME}")
    for section, key, value, file in rows:
        click.echo(f"[{section}] {key} = {value}" + (f"  ({file})" if origin else ""))


@command.command(
    "init", epilog=examples("loom config init -s slurm", "loom config init --print --all")
)
@click.option("-s", "--schedulers", metavar="A,B", help="Only these engines.")
@click.option("--print", "only_print", is_flag=True, help="Print the file instead of writing it.")
@click.option("-a", "--all", "every", is_flag=True, help="Include options that are not required.")
def init(schedulers: str | None, only_print: bool, every: bool) -> None:
    """Write a config file with the options of the engines."""
    runner = get_runner()
    names = schedulers.split(",") if schedulers else engines(runner.scheduler_backends())
    for name in names:
        runner.scheduler(name)
    text = io.StringIO()
    config.dump(text, names, required_only=not every)
    if only_print:
        click.echo(text.getvalue(), nl=False)
        return
    _write(Path(NAME), text.getvalue())


def _write(path: Path, text: str) -> None:
    try:
        with open(path, "x") as file:
            file.write(text)
    except FileExistsError as error:
        raise UserError(f"{path} exists; remove it, or use --print") from error
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}")
