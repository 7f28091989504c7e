"""`loom launch`: start the ranks of a command here, in the foreground, as torchrun does."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from torchloom.cli.command import Number
from torchloom.cli.submission import Launch
from torchloom.cli.target import Kind, Request, dryrun
from torchloom.cli.target_command import TargetCommand
from torchloom.errors import UserError, shorten
from torchloom.launch import devices
from torchloom.runner.api import get_runner
from torchloom.schedulers.local_scheduler import create_scheduler
from torchloom.settings import environment

F = TypeVar("F", bound=Callable[..., Any])

# Flags of torchrun that say how to do what we do otherwise: every attempt meets at a free port of
# its own, exits are seen without polling, and all output is both shown and kept.
_NEEDLESS = (
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr"),
    *("--master-port", "--local-addr", "--monitor-interval", "--start-method"),
    *("--event-log-handler", "--redirects", "--tee", "--signals-to-handle"),
)


def torchrun_options(function: F) -> F:
    """Accept torchrun's needless flags, with dashes and with underscores."""
    for flag in _NEEDLESS:
        short = {"--redirects": ["-r"], "--tee": ["-t"]}.get(flag, [])
        names = dict.fromkeys([*short, flag, _underscored(flag)])
        function = click.option(*names, hidden=True, expose_value=False)(function)
    return click.option("--standalone", is_flag=True, hidden=True, expose_value=False)(function)


def _underscored(flag: str) -> str:
    return "--" + flag[2:].replace("-", "_")


@click.command("launch", cls=TargetCommand)
@click.option("-n", "--np", "total", metavar="N", help="Ranks: a number, gpu, cpu or auto.")
@click.option(
    "--nproc-per-node",
    "--nproc_per_node",
    "--ppn",
    "each",
    metavar="N",
    envvar="PET_NPROC_PER_NODE",
    help="The same, in torchrun's words.",
)
@click.option("--nnodes", "--nh", default="1", envvar="PET_NNODES", help="Hosts; only 1 so far.")
@click.option("--node-rank", "--node_rank", default=0, envvar="PET_NODE_RANK", hidden=True)
@click.option(
    "--max-restarts",
    "--max_restarts",
    type=Number(0),
    default=0,
    metavar="K",
    envvar="PET_MAX_RESTARTS",
    help="Starts of all ranks after one failed, at most.",
)
@click.option(
    "--shutdown-timeout",
    "--shutdown_timeout",
    type=Number(0),
    metavar="S",
    help="Seconds between SIGTERM and SIGKILL; default 10.",
)
@click.option("--log-dir", "--log_dir", metavar="DIR", envvar="PET_LOG_DIR", help="Keep logs here.")
@click.option("--role", metavar="NAME", envvar="PET_ROLE", help="Name of the role.")
@click.option("--no-python", "--no_python", is_flag=True, help="The command is no Python script.")
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Show what would be started.")
@torchrun_options
@click.option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGS]...")
def command(
    total: str | None,
    each: str | None,
    nnodes: str,
    node_rank: int,
    dry: bool,
    **options: Any,
) -> int:
    """Start the ranks of COMMAND on this host and stay until they end.

    \b
    loom launch -n 4 train.py --lr 0.1
    loom launch --nproc_per_node 4 --max_restarts 2 -m pkg.train

    Ctrl-C, or the end of this command however it comes, ends the ranks.
    """
    if nnodes not in ("1", "1:1") or node_rank:
        raise UserError(f"--nnodes {shorten(nnodes)}: ranks are started on one host only, so far")
    request, runner = _request(_processes(total, each), **options), get_runner()
    info = dryrun(request, runner)
    if dry:
        click.echo(repr(info))
        return 0
    return Launch(runner, create_scheduler(runner.name()), request, info).follow()


def _request(
    processes: int,
    max_restarts: int,
    shutdown_timeout: int | None,
    log_dir: str | None,
    role: str | None,
    no_python: bool,
    module: str | None,
    words: tuple[str, ...],
) -> Request:
    if not words and not module:
        raise UserError("nothing to launch: write `loom launch -n 4 train.py`")
    is_script = not no_python and not module and words[0].endswith(".py")
    chosen = {"grace": shutdown_timeout, "log_dir": log_dir}
    return Request(
        words=words,
        module=module,
        processes=processes,
        max_retries=max_restarts,
        role=role,
        cfg={name: value for name, value in chosen.items() if value is not None},
        kind=Kind.MODULE if module else Kind.SCRIPT if is_script else Kind.COMMAND,
    )


def _processes(total: str | None, each: str | None) -> int:
    """Return how many ranks are meant; on one host, all of them and those of each host are one."""
    if total is not None and each is not None and total != each:
        raise UserError(f"-n {total} ranks are not {each} on one host; leave one of the two out")
    wanted = total or each
    found = len(devices.visible(environment()))
    if wanted is None:
        return max(1, found)
    cores = os.cpu_count() or 1
    names = {"gpu": found, "cpu": cores, "auto": found or cores}
    if wanted == "gpu" and not found:
        raise UserError("-n gpu: no accelerator found; use cpu, auto or a number")
    if wanted in names:
        return names[wanted]
    if not wanted.isascii() or not wanted.isdigit() or int(wanted) == 0:
        raise UserError(f"-n {shorten(wanted)!r}: write a number from 1, gpu, cpu or auto")
    return int(wanted)
