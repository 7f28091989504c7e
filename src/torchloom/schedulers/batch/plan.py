"""From an app to what a script needs of it. Pure, except that it reads this host's mounts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.errors import UserError, shorten
from torchloom.launch.grammar.command import LaunchCommand
from torchloom.launch.grammar.values import parse_policy
from torchloom.launch.records.request import DEFAULT_GRACE, ORPHAN_LIMIT
from torchloom.schedulers.local_request import make_unique
from torchloom.specs.api import NULL_RESOURCE, AppDef, CfgVal, Resource, Role, Workspace, runopts
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:
    from torchloom.doctor.folders import Mount

# What counts inside the allocation, where this machine's own scheduler reads it.
INSIDE = ("policy", "checkpoints", "grace", "orphan_limit", "idle_timeout", "resume_from")
WARN = 120  # seconds before the limit
_COMMON: tuple[tuple[str, Any, CfgVal, str], ...] = (
    ("job_dir", str, None, "new folder for the job, seen by all hosts; default: in LOOM_HOME"),
    ("python", str, None, "Python on the hosts; default: the interpreter that submits"),
    ("setup", list[str], None, "shell commands to run first, separated by ; (module load cuda)"),
    ("cwd", str, None, "working directory; default: the current one"),
    ("id", str, None, "id of the run; default: its name and a random suffix"),
    ("spares", int, 0, "spare hosts, to replace hosts that fail"),
    ("warn", int, WARN, "seconds before the time limit to save and requeue; 0: never"),
    (
        "policy",
        str,
        None,
        "what to do after a failure: live, restart, shrink or fail; nan=..; min=N",
    ),
    (
        "checkpoints",
        str,
        None,
        "where to store them: a folder, s3://bucket/path; default: with the run",
    ),
    ("grace", int, int(DEFAULT_GRACE), "seconds between SIGTERM and SIGKILL of the ranks"),
    ("orphan_limit", int, int(ORPHAN_LIMIT), "seconds that ranks may run without a supervisor"),
    ("idle_timeout", int, 0, "seconds without output after which the job fails; 0: never"),
)
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_WORKSPACES = "workspace"


def add_common(opts: runopts) -> None:
    """Declare the options that all batch engines have."""
    for name, kind, default, words in _COMMON:
        opts.add(name, type_=kind, default=default, help=words)


def text(cfg: Mapping[str, CfgVal], name: str) -> str:
    """Return an option as text; nothing where it was not given."""
    value = cfg.get(name)
    return "" if value is None else str(value)


def count(cfg: Mapping[str, CfgVal], name: str) -> int:
    """Return an option that is a number from 0."""
    value = cfg.get(name)
    if not isinstance(value, int) or value < 0:
        raise UserError(f"{name}: expected a number from 0, got {value!r}")
    return value


def lines(cfg: Mapping[str, CfgVal], name: str) -> tuple[str, ...]:
    value = cfg.get(name)
    return tuple(value) if isinstance(value, list) else ()


def native(cfg: Mapping[str, CfgVal], family: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's own options that were given; those that we set are refused with why."""
    found = {}
    for key, value in cfg.items():
        prefix, dot, name = key.partition(".")
        if not dot or prefix != family:
            continue
        if not re.sub("[-_]", "", name).isalnum() or not name.isascii():
            raise UserError(f"{shorten(key)!r} names no option; write {family}.NAME=VALUE")
        if name in ours:
            raise UserError(f"{key}: {ours[name]}")
        found[name] = str(value)
    return found


def survives(cfg: Mapping[str, CfgVal]) -> bool:
    """Tell whether the job keeps running when one of its hosts is lost."""
    return parse_policy(text(cfg, "policy")).get("recovery") in ("live", "shrink")


@dataclass(frozen=True, slots=True)
class Block:
    """Hosts that are alike: what each of them needs, and how many there are."""

    resource: Resource
    least: int
    most: int
    roles: tuple[str, ...]
    ranks: int = 1  # of a host, where a number was given


def blocks(app: AppDef, cfg: Mapping[str, CfgVal]) -> list[Block]:
    """Return the hosts an app needs: a replica each; roles that need the same are one block."""
    found: list[Block] = []
    for role in app.roles:
        least = role.num_replicas if role.min_replicas is None else max(1, role.min_replicas)
        mine = Block(_needs(role), least, role.num_replicas, (role.name,), _ranks(role))
        if found and _alike(found[-1], mine):
            last = found.pop()
            mine = Block(
                last.resource,
                last.least + mine.least,
                last.most + mine.most,
                (*last.roles, role.name),
                last.ranks,
            )
        found.append(mine)
    spares = count(cfg, "spares")
    if spares:
        found[-1] = replace(found[-1], most=found[-1].most + spares)
    return found


def _needs(role: Role) -> Resource:
    return role.resource if role.resource is not None else NULL_RESOURCE


def _ranks(role: Role) -> int:
    command = LaunchCommand.of_role([role.entrypoint, *role.args])
    return max(1, (command.ranks if command else None) or 1)


def _alike(one: Block, other: Block) -> bool:
    return _asked_for(one) == _asked_for(other)


def _asked_for(block: Block) -> tuple[object, ...]:
    needs = block.resource
    return needs.cpu, needs.gpu, needs.memMB, needs.devices, block.ranks


def run_id_of(app: AppDef, cfg: Mapping[str, CfgVal]) -> str:
    """Return the id of the run: the one that was chosen, or a new one."""
    chosen = text(cfg, "id")
    if chosen and not re.fullmatch(_ID, chosen):
        raise UserError(f"id: {shorten(chosen)!r} is not a run id; use letters, digits, . _ -")
    return chosen or make_unique(app.name)


def place_of(folder: Path, role: str) -> Path:
    """Return where a role's workspace is shipped to."""
    return folder / _WORKSPACES / role


def shipped(app: AppDef, folder: Path) -> AppDef:
    """Return the app with workspaces where they will be once they are shipped."""
    roles = [
        replace(role, workspace=Workspace({str(place_of(folder, role.name)): ""}))
        if role.workspace
        else role
        for role in app.roles
    ]
    return replace(app, roles=roles)


def notes(app: AppDef, engine: str, places: Sequence[Path]) -> tuple[str, ...]:
    """Return what the submitter should know: what cannot be honoured, what hosts may not see."""
    return (*_unhonoured(app, engine), *_unshared(places, _mounts()))


def _unhonoured(app: AppDef, engine: str) -> Iterator[str]:
    for role in app.roles:
        if role.mounts:
            yield f"role {role.name}: {engine} does not run containers; mounts are ignored"
        if role.resource is not None and role.resource.devices:
            names = ", ".join(role.resource.devices)
            remedy = "use the engine's own options for them"
            yield f"role {role.name}: devices {names} are not requested; {remedy}"
        LaunchCommand.of_role([role.entrypoint, *role.args])  # what makes no sense is refused here


def _unshared(places: Sequence[Path], mounts: "Sequence[Mount]") -> Iterator[str]:
    from torchloom.doctor.folders import existing, mount_of

    seen = set()
    for path in places:
        mount = mount_of(existing(path).resolve(), mounts)
        if mount is not None and not mount.is_network and mount.point not in seen:
            seen.add(mount.point)
            yield f"{path} is on {mount.kind}: all hosts must see it there"


def _mounts() -> "tuple[Mount, ...]":
    from torchloom.doctor.folders import parse_mounts

    try:
        return parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:  # not Linux
        return ()
