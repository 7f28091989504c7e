"""What an agent is asked to run on this host, as a value that survives a trip through JSON."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Literal

from torchloom.launch.grammar.values import PolicyFields, in_words
from torchloom.sealed import hide
from torchloom.specs.api import RetryPolicy
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:
    from torchloom.rules.replicas import RoleRule
    from torchloom.specs.states import ReplicaKey

READY = b"ready\n"  # the agent: the run exists, every verb knows it
TAKEN = b"taken\n"  # instead: another one is the run of this id
GO = b"go\n"  # the submitter: I know it too; without this word the run is unmade
_OURS = ("PATH", "LOOM_PYTHON")  # set for every replica, and of no interest to a reader
DEFAULT_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
JOIN_LIMIT = 60.0  # seconds for an agent to come up
LIVE_PATIENCE = 90.0  # seconds: what live recovery may take, and half a minute
ORPHAN_LIMIT = 60.0  # seconds that ranks live without an agent
CRASH_LOOP = 3  # restarts in a row that came no further end a run that saves


# What the only rank gets as standard input. On a leash it gets nothing, and the app ends with
# the process that holds the other end of the channel.
Input = Literal["nothing", "stdin", "terminal", "leash"]


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    """The command of one replica, and what its environment has beyond the submitter's."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """The replicas of one role; with `ranks`, each replica is that many ranks of one group."""

    name: str
    replicas: tuple[ReplicaRequest, ...]
    ranks: int = 1
    distributed: bool = False
    max_retries: int = 0
    policy: RetryPolicy = RetryPolicy.APPLICATION
    min_replicas: int | None = None
    workspace: Mapping[str, str] | None = None
    cwd: str | None = None
    min_group: int | None = None  # with fewer nodes the group is not started again
    uneven: tuple[int, ...] = ()  # ranks of each replica, where they differ

    def ranks_of(self, index: int) -> int:
        """Return how many ranks a replica has."""
        return self.uneven[index] if self.uneven else self.ranks

    @property
    def total(self) -> int:
        """Return how many ranks the role has in all."""
        return sum(self.ranks_of(index) for index in range(len(self.replicas)))

    def rule(self) -> "RoleRule":
        """Return what the recovery rule needs to know of this role."""
        from torchloom.rules.replicas import RoleRule

        return RoleRule(
            name=self.name,
            replicas=len(self.replicas),
            ranks=self.ranks,
            max_retries=self.max_retries,
            policy=self._policy(),
            min_replicas=self.min_replicas,
            min_group=self.min_group,
            uneven=self.uneven,
        )

    def _policy(self) -> RetryPolicy:
        """A replica cannot join a group that is under way: its group starts again with it."""
        alone = self.distributed and self.policy is RetryPolicy.REPLICA
        return RetryPolicy.ROLE if alone else self.policy


@dataclass(frozen=True, slots=True)
class AgentCarrier:
    """What brings an agent to every node: a launcher, and the allocation it is started in."""

    launcher: str
    world: Mapping[str, Any]  # `environments.World`, field by field
    flags: tuple[str, ...] = ()
    cpu_bind: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # the site's own variables


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One app, on this host or on `nodes`, each replica on its own. Printing it is the dry run."""

    app_id: str
    name: str
    session: str
    cwd: str
    log_dir: str
    roles: tuple[RoleRequest, ...]
    grace: float = DEFAULT_GRACE
    notes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # more than there are replicas: spares
    carrier: AgentCarrier | None = None
    files: tuple[tuple[str, str], ...] = ()  # path and text, to be written before the start
    copies: str = ""  # a folder for torchrun's layout of logs, beside our own
    copied: tuple[int, ...] = ()  # by local rank: which streams go there
    run_id: str = ""  # the run's name for the ranks; else the app's id
    join_limit: float = JOIN_LIMIT
    last_call: float = 0.0  # seconds to wait for more nodes than the least
    idle_timeout: float = 0.0  # seconds without output after which the app has failed
    orphan_limit: float = ORPHAN_LIMIT
    policy: PolicyFields = field(default_factory=dict)  # what the plane does on failures
    checkpoints: str = ""  # the root of the run's checkpoints, whether it has any or not
    saves: bool = False  # it was described as a job that does
    deadline: int = 0  # unix seconds when its allocation ends; 0: unknown
    backoff: float = 0.0  # seconds before the first restart, doubled before each further one
    attempt: int = 0  # of the first start; above zero the run resumes an earlier one
    generation: int = 0  # of that attempt: above it by as many as live recoveries have had
    resume_from: int | None = None  # the step to resume from, instead of the newest saved one
    until: int | None = None  # the step up to which it trains, also beyond its program's own last
    own_end: int | None = None  # the step at which its program ended by itself, once it has
    live_patience: float = LIVE_PATIENCE  # without a word of a weaver: then it is a restart
    has_plane: bool = False  # a plane is to watch it
    submitted: str = ""  # the folder that its submission to another engine made

    @property
    def is_live(self) -> bool:
        """Tell whether the run's ranks may be replaced one by one: those of one group.

        Without a policy they may if a plane is there to do it. A group that continues
        with fewer nodes does that.
        """
        if len(self.roles) != 1 or not self.roles[0].distributed:
            return False
        role = self.roles[0]
        by_itself = self.has_plane and role.total > 1 and role.min_group is None
        return self.policy.get("recovery", "live" if by_itself else "") == "live"

    def replica(self, key: "ReplicaKey") -> ReplicaRequest:
        return self.role(key.role).replicas[key.index]

    def role(self, name: str) -> RoleRequest:
        return next(role for role in self.roles if role.name == name)

    def rules(self) -> "tuple[RoleRule, ...]":
        """Return what the recovery rule needs to know of this app."""
        from dataclasses import replace

        limit = CRASH_LOOP if self.saves else 0
        roles = (role.rule() for role in self.roles)
        return tuple(replace(rule, backoff=self.backoff, crash_loop=limit) for rule in roles)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "LaunchRequest":
        """Rebuild a request that `to_dict` took apart."""
        roles = tuple(_role(role) for role in data["roles"])
        lists: dict[str, Any] = {name: tuple(data[name]) for name in ("notes", "nodes", "copied")}
        lists["files"] = tuple((path, text) for path, text in data["files"])
        return cls(**{**data, **lists, "roles": roles, "carrier": _carrier(data["carrier"])})

    def __str__(self) -> str:
        return "\n".join(_show(self))


def _role(data: Mapping[str, Any]) -> RoleRequest:
    replicas = tuple(
        ReplicaRequest(**{**replica, "argv": tuple(replica["argv"])})
        for replica in data["replicas"]
    )
    changed = {"replicas": replicas, "uneven": tuple(data["uneven"])}
    return RoleRequest(**{**data, **changed, "policy": RetryPolicy(data["policy"])})


def _carrier(data: Mapping[str, Any] | None) -> AgentCarrier | None:
    return AgentCarrier(**{**data, "flags": tuple(data["flags"])}) if data else None


def _show(request: LaunchRequest) -> list[str]:
    lines = [f"app: {request.app_id}", f"cwd: {request.cwd}", f"logs: {request.log_dir}"]
    if request.carrier:
        used = sum(len(role.replicas) for role in request.roles)
        lines.append(f"nodes: {' '.join(request.nodes[:used])} (by {request.carrier.launcher})")
        lines += [f"spares: {' '.join(request.nodes[used:])}"] if request.nodes[used:] else []
    if request.saves:
        lines.append(f"checkpoints: {request.checkpoints}")
    if request.policy:
        lines.append(f"policy: {in_words(request.policy)}")
    for role in request.roles:
        lines += _show_role(role)
    return lines + [f"note: {note}" for note in request.notes]


def _show_role(role: RoleRequest) -> list[str]:
    retries = (
        f", up to {role.max_retries} retries ({role.policy.value})" if role.max_retries else ""
    )
    each = "+".join(map(str, role.uneven)) or str(role.ranks)
    ranks = f" of {each} ranks" if role.distributed else ""
    replicas = f"{len(role.replicas)} replica{'s' if len(role.replicas) > 1 else ''}"
    lines = [f"role {role.name}: {replicas}{ranks}{retries}"]
    if role.workspace:
        lines.append(f"  runs in a copy of {', '.join(role.workspace)} at {role.cwd}")
    for index, replica in enumerate(role.replicas):
        lines.append(f"  [{index}] {shlex.join(replica.argv)}")
        lines += [
            f"      {name}={shlex.quote(value)}"
            for name, value in hide(replica.env).items()
            if name not in _OURS
        ]
        lines += [
            f"      port {name}: {port or 'any free'}" for name, port in replica.ports.items()
        ]
    return lines


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a role in one attempt: those of its members, in order."""

    role: RoleRequest
    members: Sequence[int]

    @property
    def world(self) -> int:
        return sum(self.role.ranks_of(index) for index in self.members)

    def place(self, index: int) -> int:
        """Return a replica's number among those that take part."""
        return list(self.members).index(index)

    def rank(self, index: int, local_rank: int) -> int:
        before = self.members[: self.place(index)]
        return sum(self.role.ranks_of(other) for other in before) + local_rank


def whole_group(role: RoleRequest) -> RankGroup:
    """Return the group that all replicas of a role make up."""
    return RankGroup(role, range(len(role.replicas)))
