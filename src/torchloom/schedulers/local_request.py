"""Translate an app into what this machine's agent is asked to run. Pure."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchloom.launch.grammar.command import LaunchCommand
from torchloom.launch.host import devices
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.launch.shim import shimmed
from torchloom.specs.api import AppDef, CfgVal, Role, macros

RANK0_VARIABLE = "TORCHX_RANK0_HOST"
WORKSPACES = "workspace"  # the folder in a run's own that holds each role's copy


def build(
    app: AppDef,
    cfg: Mapping[str, CfgVal],
    request: LaunchRequest,
    env: Mapping[str, str],
    home: str,
) -> LaunchRequest:
    """Return the request with its roles; `home` is the run's own folder, which may not exist."""
    roles = tuple(_role(role, cfg, request, env, home) for role in app.roles)
    masks, notes = _masks(app, bool(cfg.get("auto_set_cuda_visible_devices")), env)
    roles = tuple(_masked(role, masks) for role in roles)
    return replace(request, roles=roles, notes=(*notes, *_notes(app)))


def _role(
    role: Role, cfg: Mapping[str, CfgVal], request: LaunchRequest, env: Mapping[str, str], home: str
) -> RoleRequest:
    launch = LaunchCommand.of_role([role.entrypoint, *role.args])
    ranks = (launch.ranks or max(1, len(devices.visible(env)))) if launch else 1
    plain = launch is not None and launch.ranks is None and ranks * role.num_replicas == 1
    cwd = os.path.join(home, WORKSPACES, role.name) if role.workspace else None
    return RoleRequest(
        name=role.name,
        replicas=tuple(_replicas(role, cfg, request, cwd or request.cwd, env.get("PATH"))),
        ranks=ranks,
        distributed=launch is not None and not plain,
        max_retries=role.max_retries,
        policy=role.retry_policy,
        min_replicas=role.min_replicas,
        workspace=role.workspace.projects if role.workspace else None,
        cwd=cwd,
    )


def _replicas(
    role: Role,
    cfg: Mapping[str, CfgVal],
    request: LaunchRequest,
    cwd: str,
    inherited: str | None,
) -> Iterator[ReplicaRequest]:
    for index in range(role.num_replicas):
        values = macros.Values(
            img_root=cwd, app_id=request.app_id, replica_id=str(index), rank0_env=RANK0_VARIABLE
        )
        filled = values.apply(role)
        launch = LaunchCommand.of_role([filled.entrypoint, *filled.args])
        argv = launch.argv("python") if launch else (filled.entrypoint, *filled.args)
        path = _search_path(filled.env.get("PATH"), inherited, cwd, cfg)
        own = {**filled.env, **shimmed({"PATH": path})}
        yield ReplicaRequest(argv, own, dict(role.port_map))


def _search_path(
    own: str | None, inherited: str | None, cwd: str, cfg: Mapping[str, CfgVal]
) -> str:
    """Return where commands are looked for: the role's folders, the shell's, this one."""
    folders = [part for part in (own, inherited) if part]
    folders.insert(0 if cfg.get("prepend_cwd") else len(folders), cwd)
    beside_us = os.path.dirname(sys.executable)  # torchrun, where nobody activated our environment
    return os.pathsep.join([*folders, beside_us])


def _masks(app: AppDef, wanted: bool, env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return every replica's device mask in order, and what could not be done."""
    if not wanted:
        return [], []
    wants = [max(0, role.resource.gpu) for role in app.roles for _ in range(role.num_replicas)]
    found = devices.visible(env)
    masks = devices.deal(found, wants)
    if masks is None:
        return [], [f"{sum(wants)} devices wanted, {len(found)} here: all replicas see all of them"]
    return masks, []


def _masked(role: RoleRequest, masks: list[str]) -> RoleRequest:
    """Take this role's masks off the front of the list."""
    if not masks:
        return role
    mine, masks[:] = masks[: len(role.replicas)], masks[len(role.replicas) :]
    replicas = tuple(
        replace(replica, env={**replica.env, devices.MASK: mask}) if mask else replica
        for replica, mask in zip(role.replicas, mine, strict=True)
    )
    return replace(role, replicas=replicas)


def _notes(app: AppDef) -> Iterator[str]:
    for role in app.roles:
        if role.mounts:
            yield f"role {role.name}: mounts need containers; processes here see the real paths"
