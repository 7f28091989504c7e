"""`loom plan`: show what `run` would send, to one engine or to all, without sending it."""

from dataclasses import replace
from typing import Any

import click

from torchloom.cli.output import echo_json
from torchloom.cli.target import Request, TargetCommand, dryrun, request_from, target_options
from torchloom.errors import LoomError, UserError
from torchloom.runner.api import get_runner
from torchloom.specs.api import AppDryRunInfo, app_to_dict


@click.command("plan", cls=TargetCommand)
@click.option("--all", "every", is_flag=True, help="For every engine.")
@click.option("--check", is_flag=True, help="Also look whether it could start here.")
@click.option("--json", "as_json", is_flag=True, help="Print one object, or a list with --all.")
@target_options
def command(every: bool, check: bool, as_json: bool, **options: Any) -> int:
    """Show what `run` would send and what could not be honoured. Nothing is started."""
    request = request_from(options)
    if every:
        return _plan_all(request, as_json)
    info = dryrun(request)
    problems = _check(info) if check else []
    if as_json:
        echo_json({**_shape(request.scheduler, info), "problems": problems})
    else:
        click.echo(f"engine: {request.scheduler}\n{info!r}")
        for problem in problems:
            click.echo(f"problem: {problem}")
        if check and not problems:
            click.echo("check: nothing stands in the way")
    return 1 if problems else 0


def _plan_all(request: Request, as_json: bool) -> int:
    """Plan for each engine; one that cannot take the app says why."""
    shapes = []
    for scheduler in get_runner().scheduler_backends():
        if scheduler == "local_cwd":  # another name of `local`
            continue
        try:
            info = dryrun(replace(request, scheduler=scheduler))
            shapes.append(_shape(scheduler, info))
            shown = repr(info)
        except LoomError as error:
            shapes.append({"scheduler": scheduler, "error": str(error)})
            shown = f"cannot: {error}"
        if not as_json:
            click.echo(f"engine: {scheduler}\n{shown}\n")
    if as_json:
        echo_json(shapes)
    return 0 if any("error" not in shape for shape in shapes) else 1


def _shape(scheduler: str, info: AppDryRunInfo[Any]) -> dict[str, Any]:
    if info.app is None:
        raise UserError("the engine returned no app")
    launch = getattr(info.request, "launch", None)
    return {
        "scheduler": scheduler,
        "app": app_to_dict(info.app),
        "cfg": dict(info.cfg),
        "request": repr(info),
        "notes": list(launch.notes) if launch else [],
    }


def _check(info: AppDryRunInfo[Any]) -> list[str]:
    from torchloom.cli.preflight import problems

    return problems(info.request.launch)
