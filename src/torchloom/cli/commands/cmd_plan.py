"""`loom plan`: show what `run` would submit, to one engine or to all, without submitting it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from torchloom import settings
from torchloom.cli.command import examples
from torchloom.cli.output import echo_json
from torchloom.cli.submit.command_line import TargetCommand, request_from, target_options
from torchloom.cli.submit.target import TargetRequest, dryrun, dryrun_shape, settled
from torchloom.errors import LoomError, UserError
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers import engines
from torchloom.settings import LOOPBACK
from torchloom.specs.api import AppDryRunInfo

_ROOM = 100 * 2**20  # free bytes that a run needs
_PATIENCE = 60  # seconds for the check of a script


@click.command(
    "plan",
    cls=TargetCommand,
    epilog=examples(
        "loom plan -n 8 train.py",
        "loom plan --all dist.ddp -j 2x8 --script train.py    # on every engine",
        "loom plan --check job.yaml                           # could it start here?",
    ),
)
@click.option("--all", "every", is_flag=True, help="Plan for every engine.")
@click.option("--check", is_flag=True, help="Check whether the job could start here.")
@click.option(
    "--save", is_flag=True, help="Write the job's folder, so that you can submit it by hand."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; a list with --all.")
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
    launch = getattr(info.request, "launch", None)
    if launch is None:
        raise UserError("--check is for this machine; the chosen engine runs jobs elsewhere")
    return problems(launch)


def problems(request: LaunchRequest) -> list[str]:
    """Return why an app could not start here: commands, scripts, ports, disk space."""
    found = [problem for role in request.roles for problem in _of_role(request, role)]
    return list(dict.fromkeys([*found, *_of_state()]))


def _of_role(request: LaunchRequest, role: RoleRequest) -> Iterator[str]:
    for replica in role.replicas:
        yield from _of_command(role, replica, role.cwd or request.cwd)
        for name, port in replica.ports.items():
            if port and _is_taken(port):
                yield f"role {role.name}: port {port} ({name}) is in use"


def _of_command(role: RoleRequest, replica: ReplicaRequest, cwd: str) -> Iterator[str]:
    found = shutil.which(replica.argv[0], path=replica.env.get("PATH"))
    if found is None:
        yield f"role {role.name}: no command {replica.argv[0]!r} on its PATH"
    elif "python" in os.path.basename(found) and not role.workspace:
        yield from _of_python(role, found, replica.argv[1:], cwd)


def _of_python(role: RoleRequest, python: str, words: tuple[str, ...], cwd: str) -> Iterator[str]:
    """Check that a script exists and that its top-level imports are installed."""
    script = next((word for word in words if not word.startswith("-")), "")
    path = Path(cwd, script)
    if "-m" in words[:1] or not script.endswith(".py"):
        return
    if not path.is_file():
        yield f"role {role.name}: no file {str(path)!r}"
        return
    for problem in _import_problems(python, path):
        yield f"role {role.name}: {path.name} {problem}"


_FIND_IMPORTS = """
import ast, importlib.util, os, sys
path = sys.argv[1]
sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
wanted = set()
for node in ast.parse(open(path, "rb").read()).body:
    if isinstance(node, ast.Import):
        wanted.update(alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        wanted.add(node.module.partition(".")[0])
print(*sorted(name for name in wanted if importlib.util.find_spec(name) is None))
"""


def _import_problems(python: str, path: Path) -> list[str]:
    """Check with the role's own interpreter; imports inside functions or `try` are ignored."""
    words = [python, "-c", _FIND_IMPORTS, str(path)]
    try:
        looked = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"cannot be checked: {error}"]
    if looked.returncode:
        return [f"cannot be read: {looked.stderr.strip().rpartition(chr(10))[2]}"]
    return [f"imports {name!r}, which {python} does not have" for name in looked.stdout.split()]


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _of_state() -> Iterator[str]:
    home = settings.loom_home()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        yield f"the state folder {home} is not writable; set LOOM_HOME to another"
    elif shutil.disk_usage(existing).free < _ROOM:
        yield f"less than {_ROOM >> 20} MiB of disk space are free for {home}"
