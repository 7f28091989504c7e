"""Ranks that a native launcher starts itself: one process here, the launcher, is all there is."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchloom.errors import UserError
from torchloom.launch.assembly import assemble
from torchloom.launch.assembly.launchers import AssemblyRequest
from torchloom.launch.assembly.topology import head_address, shared_port
from torchloom.launch.grammar.command import LaunchCommand
from torchloom.launch.grammar.host_plan import HostPlan
from torchloom.launch.host.identity import host_name
from torchloom.launch.hosts.carriers import portable
from torchloom.launch.hosts.native_rank import HOSTS, MEETING
from torchloom.launch.hosts.sites import Site
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest
from torchloom.launch.variables import JOB_VARIABLE


def by_native_launcher(
    request: LaunchRequest,
    plan: HostPlan,
    asked: LaunchCommand,
    site: Site,
    env: Mapping[str, str],
) -> LaunchRequest:
    """Return a request whose only process is the launcher; each rank becomes the program."""
    (role,) = request.roles
    if plan.launcher in ("ssh", "blaunch", "pbs_tmrsh", "torchrun"):
        raise UserError(
            f"--per-rank: {plan.launcher} does not start ranks one by one; "
            "name srun, mpirun or mpiexec with --launcher, or leave --per-rank out"
        )
    replica = role.replicas[0]
    port = shared_port(plan.world.job_id or str(os.getpid()))
    meeting = f"{head_address(plan.world, plan.topology, site.address)}:{port}"
    variables = (
        dict(replica.env) | dict(site.env) | {MEETING: meeting, JOB_VARIABLE: request.app_id}
    )
    variables[HOSTS] = ",".join(plan.topology.hosts)
    assembled = assemble(
        plan.launcher,
        plan.world,
        AssemblyRequest(
            command=(
                sys.executable,
                "-P",
                "-m",
                "torchloom.launch.hosts.native_rank",
                *replica.argv,
            ),
            topology=plan.topology,
            env=portable(env) | variables,
            cwd=role.cwd or request.cwd,
            cpu_bind=asked.cpu_bind or site.cpu_bind,
            flags=(*site.flags, *asked.launcher_flags),
            hostfile=Path(request.log_dir).parent / "hostfile",
            own_host=host_name(),
            job_id=request.app_id,
            port=port,
            per_rank=True,
            as_root=os.getuid() == 0,
        ),
    )
    (command,) = assembled.commands
    own = {name: text for name, text in command.env.items() if env.get(name) != text}
    files = tuple((str(path), text) for path, text in assembled.files)
    role = replace(
        role,
        replicas=(ReplicaRequest(command.argv, own),),
        ranks=1,
        distributed=False,
    )
    return replace(request, roles=(role,), files=files, notes=(*request.notes, *assembled.notes))
