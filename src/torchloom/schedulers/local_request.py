"""Translate an app into a request to this machine's job agent, under a unique name. Pure."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torchloom import settings
from torchloom.launch.grammar.command import LaunchCommand
from torchloom.launch.host import devices
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.launch.shim import shimmed
from torchloom.launch.variables import JOB_VARIABLE, SPEC_VARIABLE
from torchloom.specs.api import AppDef, CfgVal, Role, macros

CHECKPOINTS = "LOOM_CHECKPOINTS"  # where all runs save by default
DEADLINES = ("LOOM_DEADLINE", "SLURM_JOB_END_TIME")
_HERE = ("", "local")
RANK0_VARIABLE = "TORCHX_RANK0_HOST"
WORKSPACES = "workspace"  # the folder in a run's own that holds each role's copy


def saving(request: LaunchRequest, chosen: str, env: Mapping[str, str]) -> LaunchRequest:
    """Return the request with its place for checkpoints: as chosen, else of its job or the user.

    A launch inside another engine's job finds the job in its environment; one inside a rank of
    ours is not that rank's job.
    """
    own = request.roles[0].replicas[0].env if request.roles else {}
    inherited = "" if JOB_VARIABLE in env else env.get(SPEC_VARIABLE, "")
    spec = _spec(own.get(SPEC_VARIABLE, inherited))
    checkpointing, recovery = _part(spec, "checkpointing"), _part(spec, "recovery")
    store = str(checkpointing.get("store") or "")
    base = next((one for one in (chosen, store) if one not in _HERE), "")
    base = base or own.get(CHECKPOINTS) or env.get(CHECKPOINTS, "")
    return replace(
        request,
        checkpoints=_root(base, request.app_id),
        saves=bool(checkpointing.get("enabled")),
        backoff=float(recovery.get("backoff") or 0.0),
        deadline=_deadline(env),
    )


def _deadline(env: Mapping[str, str]) -> int:
    """Return when the allocation ends, in unix seconds, by the user or the engine; else 0."""
    found = (env.get(name, "") for name in DEADLINES)
    return next((int(text) for text in found if text.isascii() and text.isdecimal()), 0)


def _root(base: str, app_id: str) -> str:
    if base in _HERE:
        return str(settings.runs_dir() / app_id / "checkpoints")
    from torchloom.checkpoint import root_of

    return root_of(base, app_id, settings.runs_dir())


def _spec(text: str) -> dict[str, Any]:
    """Return the job spec in a program's environment; nothing where there is none."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _part(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


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
    beside_us = os.path.dirname(sys.executable)  # torchrun, where our environment is not activated
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


_LETTERS = "bcdfghjklmnpqrstvwxz"  # no vowels: no words
_ALPHABET = _LETTERS + "0123456789"
_LENGTH = 13


def random_id(length: int = _LENGTH) -> str:
    """Return random characters that any engine takes in a name; the first is a letter."""
    first, *rest = os.urandom(length)
    return _LETTERS[first % len(_LETTERS)] + "".join(_ALPHABET[b % len(_ALPHABET)] for b in rest)


def make_unique(name: str, string_length: int = 0) -> str:
    """Return the name with random characters behind it."""
    return f"{name}-{random_id(string_length or _LENGTH)}"
