from pathlib import Path

import pytest

from torchloom.launch.agent.rank_environment import MeetingPoint, group_variables, rank_environment
from torchloom.launch.protocol import ReplicaOrder
from torchloom.launch.records.request import (
    LaunchRequest,
    RankGroup,
    ReplicaRequest,
    RoleRequest,
    whole_group,
)
from torchloom.specs.states import ReplicaKey

SHELL = {"HOME": "/root", "PATH": "/bin", "LOOM_AGENT_OF": "app-1", "LOOM_LAUNCH_TOKEN": "t"}


def role(
    replicas: int = 2, ranks: int = 4, distributed: bool = True, **more: object
) -> RoleRequest:
    command = ReplicaRequest(("python",), {})
    numbers = {"ranks": ranks, "distributed": distributed, "max_retries": 3, **more}
    return RoleRequest("trainer", (command,) * replicas, **numbers)  # type: ignore[arg-type]


def environment(
    of: RoleRequest,
    replica: int = 0,
    local_rank: int = 0,
    inherited: dict[str, str] = SHELL,
    meeting: MeetingPoint = MeetingPoint(port=29501),  # noqa: B008
    members: tuple[int, ...] | None = None,
    ports: dict[str, int] | None = None,
    own: dict[str, str] | None = None,
    store: str = "",
) -> dict[str, str]:
    """Return what a rank of this role finds, as launch process and agent put it together."""
    request = LaunchRequest("app-1", "app", "torchx", "/work", "/logs", (of,))
    group = RankGroup(of, members) if members else whole_group(of)
    key = ReplicaKey("trainer", replica)
    told = group_variables(request, group, key, local_rank, 1, meeting)
    order = ReplicaOrder(
        "trainer", replica, 1, (), "/", (), own or {}, grouped=of.distributed, generation=4
    )
    here = {"LOOM_STORE": store}
    return rank_environment(inherited, order, told, "n1", Path("/logs/t"), ports or {}, here)


def test_a_rank_of_two_times_four_finds_all_of_torchruns_variables() -> None:
    env = environment(role(), replica=1, local_rank=2)

    assert env == {
        "HOME": "/root",
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "THP_MEM_ALLOC_ENABLE": "1",
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
        "RES_OPTIONS": "timeout:1 attempts:1",
        "PET_LOG_DIR": "/logs/t/torchelastic",
        "TORCHX_RANK0_HOST": "localhost",
        "LOOM_JOB": "app-1",
        "LOOM_NODE": "n1",
        "LOOM_ATTEMPT": "1",
        "LOOM_ROLE": "trainer",
        "LOOM_GENERATION": "4",
    }


def test_every_rank_has_its_own_number() -> None:
    group = whole_group(role())

    ranks = [group.rank(replica, local) for replica in range(2) for local in range(4)]

    assert ranks == list(range(8))


def test_hosts_may_differ_in_their_number_of_ranks() -> None:
    env = environment(role(replicas=3, uneven=(1, 4, 2)), replica=2, local_rank=1)

    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("6", "7", "2")


def test_a_smaller_group_has_no_gap_in_its_numbers() -> None:
    env = environment(role(replicas=3, ranks=2), replica=2, local_rank=1, members=(0, 2))

    assert (env["RANK"], env["WORLD_SIZE"]) == ("3", "4")
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("1", "2")


def test_over_hosts_the_store_is_somebody_elses_to_serve() -> None:
    env = environment(role(), meeting=MeetingPoint("10.0.0.1", 4711, hosted=True))

    found = (env["MASTER_ADDR"], env["MASTER_PORT"], env["TORCHELASTIC_USE_AGENT_STORE"])
    assert found == ("10.0.0.1", "4711", "True")


def test_on_one_host_a_rank_is_told_of_its_attempts_file() -> None:
    stale = {**SHELL, "LOOM_STORE": "file:///dev/shm/outer"}

    assert environment(role(), inherited=stale, store="file:///x/0")["LOOM_STORE"] == "file:///x/0"
    assert "LOOM_STORE" not in environment(role(), inherited=stale)


def test_a_replica_outside_a_group_is_told_nothing_of_ranks() -> None:
    env = environment(role(ranks=1, distributed=False))

    assert env == {
        "HOME": "/root",
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "THP_MEM_ALLOC_ENABLE": "1",
        "TORCHELASTIC_ERROR_FILE": "/logs/t/error.json",
        "PET_LOG_DIR": "/logs/t/torchelastic",
        "TORCHX_RANK0_HOST": "localhost",
        "LOOM_JOB": "app-1",
        "LOOM_NODE": "n1",
        "LOOM_ATTEMPT": "1",
        "LOOM_ROLE": "trainer",
        "LOOM_GENERATION": "4",
    }


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTHONUNBUFFERED", "RES_OPTIONS"),
        "THP_MEM_ALLOC_ENABLE",
    ],
)
def test_what_the_shell_has_set_stays(name: str) -> None:
    assert environment(role(), inherited={**SHELL, name: "7"})[name] == "7"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MASTER_PORT", "RANK", "PYTHONUNBUFFERED"])
def test_the_roles_own_variables_win(name: str) -> None:
    env = environment(role(), inherited={**SHELL, name: "shell"}, own={name: "mine"})

    assert env[name] == "mine"


def test_a_rank_that_is_alone_keeps_all_its_threads() -> None:
    env = environment(role(replicas=1, ranks=1))

    assert env["WORLD_SIZE"] == "1"
    assert "OMP_NUM_THREADS" not in env


def test_a_rank_that_is_alone_on_its_host_keeps_all_its_threads() -> None:
    env = environment(role(replicas=2, ranks=1))

    assert env["WORLD_SIZE"] == "2"
    assert "OMP_NUM_THREADS" not in env


def test_stale_variables_of_an_outer_launch_do_not_reach_a_group() -> None:
    env = environment(role(), inherited={**SHELL, "RANK": "99", "LOOM_JOB": "outer"})

    assert (env["RANK"], env["LOOM_JOB"]) == ("0", "app-1")


def test_ports_are_told_by_name() -> None:
    env = environment(role(), ports={"http-api": 8080, "c10d": 29500})

    assert (env["LOOM_PORT_HTTP_API"], env["LOOM_PORT_C10D"]) == ("8080", "29500")


def test_a_rank_finds_its_page_and_uplink_and_not_those_of_the_rank_that_launched_it() -> None:
    outer = {**SHELL, "LOOM_PAGE": "/outer/page", "LOOM_AGENT": "/outer/agent.sock"}
    order = ReplicaOrder("trainer", 0, 1, (), "/", (), {}, grouped=True)
    here = {"LOOM_PAGE": "/own/page", "LOOM_AGENT": "", "LOOM_STORE": ""}

    env = rank_environment(outer, order, {}, "n1", Path("/logs"), {}, here)

    found = {name: env.get(name) for name in ("LOOM_PAGE", "LOOM_AGENT", "LOOM_STORE")}
    assert found == {"LOOM_PAGE": "/own/page", "LOOM_AGENT": None, "LOOM_STORE": None}
