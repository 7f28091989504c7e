"""Start the ranks of an order with their environment, and report the answers of the keeper."""

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom import settings
from torchloom.launch.agent.rank import AgentRank
from torchloom.launch.agent.ranks import AgentRanks
from torchloom.launch.agent.stores import Stores
from torchloom.launch.agent.uplink import PlaneUplink
from torchloom.launch.host import shared_memory, sockets
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.keeper.spawn import PythonCommand
from torchloom.launch.logs.files import put_aside
from torchloom.launch.logs.sinks import RankLogs
from torchloom.launch.protocol import (
    ChildFailed,
    ChildStarted,
    LaunchMessage,
    OutputRouting,
    RankNotForked,
    RankOrder,
    RanksStarted,
    ReplicaOrder,
    ReplicaStartFailed,
)
from torchloom.launch.variables import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    CHECKPOINTS_VARIABLE,
    GENERATION_VARIABLE,
    JOB_VARIABLE,
    LIFE_VARIABLE,
    NODE_VARIABLE,
    OWN_END_VARIABLE,
    PAGE_VARIABLE,
    RANK_DEFAULTS,
    RESOLVER_DEFAULTS,
    RESUME_VARIABLE,
    ROLE_VARIABLE,
    STANDIN_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
    UNTIL_VARIABLE,
    UPLINK_VARIABLE,
)
from torchloom.settings import LOCAL_HOST_NAME, LOOPBACK
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import ReplicaKey

if TYPE_CHECKING:
    from torchloom.launch.records.request import LaunchRequest, RankGroup
    from torchloom.specs.role import AppDef
    from torchloom.specs.states import ReplicaKey


_SITE = Path(__file__).parents[2] / "worker/threadlet/site"  # where our sitecustomize lies
_NOT_FOR_RANKS = (
    AGENT_VARIABLE,
    TOKEN_VARIABLE,
    STORE_VARIABLE,
    PAGE_VARIABLE,
    UPLINK_VARIABLE,
    CHECKPOINTS_VARIABLE,
    RESUME_VARIABLE,
    LIFE_VARIABLE,
    STANDIN_VARIABLE,
)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where the ranks of a group find each other; `hosted` by a store process, else by rank 0."""

    address: str = LOOPBACK
    port: int = 0
    hosted: bool = False


def group_variables(
    request: "LaunchRequest",
    group: "RankGroup",
    key: "ReplicaKey",
    local_rank: int,
    attempt: int,
    meeting: MeetingPoint,
    resume: str = "",
) -> dict[str, str]:
    """Return the variables that describe the app and the rank's place in it."""
    own = {JOB_VARIABLE: request.app_id, "TORCHX_RANK0_HOST": LOCAL_HOST_NAME}
    own[ATTEMPT_VARIABLE] = str(attempt)
    saved = {CHECKPOINTS_VARIABLE: request.checkpoints, RESUME_VARIABLE: resume}
    own |= {name: value for name, value in saved.items() if value}
    if request.until is not None:
        own[UNTIL_VARIABLE] = str(request.until)
        own |= {} if request.own_end is None else {OWN_END_VARIABLE: str(request.own_end)}
    if not group.role.distributed:
        return own
    rank = group.rank(key.index, local_rank)
    contract = {
        "RANK": rank,
        "WORLD_SIZE": group.world,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": group.role.ranks_of(key.index),
        "GROUP_RANK": group.place(key.index),
        "GROUP_WORLD_SIZE": len(group.members),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": group.world,
        "ROLE_NAME": group.role.name,
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": meeting.port,
        "TORCHELASTIC_RESTART_COUNT": attempt,
        "TORCHELASTIC_MAX_RESTARTS": request.attempt + group.role.max_retries,
        "TORCHELASTIC_RUN_ID": request.run_id or request.app_id,
        "TORCHELASTIC_USE_AGENT_STORE": meeting.hosted,
    }
    if request.is_live:
        own[LIFE_VARIABLE] = "1"
    if request.nodes:
        own["TORCHX_RANK0_HOST"] = meeting.address
    return {name: str(value) for name, value in contract.items()} | own


def check_variables(app: "AppDef") -> None:
    """Refuse what says a rank's place in its group; a role without ranks of ours may set it."""
    from torchloom.launch.grammar.command import LaunchCommand  # a job agent needs neither
    from torchloom.specs.validate import SET_FOR_PEERS, check_not_set

    for index, role in enumerate(app.roles):
        if LaunchCommand.of_role([role.entrypoint, *role.args]) is not None:
            check_not_set(role.env, f"roles[{index}].env", SET_FOR_PEERS)


def rank_environment(
    inherited: Mapping[str, str],
    order: ReplicaOrder,
    variables: Mapping[str, str],
    node: str,
    log_dir: Path,
    ports: Mapping[str, int],
    here: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return all a rank's process sees: the submitter's variables, ours, then the role's.

    `here` are those that only its host knows: its store, page and uplink, where there is one.
    """
    env = {name: value for name, value in inherited.items() if name not in _NOT_FOR_RANKS}
    env = _defaults(order, variables) | env | dict(variables)
    env |= {
        NODE_VARIABLE: node,
        ROLE_VARIABLE: order.role,
        GENERATION_VARIABLE: str(order.generation),
        "TORCHELASTIC_ERROR_FILE": str(log_dir / "error.json"),
        "PET_LOG_DIR": str(log_dir / "torchelastic"),
    }
    env |= {name: value for name, value in (here or {}).items() if value}
    env |= {f"LOOM_PORT_{_upper(name)}": str(port) for name, port in ports.items()}
    return _with_site(env | dict(order.env), order)


def _with_site(env: dict[str, str], order: ReplicaOrder) -> dict[str, str]:
    """Have the Python programs that another one starts look for a threadlet: a shell script's."""
    is_wanted = env.get(UPLINK_VARIABLE) and env.get("LOOM_ATTACH") != "0"
    if not is_wanted or PythonCommand.parse(order.argv) is not None:
        return env
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    return env | {"PYTHONPATH": os.pathsep.join([str(_SITE), *rest])}


def _defaults(order: ReplicaOrder, variables: Mapping[str, str]) -> dict[str, str]:
    """Return what holds unless the user said otherwise."""
    defaults = dict(RANK_DEFAULTS)
    if order.grouped:
        defaults |= RESOLVER_DEFAULTS | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        if variables.get("LOCAL_WORLD_SIZE") != "1":
            defaults["OMP_NUM_THREADS"] = "1"
    return defaults


def _upper(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name).upper()


_BAD_NODE = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)


class RankStarter:
    """Ranks that are being started. `stdin` is what an only one may read."""

    def __init__(
        self,
        share: JobShare,
        stdin: int | None,
        ranks: AgentRanks,
        logs: RankLogs,
        stores: Stores,
        uplink: PlaneUplink,
        send: Callable[[LaunchMessage], None],
    ) -> None:
        self._share = share
        self._stdin = stdin
        self._inherited = settings.environment()
        self._ranks = ranks
        self._logs = logs
        self._stores = stores
        self._uplink = uplink
        self._send = send
        self._starting: dict[ReplicaKey, list[AgentRank]] = {}
        self._failed: dict[ReplicaKey, OSError] = {}
        self._newcomers: set[int] = set()  # that the keeper has not answered for

    def start(self, order: ReplicaOrder) -> None:
        """Start all ranks of a replica; what is left of the attempt before goes first."""
        key = order.key
        self._ranks.clear(key)
        self._starting[key] = []
        self._failed.pop(key, None)
        settled = sockets.settle(order.ports)
        for mine in order.ranks:
            self._starting[key].append(self._begin(order, mine, settled))

    def fork(self, order: ReplicaOrder) -> bool:
        """Start one rank while the others of its replica live; false when that has been done."""
        mine = order.ranks[0]
        before = [rank for rank in self._ranks.of(order.key) if rank.is_place_of(order, mine)]
        if any(
            rank.attempt == order.attempt and rank.incarnation >= order.incarnation
            for rank in before
        ):
            return False
        owner = f"{order.role}-a{order.attempt}-r{mine.variables.get('RANK', '')}"
        shared_memory.hand_on(self._share.app_id, owner, order.incarnation)
        self._newcomers.add(self._begin(order, mine, sockets.settle(order.ports)).number)
        for rank in before:
            self._ranks.bury(rank)  # after the start: to find what it left running takes a while
        return True

    def _begin(self, order: ReplicaOrder, mine: RankOrder, settled: Mapping[str, int]) -> AgentRank:
        rank = self._rank(order, mine)
        with contextlib.suppress(OSError):  # without it the rank has no logs, and no error file
            rank.log.directory.mkdir(parents=True, exist_ok=True)
        put_aside(rank.error_file, _before(order))
        variables = dict(mine.variables)
        here = {
            STORE_VARIABLE: self._stores.settle(order, variables),
            PAGE_VARIABLE: shared_memory.make_page(self._share.app_id, rank.page),
            UPLINK_VARIABLE: self._uplink.address,
        }
        logs = rank.log.directory
        env = rank_environment(
            self._inherited, order, variables, self._share.node, logs, settled, here
        )
        self._ranks.begin(rank, order, env, self._stdin)
        return rank

    def _rank(self, order: ReplicaOrder, mine: RankOrder) -> AgentRank:
        log, forwarded = self._logs.of(mine.logs), self._logs.forwarded(mine.logs)
        lived = (order.incarnation, order.generation)
        rank = AgentRank(order.key, mine.local_rank, order.attempt, forwarded, log, *lived)
        copies = order.copies and f"{order.copies}/{mine.local_rank}"
        rank.output = OutputRouting(mine.variables.get("RANK", ""), copies, mine.copied)
        rank.log = self._logs.dressed(rank)
        return rank

    # Answers of the keeper.

    def started(self, shown: ChildStarted) -> None:
        """A process is there."""
        rank = self._ranks.get(shown.number)
        if rank is None:
            return
        self._ranks.started(rank, shown)
        if rank.number in self._newcomers:
            self._newcomers.discard(rank.number)
            self._send(RanksStarted((self._ranks.shown(rank),)))
        else:
            self._answered(rank.key)
        _learn_to_read_pages()
        self._uplink.start()  # after the ranks, which need not wait for it

    def failed(self, message: ChildFailed) -> None:
        """A process could not be started."""
        rank = self._ranks.get(message.number)
        if rank is None:
            return
        self._ranks.drop(rank)
        error = OSError(message.errno, message.what or "")
        if rank.number in self._newcomers:
            self._newcomers.discard(rank.number)
            self._send(RankNotForked(**rank.facts(), cause=_why(error)))
            return
        self._starting[rank.key].remove(rank)
        self._failed.setdefault(rank.key, error)
        self._answered(rank.key)

    def _answered(self, key: ReplicaKey) -> None:
        """Report a replica once the keeper has answered for all of its ranks."""
        ranks = self._starting.get(key, [])
        if any(rank.process is None for rank in ranks):
            return
        self._starting.pop(key, None)
        if key in self._failed:
            self._ranks.signal(key, signal.SIGKILL)
            error = self._failed.pop(key)
            bad = error.errno in _BAD_NODE
            self._send(ReplicaStartFailed(key.role, key.index, _why(error), bad))
        self._send(RanksStarted(tuple(map(self._ranks.shown, ranks)), key.role, key.index))


def _learn_to_read_pages() -> None:
    """Import now what an exit needs: it is reported at once; and what a next keeper needs."""
    import torchloom.bus.progress_page
    import torchloom.launch.keeper.service  # noqa: F401


def _before(order: ReplicaOrder) -> int | str:
    """Return under which name the error of the incarnation before is kept."""
    return (
        order.attempt - 1 if order.incarnation == 1 else f"{order.attempt}-{order.incarnation - 1}"
    )


def _why(error: OSError) -> str:
    return f"{error.strerror}: {os.strerror(error.errno or 0)}"
