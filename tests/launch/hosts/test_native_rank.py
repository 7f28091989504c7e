"""Ranks of native launchers get torchrun's variables, from what real launchers told them."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.launch.environments import World, find_world
from torchloom.launch.hosts.native_rank import placed, variables

FOLDER = Path(__file__).parents[1] / "environments/recordings"
RANKED = (
    *("srun_block", "srun_cyclic", "srun_two_a_node", "srun_plane", "srun_uneven_nodes"),
    *("srun_pmi2", "srun_heterogeneous", "salloc_then_mpirun", "salloc_then_hydra"),
    *("mpirun_by_slot", "mpirun_by_node", "hydra_two_a_node", "hydra_round_robin"),
)
MEETING = {"LOOM_MEETING": "10.0.0.1:29600"}


def tasks(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["tasks"]
    return found


def told(task: dict[str, Any], **more: str) -> dict[str, str]:
    env = {**task["env"], **MEETING, **more}
    return variables(placed(find_world(env, task["host"]), env, task["host"]), env)


@pytest.mark.parametrize("name", RANKED)
def test_every_rank_of_a_recorded_launch_finds_its_place(name: str) -> None:
    found = tasks(name)

    for task in found:
        env = told(task)
        neighbours = sorted(each["rank"] for each in found if each["host"] == task["host"])
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(task["rank"]), str(len(found)))
        assert env["LOCAL_RANK"] == str(neighbours.index(task["rank"]))
        assert env["LOCAL_WORLD_SIZE"] == str(len(neighbours))
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "29600")


@pytest.mark.parametrize("name", [name for name in RANKED if name.startswith("srun")])
def test_a_host_is_a_group_where_the_launcher_names_hosts(name: str) -> None:
    found = tasks(name)
    hosts = sorted({task["host"] for task in found})

    groups = {(task["host"], told(task)["GROUP_RANK"]) for task in found}

    assert groups == {(host, str(index)) for index, host in enumerate(hosts)}
    assert {told(task)["GROUP_WORLD_SIZE"] for task in found} == {str(len(hosts))}


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("domain", ["", ".cluster.example"])
def test_a_host_is_a_group_in_the_launchs_order_whoever_started_the_rank(
    name: str, domain: str
) -> None:
    found = tasks(name)
    order = sorted({task["host"] for task in found}, reverse=True)
    hosts = ",".join(f"{host}{domain}" for host in order)

    groups = {(task["host"], told(task, LOOM_HOSTS=hosts)["GROUP_RANK"]) for task in found}

    assert groups == {(host, str(index)) for index, host in enumerate(order)}
    counts = {told(task, LOOM_HOSTS=hosts)["GROUP_WORLD_SIZE"] for task in found}
    assert counts == {str(len(order))}


def test_hosts_without_the_ranks_own_change_nothing() -> None:
    task = tasks("srun_block")[-1]

    assert told(task, LOOM_HOSTS="10.0.0.1,10.0.0.2") == told(task)


def test_every_attempt_meets_at_a_port_of_its_own() -> None:
    task = tasks("srun_block")[0]

    env = told(task, LOOM_ATTEMPT="3")

    assert (env["MASTER_PORT"], env["TORCHELASTIC_RESTART_COUNT"]) == ("29603", "3")


def test_what_the_user_chose_stays() -> None:
    chosen = {"OMP_NUM_THREADS": "8", "PYTHONUNBUFFERED": "", "THP_MEM_ALLOC_ENABLE": "0"}

    assert not chosen.keys() & told(tasks("srun_block")[0], **chosen).keys()
    assert dict.fromkeys(chosen, "1").items() <= told(tasks("srun_block")[0]).items()


def test_a_process_without_a_rank_is_told_what_to_do() -> None:
    with pytest.raises(UserError, match="srun or mpirun"):
        variables(World("plain", ("n1",)), {})
