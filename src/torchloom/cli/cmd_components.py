"""`loom components`: what components there are, and what one takes."""

import click

from torchloom.cli.output import echo_json, table
from torchloom.components.finder import get_builtin_source, get_component
from torchloom.components.installed import find_components
from torchloom.specs.command_line import component_help


@click.command("components")
@click.argument("name", required=False)
@click.option("--print", "source", metavar="NAME", help="Print a component's source.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(name: str | None, source: str | None, as_json: bool) -> None:
    """List components; with NAME (`dist.ddp`, `file.py:fn`), explain its arguments."""
    if source:
        click.echo(get_builtin_source(source), nl=False)
    elif name:
        click.echo(component_help(get_component(name)), nl=False)
    else:
        _list(as_json)


def _list(as_json: bool) -> None:
    catalog = find_components()
    rows = [(name, one.description) for name, one in sorted(catalog.components.items())]
    if as_json:
        echo_json([{"name": name, "description": text} for name, text in rows])
        return
    click.echo(table(("NAME", "DESCRIPTION"), rows))
    for entry, why in catalog.broken.items():
        click.echo(f"loom: {entry}: {why}", err=True)
