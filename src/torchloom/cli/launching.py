"""Do what a launch asks for: the one place behind `loom launch` and the torchrun shim."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from torchloom.cli.output import say
from torchloom.cli.submission import Launch
from torchloom.cli.target import Kind, Request, dryrun
from torchloom.errors import UserError
from torchloom.launch import devices
from torchloom.launch.command import LaunchCommand
from torchloom.launch.environments import find_world
from torchloom.launch.environments.world import World
from torchloom.launch.hostfile import read_hosts
from torchloom.launch.identity import host_name
from torchloom.launch.planning import HostPlan, over_hosts, plan_hosts
from torchloom.launch.sites import NOWHERE, Site, find_site, read_sites
from torchloom.runner.api import get_runner
from torchloom.schedulers.local_scheduler import create_scheduler
from torchloom.settings import environment, loom_home, user_name
from torchloom.specs.api import AppDryRunInfo


def launch(asked: LaunchCommand) -> int:
    """Start the ranks and stay until they end; return the exit code."""
    world = _world(asked)
    plan = plan_hosts(asked, world, host_name(), _ranks_here, _has, _mpiexec_version)
    runner = get_runner()
    request = _request(asked, plan)
    info = dryrun(request, runner)
    if not plan.is_here:
        info = _spread(info, plan, asked)
    if asked.dryrun:
        click.echo(repr(info))
        return 0
    found = world.notes if asked.total is None and asked.per_node is None else ()
    for note in dict.fromkeys((*found, *info.request.launch.notes)):
        say(note)
    return Launch(runner, create_scheduler(runner.name()), request, info).follow()


def _world(asked: LaunchCommand) -> World:
    """Return where this is: the allocation around us, the user's host file, or a job elsewhere."""
    world = find_world(environment(), host_name())
    if asked.hostfile:
        return world.with_hosts(read_hosts(Path(asked.hostfile)))
    if world.flavour == "plain" and any(map(_has, ("squeue", "qselect", "bjobs"))):
        from torchloom.launch.jobs_elsewhere import JobsElsewhere

        found = JobsElsewhere(_output, user_name()).one(host_name())
        if found is not None:
            say(f"joining your {found.flavour} job {found.job_id} on {found.nhosts} hosts")
            return found
    return world


def _spread(info: AppDryRunInfo[Any], plan: HostPlan, asked: LaunchCommand) -> AppDryRunInfo[Any]:
    launch_request = info.request.launch
    site = _site()
    if asked.per_rank:
        from torchloom.launch.native import by_native_launcher

        spread = by_native_launcher(launch_request, plan, asked, site, environment())
    else:
        spread = over_hosts(launch_request, plan, asked, site)
    changed = AppDryRunInfo(replace(info.request, launch=spread), str)
    changed.app, changed.cfg = info.app, info.cfg
    return changed


def _site() -> Site:
    own = loom_home() / "sites.toml"
    texts = [own.read_text()] if own.exists() else []
    return find_site(read_sites(texts), host_name(), environment()) or NOWHERE


def _request(asked: LaunchCommand, plan: HostPlan) -> Request:
    is_script = asked.as_torchrun or "".join(asked.words[:1]).endswith(".py")
    is_command = asked.no_python or not is_script
    chosen = {
        "grace": asked.grace,
        "log_dir": asked.log_dir,
        "orphan_limit": _whole(asked.orphan_limit),
        "idle_timeout": _whole(asked.idle_timeout),
    }
    return Request(
        words=asked.words,
        module=asked.module,
        processes=plan.topology.per_host[0],
        max_retries=asked.max_restarts,
        role=asked.role,
        cfg={name: value for name, value in chosen.items() if value is not None},
        kind=Kind.MODULE if asked.module else Kind.COMMAND if is_command else Kind.SCRIPT,
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds)) if seconds else 0


def _ranks_here(wanted: object) -> int:
    """Return how many ranks `auto`, `gpu` or `cpu` is on a host like this one."""
    if isinstance(wanted, int):
        return wanted
    found, cores = len(devices.visible(environment())), os.cpu_count() or 1
    if wanted in ("gpu", "xpu") and not found:
        raise UserError(f"-n {wanted}: no accelerator found; use cpu, auto or a number")
    named = {None: max(1, found), "cpu": cores, "auto": found or cores}
    return named.get(str(wanted) if wanted else None, found)


def _has(program: str) -> bool:
    return shutil.which(program) is not None


def _mpiexec_version() -> str:
    if not _has("mpiexec"):
        raise UserError("mpiexec is not on PATH: load the site's MPI module, or use --launcher ssh")
    return _output(["mpiexec", "--version"])


def _output(words: Sequence[str]) -> str:
    import subprocess

    done = subprocess.run(
        list(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
    )
    done.check_returncode()
    return done.stdout or done.stderr
