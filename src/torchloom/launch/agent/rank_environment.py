"""The environment every rank finds: torchrun's contract, TorchX's names and our own. Pure.

The launch process knows a rank's place in its group, the agent what is true of its own host.
"""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.variables import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    CHECKPOINTS_VARIABLE,
    GENERATION_VARIABLE,
    INCARNATION_VARIABLE,
    INNER_VARIABLE,
    JOB_VARIABLE,
    NODE_VARIABLE,
    OWN_END_VARIABLE,
    PAGE_VARIABLE,
    PLACE_VARIABLES,
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

if TYPE_CHECKING:
    from torchloom.launch.protocol import ReplicaOrder
    from torchloom.launch.records.request import LaunchRequest, RankGroup
    from torchloom.specs.role import AppDef
    from torchloom.specs.states import ReplicaKey

_SITE = Path(__file__).parents[2] / "worker/threadlet/site"  # where our sitecustomize lies
_FIRST_JAX_PORT, _JAX_PORTS = 61440, 4096  # where JAX itself looks in a Slurm job
_NOT_FOR_RANKS = (
    AGENT_VARIABLE,
    TOKEN_VARIABLE,
    STORE_VARIABLE,
    PAGE_VARIABLE,
    UPLINK_VARIABLE,
    CHECKPOINTS_VARIABLE,
    RESUME_VARIABLE,
    INCARNATION_VARIABLE,
    INNER_VARIABLE,
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
        own[INCARNATION_VARIABLE] = "1"
    if request.nodes:
        own["TORCHX_RANK0_HOST"] = meeting.address
        port = _jax_port(request.app_id, group.role.name, attempt)
        own["JAX_COORDINATOR_ADDRESS"] = f"{meeting.address}:{port}"
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
    order: "ReplicaOrder",
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


def _with_site(env: dict[str, str], order: "ReplicaOrder") -> dict[str, str]:
    """Have the Python programs that another one starts look for a threadlet: a shell script's.

    A Python program does this itself, for its own children, when it imports torch.
    """
    is_wanted = env.get(UPLINK_VARIABLE) and env.get("LOOM_ATTACH") != "0"
    if not is_wanted or PythonCommand.parse(order.argv) is not None:
        return env
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    place = "/".join(env.get(name, "") for name in PLACE_VARIABLES)
    return env | {"PYTHONPATH": os.pathsep.join([str(_SITE), *rest]), INNER_VARIABLE: place}


def _defaults(order: "ReplicaOrder", variables: Mapping[str, str]) -> dict[str, str]:
    """Return what holds unless the user said otherwise."""
    defaults = dict(RANK_DEFAULTS)
    if order.grouped:
        defaults |= RESOLVER_DEFAULTS | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        if variables.get("LOCAL_WORLD_SIZE") != "1":
            defaults["OMP_NUM_THREADS"] = "1"
    return defaults


def _jax_port(*place: object) -> int:
    """Return a port on rank 0's host: not probed, but the same for all ranks of an attempt."""
    return _FIRST_JAX_PORT + zlib.crc32(repr(place).encode()) % _JAX_PORTS


def _upper(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name).upper()
