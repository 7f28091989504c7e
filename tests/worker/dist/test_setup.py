"""`setup_torch` joins the ranks that any launcher started, with nothing changed for it."""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
import torch

from torchloom.launch.host.sockets import free_port
from torchloom.worker import dist
from torchloom.worker.dist.setup import BadTimeout, wait_of

Recorded = Callable[[str], list[dict[str, str]]]
JOIN = """
returned = dist.setup_torch(timeout=60)
total = torch.ones(1)
torch.distributed.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
tell({
    "returned": returned,
    "place": place(),
    "total": total.item(),
    "torch": [torch.distributed.get_rank(), torch.distributed.get_world_size()],
    "backend": torch.distributed.get_backend(),
    "env": [int(os.environ[name]) for name in names],
    "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
})
dist.cleanup()
"""


def joined(told: list[Any], locals_: list[int], here: list[int], nodes: list[int]) -> list[Any]:
    """Return what ranks must have told; where they met, all must have told alike."""
    size, masters = len(told), {each["master"] for each in told}
    assert len(masters) == 1
    return [
        {
            "returned": rank,
            "place": [rank, size, locals_[rank], here[rank], nodes[rank], max(nodes) + 1],
            "total": float(size),
            "torch": [rank, size],
            "backend": "gloo",
            "env": [rank, size, locals_[rank]],
            "master": masters.copy().pop(),
        }
        for rank in range(size)
    ]


@pytest.mark.process
def test_under_torchrun(ranks: Any, torchrun: Any) -> None:
    told = ranks.by(torchrun(2), JOIN, 2)

    assert told == joined(told, [0, 1], [2, 2], [0, 0])


@pytest.mark.process
@pytest.mark.needs("mpi")
def test_under_mpirun(ranks: Any) -> None:
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2"]

    told = ranks.by([*mpirun, sys.executable], JOIN, 2)

    assert told == joined(told, [0, 1], [2, 2], [0, 0])
    assert told[0]["master"].startswith("127.0.0.1:")


@pytest.mark.process
@pytest.mark.needs("mpich")
def test_under_mpichs_mpiexec_behind_a_shell(ranks: Any) -> None:
    shell = ["sh", "-c", f'{sys.executable} "$0"; exit $?']

    told = ranks.by(["mpiexec.hydra", "-n", "2", *shell], JOIN, 2)

    assert told == joined(told, [0, 1], [2, 2], [0, 0])


@pytest.mark.process
def test_as_tasks_of_srun_on_two_nodes(ranks: Any, recorded: Recorded) -> None:
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    envs = [{**env, **meet} for env in recorded("srun_two_a_node")]

    told = ranks.by_hand(JOIN, envs)

    assert told == joined(told, [0, 1, 0, 1], [2, 2, 2, 2], [0, 0, 1, 1])


def on_one_host(envs: list[dict[str, str]], names: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the first host's ranks of a recording, as if there had been no other host."""
    return [{**env, **names} for env in envs[:2]]


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("mpirun_by_slot", {"OMPI_COMM_WORLD_SIZE": "2"}),
        ("hydra_two_a_node", {"PMI_SIZE": "2"}),
        (
            "srun_two_a_node",
            {"SLURM_STEP_NODELIST": "node01", "SLURM_STEP_NUM_TASKS": "2"}
            | {"SLURM_STEP_TASKS_PER_NODE": "2"},
        ),
    ],
)
def test_ranks_of_one_host_meet_at_a_port_that_nobody_told_them(
    name: str, changed: dict[str, str], ranks: Any, recorded: Recorded
) -> None:
    told = ranks.by_hand(JOIN, on_one_host(recorded(name), changed))

    assert told == joined(told, [0, 1], [2, 2], [0, 0])


@pytest.mark.process
def test_ranks_whose_launcher_says_little_learn_the_rest_from_each_other(ranks: Any) -> None:
    meet = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}

    told = ranks.by_hand(JOIN, [{**meet, "RANK": str(rank)} for rank in range(2)])

    assert told == joined(told, [0, 1], [2, 2], [0, 0])


@pytest.mark.process
def test_a_backend_that_does_not_start_is_replaced_on_all_ranks_with_advice(ranks: Any) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    script = """
import logging
said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("torchloom").addHandler(Keep(logging.WARNING))
dist.setup_torch(timeout=60)
tell([torch.distributed.get_backend(), dist.all_reduce(1), said])
dist.cleanup()
"""
    envs = [{**env, "RANK": str(rank), "TORCH_BACKEND": "mpi"} for rank in range(2)]

    told = ranks.by_hand(script, envs)

    assert [each[:2] for each in told] == [["gloo", 2], ["gloo", 2]]
    assert told[1][2] == []
    (advice,) = told[0][2]
    assert "backend mpi did not start (rank 0: this torch has no mpi): using gloo instead" in advice
    assert "must be built with MPI" in advice


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "extra"),
    [("fallback=False", {}), ("", {"LOOM_NO_FALLBACK": "1"})],
    ids=["argument", "variable"],
)
def test_a_backend_that_does_not_start_is_refused_where_gloo_is_not_wanted(
    call: str, extra: dict[str, str], ranks: Any
) -> None:
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    env = {**meet, **extra, "TORCH_BACKEND": "mpi"}

    ended = ranks.ending(f"dist.setup_torch({call})", [{**env, "RANK": str(r)} for r in (0, 1)])

    assert [code for code, _ in ended] == [1, 1]
    assert all("BackendFailed: backend mpi did not start: rank 0: " in error for _, error in ended)


@pytest.mark.process
@pytest.mark.parametrize("port", ["", "taken by nobody"], ids=["by a note", "at a port"])
def test_a_rank_whose_peers_never_come_says_where_it_waited(port: str, ranks: Any) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if port else {}

    ((code, words),) = ranks.ending("dist.setup_torch(timeout=1)", [{**env, **meet}])

    assert code == 1
    assert "RanksMissing: rank 0 of 2 did not meet all others at 127.0.0.1:" in words


@pytest.mark.process
def test_a_group_that_the_script_started_itself_is_taken_as_it_is(ranks: Any) -> None:
    script = """
torch.distributed.init_process_group("gloo")
tell([dist.setup_torch(backend="nccl"), *place(), torch.distributed.get_backend()])
dist.cleanup()
"""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    told = ranks.group(script, 2, **meet)

    assert told == [[0, 0, 2, 0, 2, 0, 1, "gloo"], [1, 1, 2, 1, 2, 0, 1, "gloo"]]


@pytest.mark.process
def test_seeds_differ_between_ranks_and_not_between_runs(ranks: Any) -> None:
    script = """
import random
dist.setup_torch(seed=7)
tell([torch.rand(1).item(), random.random()])
dist.cleanup()
"""

    first, second = (ranks.group(script, 2) for _ in range(2))

    assert first == second
    assert first[0] != first[1]


def test_a_process_that_nobody_launched_is_rank_0_of_one() -> None:
    assert dist.setup_torch(seed=3) == 0
    assert not torch.distributed.is_initialized()
    dist.cleanup()


@pytest.mark.parametrize(
    ("env", "argument", "seconds"),
    [
        ({}, None, 3600),
        ({"TORCH_DDP_TIMEOUT": "90"}, None, 90),
        ({"TORCH_DDP_TIMEOUT": "90"}, 5, 5),
        ({}, timedelta(minutes=1), 60),
    ],
)
def test_how_long_to_wait(env: dict[str, str], argument: Any, seconds: float) -> None:
    assert wait_of(env, argument) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("env", "argument"), [({"TORCH_DDP_TIMEOUT": "soon"}, None), ({}, -1)])
def test_a_time_that_is_none_is_refused(env: dict[str, str], argument: Any) -> None:
    with pytest.raises(BadTimeout, match="give seconds, in TORCH_DDP_TIMEOUT too"):
        wait_of(env, argument)
