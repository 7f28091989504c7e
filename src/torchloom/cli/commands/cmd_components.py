"""`loom components`: list components, or describe the arguments of one."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo_json, printable, table
from torchloom.components.catalog import Component, find_components
from torchloom.components.finder import get_builtin_source, get_component
from torchloom.specs.arguments import REQUIRED, Argument, ArgumentKind, arguments_of, type_name
from torchloom.specs.builders import component_help


@click.command(
    "components",
    cls=LoomCommand,
    epilog=examples(
        "loom components", "loom components dist.ddp", "loom components --print utils.echo"
    ),
)
@click.argument("name", required=False)
@click.option("--print", "source", metavar="NAME", help="Print a component's source.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list; with NAME, an object.")
def command(name: str | None, source: str | None, as_json: bool) -> None:
    """List components; with NAME (`dist.ddp`, `file.py:fn`), describe its arguments."""
    if source is not None:
        click.echo(get_builtin_source(source), nl=False)
    elif name is None:
        _list(as_json)
    elif as_json:
        echo_json(_shape(get_component(name)))
    else:
        click.echo(component_help(get_component(name)), nl=False)


def _list(as_json: bool) -> None:
    catalog = find_components()
    rows = [(name, one.description) for name, one in sorted(catalog.components.items())]
    if as_json:
        echo_json([{"name": name, "description": text} for name, text in rows])
        return
    summaries = [(name, text.partition("\n")[0]) for name, text in rows]
    click.echo(table(("NAME", "DESCRIPTION"), summaries))
    for entry, why in catalog.broken.items():
        click.echo(printable(f"loom: {entry}: {why}"), err=True)


def _shape(component: Component) -> dict[str, Any]:
    return {
        "name": component.name,
        "description": component.description,
        "arguments": [_argument_shape(argument) for argument in arguments_of(component.fn)],
    }


def _argument_shape(argument: Argument) -> dict[str, Any]:
    """Return an argument as JSON; its default is text, since it may be any object."""
    open_ended = argument.default in (REQUIRED, None)
    return {
        "name": argument.name,
        "flags": list(argument.flags),
        "type": type_name(argument.type),
        "required": argument.default is REQUIRED and argument.kind is not ArgumentKind.VARIADIC,
        "default": None if open_ended else str(argument.default),
        "help": argument.help,
    }
