"""`loom plan`: show what `run` would submit, to one engine or to all, without submitting it."""

from dataclasses import replace
from typing import Any

import click

from torchloom.cli.output import echo_json
from torchloom.cli.submit.command_line import TargetCommand, request_from, target_options
from torchloom.cli.submit.target import TargetRequest, dryrun, dryrun_shape, settled
from torchloom.errors import LoomError, UserError
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers import engines
from torchloom.specs.api import AppDryRunInfo


@click.command("plan", cls=TargetCommand)
@click.option("--all", "every", is_flag=True, help="Plan for every engine.")
@click.option("--check", is_flag=True, help="Check whether the job could start here.")
@click.option("--save", is_flag=True, help="Write the job's folder, to submit it by hand.")
@click.option("--json", "as_json", is_flag=True, help="Print one object, or a list with --all.")
@target_options
def command(every: bool, check: bool, save: bool, as_json: bool, **options: Any) -> int:
    """Show what `run` would submit, and which settings the engine cannot honour."""
    request, runner = request_from(options), get_runner()
    if every and (check or save):
        raise UserError(f"--{'check' if check else 'save'} cannot be combined with --all")
    if every:
        return _plan_all(request, runner, as_json)
    request = settled(request)
    info = dryrun(request, runner)
    problems = _problems(info) if check else None
    if save:
        _save(info)
    if as_json:
        echo_json({**dryrun_shape(request.scheduler, info), "problems": problems})
    else:
        _print(request.scheduler, info, problems)
    return 1 if problems else 0


def _print(scheduler: str, info: AppDryRunInfo[Any], problems: list[str] | None) -> None:
    click.echo(f"engine: {scheduler}\n{info!r}")
    for problem in problems or []:
        click.echo(f"problem: {problem}")
    if problems == []:
        click.echo("check: no problems")


def _plan_all(request: TargetRequest, runner: Runner, as_json: bool) -> int:
    """Plan for each engine; print why an engine cannot run the app."""
    shapes = []
    for scheduler in engines(runner.scheduler_backends()):
        try:
            info = dryrun(replace(request, scheduler=scheduler), runner)
            shapes.append(dryrun_shape(scheduler, info))
        except LoomError as error:
            shapes.append({"scheduler": scheduler, "error": str(error)})
    if as_json:
        echo_json(shapes)
    else:
        for shape in shapes:
            shown = shape.get("request") or f"cannot: {shape['error']}"
            click.echo(f"engine: {shape['scheduler']}\n{shown}")
    return 0 if any("request" in shape for shape in shapes) else 1


def _save(info: AppDryRunInfo[Any]) -> None:
    from torchloom.schedulers.batch.folder import write
    from torchloom.schedulers.batch.script import BatchRequest

    if not isinstance(info.request, BatchRequest):
        raise UserError("--save is for engines that take a script, such as -s slurm")
    write(info.request)


def _problems(info: AppDryRunInfo[Any]) -> list[str]:
    from torchloom.cli.submit.preflight import problems

    launch = getattr(info.request, "launch", None)
    if launch is None:
        raise UserError("--check is for this machine; the chosen engine runs jobs elsewhere")
    return problems(launch)
