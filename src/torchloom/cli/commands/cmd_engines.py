"""`loom engines`: list engines and their options."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo_json
from torchloom.runner.api import get_runner
from torchloom.schedulers import engines
from torchloom.specs.api import runopts


@click.command("engines", cls=LoomCommand, epilog=examples("loom engines", "loom engines slurm"))
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list; with NAME, an object.")
def command(name: str | None, as_json: bool) -> None:
    """List engines and their options, which `-cfg` sets."""
    runner = get_runner()
    names = [name] if name is not None else engines(runner.scheduler_backends())
    found = {engine: runner.scheduler_run_opts(engine) for engine in names}
    if as_json:
        shapes = [{"name": engine, "options": _shape(opts)} for engine, opts in found.items()]
        echo_json(shapes if name is None else shapes[0])
        return
    for engine, opts in found.items():
        click.echo(f"{engine}:")
        for option, value in opts:
            default = "required" if value.is_required else f"default {value.default}"
            click.echo(f"  {option} ({default})\n      {value.help}")


def _shape(opts: runopts) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": getattr(option.opt_type, "__name__", str(option.opt_type)),
            "default": option.default,
            "required": option.is_required,
            "help": option.help,
        }
        for name, option in opts
    ]
