"""Real environments, recorded by `recordings/record.py`, and those that manuals describe."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.environments import World, find_world

FOLDER = Path(__file__).parent / "recordings"
TWO = ("node01", "node02")
THREE = ("big1", "node01", "node02")
# Read off the commands and what the tasks printed: flavour, hosts, ranks a host, job.
RANKS = {
    "srun_block": ("slurm", TWO, (2, 1), "1"),
    "srun_cyclic": ("slurm", TWO, (2, 1), "2"),
    "srun_two_a_node": ("slurm", TWO, (2, 2), "3"),
    "srun_plane": ("slurm", TWO, (4, 3), "4"),
    "srun_uneven_nodes": ("slurm", THREE, (6, 4, 4), "5"),
    "srun_pmi2": ("slurm", TWO, (3, 1), "6"),
    "srun_heterogeneous": ("slurm", TWO, (1, 2), "7"),
    "salloc_then_srun_on_one_node": ("slurm", ("node02",), (1,), "15"),
    "sbatch_named_bash_then_srun": ("slurm", ("big1", "node01"), (2, 1), "19"),
}
MPI_RANKS = {
    "salloc_then_mpirun": ("openmpi", TWO, "16"),
    "salloc_then_hydra": ("mpich", TWO, "17"),
    "mpirun_by_slot": ("openmpi", (), None),
    "mpirun_by_node": ("openmpi", (), None),
    "hydra_two_a_node": ("mpich", (), None),
    "hydra_round_robin": ("mpich", (), None),
}
ALLOCATIONS = {
    "salloc": World("slurm", TWO, (2, 1), "10"),
    "salloc_nodes_alone": World("slurm", TWO, (1, 1), "11"),
    "salloc_heterogeneous": World("slurm", TWO, (1, 2), "12", groups=2),
    "salloc_tasks_per_node": World("slurm", THREE, (2, 2, 2), "14"),
    "sbatch": World("slurm", ("big1", "node01"), (2, 2), "18"),
    "srun_pty": World("slurm", ("big1", "node01"), (2, 1), "9", inside_step=True),
}
DOCUMENTED = json.loads((FOLDER / "documented.json").read_text())


def tasks(name: str) -> list[Any]:
    found: list[Any] = json.loads((FOLDER / f"{name}.json").read_text())["tasks"]
    return found


def neighbours(name: str, host: str) -> list[int]:
    return [task["rank"] for task in tasks(name) if task["host"] == host]


def test_every_recording_is_looked_at() -> None:
    names = {path.stem for path in FOLDER.glob("*.json")} - {"documented"}

    assert names == RANKS.keys() | MPI_RANKS.keys() | ALLOCATIONS.keys()


@pytest.mark.parametrize("name", RANKS)
def test_a_task_of_srun_knows_its_place(name: str) -> None:
    flavour, hosts, slots, job = RANKS[name]
    for task in tasks(name):
        here = neighbours(name, task["host"])
        expected = World(
            flavour,
            hosts,
            slots,
            job,
            rank=task["rank"],
            local_rank=here.index(task["rank"]),
            node_rank=hosts.index(task["host"]),
            world_size=len(tasks(name)),
            local_size=len(here),
        )

        assert find_world(task["env"], task["host"]) == expected


@pytest.mark.parametrize("name", MPI_RANKS)
def test_a_rank_of_mpi_knows_its_place_whatever_started_its_helpers(name: str) -> None:
    flavour, hosts, job = MPI_RANKS[name]
    for task in tasks(name):
        here = neighbours(name, task["host"])
        expected = World(
            flavour,
            hosts,
            job_id=job,
            rank=task["rank"],
            local_rank=here.index(task["rank"]),
            node_rank=hosts.index(task["host"]) if hosts else None,
            world_size=len(tasks(name)),
            local_size=len(here),
        )

        assert find_world(task["env"], task["host"]) == expected


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_a_shell_or_batch_script_has_an_allocation_and_no_rank(name: str) -> None:
    (task,) = tasks(name)

    assert find_world(task["env"], task["host"]) == ALLOCATIONS[name]


@pytest.mark.parametrize("case", DOCUMENTED, ids=[case["name"] for case in DOCUMENTED])
def test_what_the_manuals_describe_is_understood(case: Mapping[str, Any]) -> None:
    def read(path: Path) -> str:
        if str(path) not in case["files"]:
            raise FileNotFoundError(str(path))
        text: str = case["files"][str(path)]
        return text

    lists = {key: tuple(value) for key, value in case["expect"].items() if isinstance(value, list)}

    assert find_world(case["env"], case["own_host"], read) == World(**{**case["expect"], **lists})
