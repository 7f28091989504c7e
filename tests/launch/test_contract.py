from pathlib import Path

import pytest

from torchloom.launch.contract import Seat, rank_environment, rank_of
from torchloom.launch.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.rules.recovery import ReplicaKey

SHELL = {"HOME": "/root", "PATH": "/bin", "LOOM_AGENT_OF": "app-1"}


def request(
    replicas: int = 2, ranks: int = 4, distributed: bool = True, **env: str
) -> LaunchRequest:
    replica = ReplicaRequest(("python",), env)
    role = RoleRequest(
        "trainer", (replica,) * replicas, ranks=ranks, distributed=distributed, max_retries=3
    )
    return LaunchRequest("app-1", "app", "torchx", "/work", "/logs", (role,))


def seat(replica: int = 0, local_rank: int = 0, **ports: int) -> Seat:
    key = ReplicaKey("trainer", replica)
    return Seat(key, local_rank, 1, Path("/logs/t"), master_port=29501, ports=ports)


def test_a_rank_of_two_times_four_finds_all_of_torchruns_variables() -> None:
    env = rank_environment(request(), seat(replica=1, local_rank=2), SHELL)

    assert env == {
        "HOME": "/root",
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "6",
        "ROLE_WORLD_SIZE": "8",
        "ROLE_NAME": "trainer",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29501",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "app-1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/t/error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "PET_LOG_DIR": "/logs/t/torchelastic",
        "TORCHX_RANK0_HOST": "localhost",
        "LOOM_JOB": "app-1",
    }


def test_every_rank_has_its_own_number() -> None:
    role = request().roles[0]
    places = [(replica, local) for replica in range(2) for local in range(4)]

    ranks = [rank_of(role, ReplicaKey("trainer", replica), local) for replica, local in places]

    assert ranks == list(range(8))


def test_a_replica_outside_a_group_is_told_nothing_of_ranks() -> None:
    env = rank_environment(request(ranks=1, distributed=False), seat(), SHELL)

    assert env == {
        "HOME": "/root",
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_ERROR_FILE": "/logs/t/error.json",
        "PET_LOG_DIR": "/logs/t/torchelastic",
        "TORCHX_RANK0_HOST": "localhost",
        "LOOM_JOB": "app-1",
    }


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTHONUNBUFFERED"]
)
def test_what_the_shell_has_set_stays(name: str) -> None:
    env = rank_environment(request(), seat(), {**SHELL, name: "7"})

    assert env[name] == "7"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MASTER_PORT", "RANK", "PYTHONUNBUFFERED"])
def test_the_roles_own_variables_win(name: str) -> None:
    asked = request(**{name: "mine"})

    assert rank_environment(asked, seat(), {**SHELL, name: "shell"})[name] == "mine"


def test_a_rank_that_is_alone_keeps_all_its_threads() -> None:
    env = rank_environment(request(replicas=1, ranks=1), seat(), SHELL)

    assert env["WORLD_SIZE"] == "1"
    assert "OMP_NUM_THREADS" not in env


def test_stale_variables_of_an_outer_launch_do_not_reach_a_group() -> None:
    env = rank_environment(request(), seat(), {**SHELL, "RANK": "99", "LOOM_JOB": "outer"})

    assert (env["RANK"], env["LOOM_JOB"]) == ("0", "app-1")


def test_ports_are_told_by_name() -> None:
    env = rank_environment(request(), seat(**{"http-api": 8080, "c10d": 29500}), SHELL)

    assert (env["LOOM_PORT_HTTP_API"], env["LOOM_PORT_C10D"]) == ("8080", "29500")
