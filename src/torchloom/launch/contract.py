"""The environment every rank finds: torchrun's contract, TorchX's names and our own. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchloom.launch.descendants import AGENT_VARIABLE, JOB_VARIABLE
from torchloom.launch.request import LaunchRequest, RoleRequest
from torchloom.rules.recovery import ReplicaKey
from torchloom.settings import LOCAL_HOST_NAME, LOOPBACK


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank of which replica, in which attempt, with which ports."""

    key: ReplicaKey
    local_rank: int
    attempt: int
    log_dir: Path
    master_port: int
    ports: Mapping[str, int]


def rank_of(role: RoleRequest, key: ReplicaKey, local_rank: int) -> int:
    """Return the rank's number within its role."""
    return key.index * role.ranks + local_rank


def rank_environment(
    request: LaunchRequest, seat: Seat, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return all a rank's process sees: the submitter's variables, ours, then the role's."""
    role = request.role(seat.key.role)
    replica = request.replica(seat.key)
    env = {name: value for name, value in inherited.items() if name != AGENT_VARIABLE}
    env.setdefault("PYTHONUNBUFFERED", "1")
    if role.distributed:
        env |= _torchrun(request, role, seat, env)
    env |= {
        JOB_VARIABLE: request.app_id,
        "TORCHX_RANK0_HOST": LOCAL_HOST_NAME,
        "TORCHELASTIC_ERROR_FILE": str(seat.log_dir / "error.json"),
        "PET_LOG_DIR": str(seat.log_dir / "torchelastic"),
    }
    env |= {f"LOOM_PORT_{_upper(name)}": str(port) for name, port in seat.ports.items()}
    return env | dict(replica.env)


def _torchrun(
    request: LaunchRequest, role: RoleRequest, seat: Seat, env: Mapping[str, str]
) -> dict[str, str]:
    world = role.ranks * len(role.replicas)
    rank = rank_of(role, seat.key, seat.local_rank)
    contract = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": seat.local_rank,
        "LOCAL_WORLD_SIZE": role.ranks,
        "GROUP_RANK": seat.key.index,
        "GROUP_WORLD_SIZE": len(role.replicas),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": role.name,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": seat.master_port,
        "TORCHELASTIC_RESTART_COUNT": seat.attempt,
        "TORCHELASTIC_MAX_RESTARTS": role.max_retries,
        "TORCHELASTIC_RUN_ID": request.app_id,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    unset = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if world > 1:
        unset["OMP_NUM_THREADS"] = "1"
    defaults = {name: value for name, value in unset.items() if name not in env}
    return {**{name: str(value) for name, value in contract.items()}, **defaults}


def _upper(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name).upper()
