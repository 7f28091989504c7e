from pathlib import Path

import pytest

from torchloom.launch.environments import World, find_world, flavours
from torchloom.launch.environments.launchers import NOTE
from torchloom.launch.hosts.host_lists import HostSlots


def no_files(path: Path) -> str:
    raise FileNotFoundError(str(path))


def test_a_laptop_is_one_host_with_the_flags_to_change_it() -> None:
    world = find_world({"HOME": "/home/ada"}, "laptop", no_files)

    assert world == World("plain", ("laptop",), notes=(NOTE,))
    assert [flag for flag in ("-n", "--ppn", "--hostfile") if flag not in NOTE] == []
    assert world.variables == {"NHOSTS": "1", "NGPU_PER_HOST": "1", "WORLD_SIZE": "1"}


def test_a_pbs_job_id_of_another_host_is_stale() -> None:
    env = {"PBS_JOBID": "12.server", "PBS_NODEFILE": "/aux/12"}

    world = find_world(env, "login1", lambda _: "n1\nn2\n")

    doubt = "PBS_JOBID=12.server is stale: login1 is not in its nodefile"
    assert world == World("plain", ("login1",), notes=(NOTE, doubt))


def test_pbs_names_a_host_once_and_says_its_cores_beside() -> None:
    env = {"PBS_JOBID": "12.server", "PBS_NODEFILE": "/aux/12", "NCPUS": "2"}

    world = find_world(env, "n1", lambda _: "n1\nn2\n")

    assert (world.hosts, world.slots, world.cores) == (("n1", "n2"), (1, 1), 2)


def test_a_pbs_job_id_without_its_nodefile_is_stale() -> None:
    env = {"PBS_JOBID": "12.server", "PBS_NODEFILE": "/aux/12"}

    world = find_world(env, "n1", no_files)

    doubt = "PBS_JOBID=12.server is stale: its nodefile /aux/12 does not exist"
    assert world == World("plain", ("n1",), notes=(NOTE, doubt))


@pytest.mark.parametrize(
    ("env", "doubt"),
    [
        (
            {"SLURM_JOB_ID": "5"},
            "SLURM_JOB_ID=5 is set without SLURM_JOB_NODELIST: not treated as a job",
        ),
        ({"LSB_JOBID": "5"}, "LSB_JOBID=5 is set without hosts: not treated as a job"),
        (
            {"SM_HOSTS": "[", "SM_CURRENT_HOST": "algo-1"},
            "SM_HOSTS does not list SM_CURRENT_HOST: not treated as a SageMaker job",
        ),
    ],
)
def test_half_a_job_is_none_and_that_is_said(env: dict[str, str], doubt: str) -> None:
    assert find_world(env, "a", no_files) == World("plain", ("a",), notes=(NOTE, doubt))


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"PMI_RANK": "1"},
        {"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": "2"},
        {"SLURM_NTASKS": "4", "SLURM_CONF": "/etc/slurm.conf"},
    ],
)
def test_variables_that_say_too_little_make_no_rank(env: dict[str, str]) -> None:
    assert find_world(env, "a", no_files).flavour == "plain"


def test_a_rank_on_some_hosts_of_a_larger_job_is_not_given_all_of_them() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    slurm = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}

    world = find_world(mpi | slurm, "n1", no_files)

    assert world == World("openmpi", job_id="5", rank=0, world_size=1)


def test_the_numbers_by_their_usual_names() -> None:
    world = World("slurm", ("a", "b"), (3, 2))

    assert world.variables == {"NHOSTS": "2", "NGPU_PER_HOST": "3", "WORLD_SIZE": "5"}


def test_devices_count_before_slots() -> None:
    world = World("pbs", ("a", "b"), (64, 64), gpus_per_host=4)

    assert world.variables == {"NHOSTS": "2", "NGPU_PER_HOST": "4", "WORLD_SIZE": "8"}


def test_the_users_own_number_of_devices_counts_before_the_schedulers() -> None:
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "8"}

    world = find_world(env | {"NGPU_PER_HOST": "2"}, "n1", no_files)

    assert world.variables == {"NHOSTS": "2", "NGPU_PER_HOST": "2", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(("index", "rank"), [(0, 1), (1, 2), (2, 0), (3, 3)])
def test_the_main_node_of_aws_batch_counts_first(index: int, rank: int) -> None:
    env = {
        "AWS_BATCH_JOB_ID": "a",
        "AWS_BATCH_JOB_NUM_NODES": "4",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": "2",
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
    }

    assert find_world(env, "x", no_files).node_rank == rank


def test_a_number_of_hosts_that_nobody_told_is_left_out() -> None:
    world = World("mpich", rank=0, world_size=3, local_size=2)

    assert world.variables == {"NGPU_PER_HOST": "2", "WORLD_SIZE": "3"}


def test_a_host_file_replaces_what_was_found() -> None:
    world = World("slurm", ("a", "b"), (4, 4), address="10.0.0.1")

    changed = world.with_hosts((HostSlots("b"), HostSlots("c", 2)))

    assert changed == World("slurm", ("b", "c"), (4, 2))


def test_flavours_are_asked_from_the_innermost_out() -> None:
    names = [flavour.name for flavour in flavours("a", no_files)]

    assert names == [
        *("torchrun", "jsrun", "openmpi", "mvapich", "pals", "mpich"),
        *("slurm", "pbs", "lsf", "kubernetes", "aws_batch", "sagemaker", "plain"),
    ]
