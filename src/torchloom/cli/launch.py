"""Carry out a launch, for `loom launch` and the torchrun shim."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchloom.cli import site
from torchloom.cli.output import echo, say
from torchloom.cli.submit.submission import Launch
from torchloom.cli.submit.target import TargetKind, TargetRequest, dryrun
from torchloom.errors import UserError
from torchloom.launch.assembly.topology import HostTopology
from torchloom.launch.environments import find_world
from torchloom.launch.environments.world import World
from torchloom.launch.grammar.command import LaunchCommand
from torchloom.launch.grammar.host_plan import HostPlan, over_hosts, plan_hosts
from torchloom.launch.host import devices
from torchloom.launch.host.identity import host_name
from torchloom.launch.hosts import joint_launch
from torchloom.launch.hosts.host_lists import read_hosts
from torchloom.launch.hosts.joint_launch import (
    JOINED,
    NO_ID,
    JointHead,
    JointLaunch,
    is_alone,
    is_one_a_host,
    meeting_of,
)
from torchloom.launch.logs.display import Display
from torchloom.launch.variables import AGENT_VARIABLE, TOKEN_VARIABLE
from torchloom.runner.api import get_runner
from torchloom.schedulers.local_scheduler import create_scheduler
from torchloom.settings import environment, loom_home, user_name
from torchloom.specs.api import AppDryRunInfo

if TYPE_CHECKING:
    from torchloom.launch.hosts.sites import Site
    from torchloom.launch.records.request import LaunchRequest

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


def find_head(meet: JointLaunch) -> JointHead | str:
    """Return a `JointHead` if this launch becomes the head, else the id of the head's app."""
    secret = joint_launch.token(meet, environment(), loom_home())
    found = joint_launch.settle(meet, secret)
    return found if isinstance(found, str) else JointHead(found, secret)


def serve(meet: JointLaunch, app_id: str, argv: tuple[str, ...], show: Display) -> int:
    """Run an agent for the head until the job ends; return its exit code."""
    secret = joint_launch.token(meet, environment(), loom_home())
    place = "" if meet.place is None else str(meet.place)
    words = [sys.executable, "-P", "-m", "torchloom.launch.agent.node", str(meet.address)]
    stopped_by: list[int] = []
    with subprocess.Popen(
        [*words, "--joined", place, show.to_text(), "--", *argv],
        env={**environment(), AGENT_VARIABLE: app_id, TOKEN_VARIABLE: secret},
        stdin=subprocess.PIPE,
        bufsize=0,
    ) as node:

        def leave(signum: int, _frame: FrameType | None) -> None:
            stopped_by.append(signum)
            if node.stdin:
                node.stdin.close()  # the agent ends the ranks here; the head decides the rest

        def forward(signum: int, _frame: FrameType | None) -> None:
            if node.stdin and not node.stdin.closed:
                with contextlib.suppress(OSError):
                    node.stdin.write(bytes([signum]))  # the agent forwards it to the ranks here

        for signum in _ENDING:
            signal.signal(signum, leave)
        for signum in _FORWARDED:
            signal.signal(signum, forward)
        code = node.wait()
    return 128 + stopped_by[0] if stopped_by else code


def launch(asked: LaunchCommand) -> int:
    """Start the ranks and wait until they end; return the exit code."""
    world = _world(asked)
    meet = meeting_of(asked, world)
    plan = _plan(asked, world, meet)
    modules = site.modules()
    if modules and not asked.dryrun and (plan.is_here or meet is not None):
        site.run_after(modules)  # does not return
    runner = get_runner()
    request = _request(asked, plan)
    info = dryrun(request, runner)
    head: JointHead | None = None
    if meet is not None and not asked.dryrun:
        found = find_head(meet)
        if isinstance(found, str):
            return serve(meet, found, _words(info), Display.of(asked, site.here()))
        head = found
    if not plan.is_here:
        info = _spread(info, plan, asked, modules)
    info.request = _as_asked(info.request, asked, meet, modules)
    if asked.dryrun:
        echo(repr(info))
        return 0
    notes = world.notes if asked.total is None and asked.per_node is None else ()
    for note in dict.fromkeys((*notes, *info.request.launch.notes)):
        say(note)
    scheduler = create_scheduler(runner.name())
    show = Display.of(asked)
    return Launch(runner, scheduler, request, info, show, head, asked.as_torchrun).follow()


def _words(info: AppDryRunInfo[Any]) -> tuple[str, ...]:
    """Return the command line of each rank of this host."""
    (role,) = info.request.launch.roles
    words: tuple[str, ...] = role.replicas[0].argv
    return words


def _plan(asked: LaunchCommand, world: World, meet: JointLaunch | None) -> HostPlan:
    if meet is not None:
        return _meeting_plan(asked, world, meet)
    return plan_hosts(asked, world, host_name(), _ranks_here, has, mpiexec_version)


def _meeting_plan(asked: LaunchCommand, world: World, meet: JointLaunch) -> HostPlan:
    """Return a plan with a place for every node that may join; their names are known later."""
    count = meet.nodes.most
    each = _ranks_here(asked.per_node) if asked.per_node or not asked.total else None
    if each is None:
        each, rest = divmod(_ranks_here(asked.total), count)
        if rest or not each:
            raise UserError(f"-n {asked.total} cannot be spread evenly over {count} hosts")
    known = world.hosts if len(world.hosts) == count else ()
    names = known or tuple(f"node{index}" for index in range(count))
    least = meet.nodes.least if meet.nodes.least < count else None
    return HostPlan(world, HostTopology(names, (each,) * count), JOINED, least=least)


def _as_asked(
    request: Any, asked: LaunchCommand, meet: JointLaunch | None, modules: Sequence[str]
) -> Any:
    """Return a request with the remaining options: log copies, run id, join limits."""
    ranks = max(role.ranks for role in request.launch.roles)
    streams = [asked.redirects.of(n) | asked.tee.of(n) for n in range(ranks)]
    changes: dict[str, Any] = {}
    if modules:
        note = f"ranks start after `module load {' '.join(modules)}`"
        changes["notes"] = (*request.launch.notes, note)
    if asked.log_dir:
        changes["copies"] = str(Path(asked.log_dir).expanduser().absolute())
        changes["copied"] = tuple(streams if asked.as_torchrun else [3] * ranks)
    if asked.rdzv.id not in (None, NO_ID):
        changes["run_id"] = asked.rdzv.id
    if meet is not None:
        changes["join_limit"] = meet.longest_wait
        changes["last_call"] = meet.last_call if meet.nodes.least < meet.nodes.most else 0.0
    return replace(request, launch=replace(request.launch, **changes))


def _world(asked: LaunchCommand) -> World:
    """Return the hosts: of this allocation, of the host file, or of the user's running job."""
    world = find_world(environment(), host_name())
    if asked.hostfile:
        return world.with_hosts(read_hosts(Path(asked.hostfile)))
    if world.is_rank and (is_alone(asked) or not is_one_a_host(world)):
        return find_world({}, host_name())  # a launch inside a rank of another is independent
    if asked.as_torchrun and is_alone(asked):  # torchrun starts nothing on other hosts
        return find_world({}, host_name())
    if meeting_of(asked, world) is not None:
        return world
    if world.flavour == "plain" and any(map(has, ("squeue", "qselect", "bjobs"))):
        from torchloom.launch.environments.other_jobs import JobsElsewhere
        from torchloom.launch.host.sockets import socket_path

        memory = socket_path("jobs-elsewhere.json")
        found = JobsElsewhere(_output, user_name(), memory=memory).one(host_name())
        if found is not None:
            say(f"joining your {found.flavour} job {found.job_id} on {found.nhosts} hosts")
            return found
    return world


def _spread(
    info: AppDryRunInfo[Any], plan: HostPlan, asked: LaunchCommand, modules: Sequence[str]
) -> AppDryRunInfo[Any]:
    launch_request, here = info.request.launch, site.here()
    if modules:
        launch_request, here = _loading(launch_request, here, modules)
    if asked.per_rank:
        from torchloom.launch.hosts.native import by_native_launcher

        spread = by_native_launcher(launch_request, plan, asked, here, environment())
    else:
        spread = over_hosts(launch_request, plan, asked, here)
    changed = AppDryRunInfo(replace(info.request, launch=spread), str)
    changed.app, changed.cfg = info.app, info.cfg
    return changed


def _loading(
    request: "LaunchRequest", here: "Site", modules: Sequence[str]
) -> "tuple[LaunchRequest, Site]":
    """Return both changed so that every host loads modules and keeps the PATH they set."""
    from torchloom.launch.variables import MODULES_VARIABLE

    (role,) = request.roles
    (replica,) = role.replicas
    env = dict(replica.env)
    own = {**here.env, "PATH": env.pop("PATH"), MODULES_VARIABLE: " ".join(modules)}
    role = replace(role, replicas=(replace(replica, env=env),))
    return replace(request, roles=(role,)), replace(here, env=own)


def _request(asked: LaunchCommand, plan: HostPlan) -> TargetRequest:
    is_script = asked.as_torchrun or "".join(asked.words[:1]).endswith(".py")
    is_command = asked.no_python or not is_script
    chosen = {
        "grace": asked.grace,
        "orphan_limit": _whole(asked.orphan_limit),
        "idle_timeout": _whole(asked.idle_timeout),
        "policy": asked.policy,
    }
    return TargetRequest(
        words=asked.words,
        module=asked.module,
        processes=plan.topology.per_host[0],
        max_retries=asked.max_restarts,
        role=asked.role,
        cfg={name: value for name, value in chosen.items() if value is not None},
        kind=TargetKind.MODULE
        if asked.module
        else TargetKind.COMMAND
        if is_command
        else TargetKind.SCRIPT,
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds)) if seconds else 0


def _ranks_here(wanted: object) -> int:
    """Return the number of ranks that `auto`, `gpu` or `cpu` means on this host."""
    if isinstance(wanted, int):
        return wanted
    found, cores = len(devices.visible(environment())), os.cpu_count() or 1
    if wanted in ("gpu", "xpu") and not found:
        raise UserError(f"-n {wanted}: no accelerator found; use cpu, auto or a number")
    named = {None: max(1, found), "cpu": cores, "auto": found or cores}
    return named.get(str(wanted) if wanted else None, found)


def has(program: str) -> bool:
    """Tell whether a program is on PATH."""
    return shutil.which(program) is not None


def mpiexec_version() -> str:
    """Return the output of `mpiexec --version`."""
    if not has("mpiexec"):
        raise UserError("mpiexec is not on PATH: load the site's MPI module, or use --launcher ssh")
    return _output(["mpiexec", "--version"])


def _output(words: Sequence[str]) -> str:
    import subprocess

    done = subprocess.run(
        list(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
    )
    done.check_returncode()
    return done.stdout or done.stderr
