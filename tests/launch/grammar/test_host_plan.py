"""Which hosts get how many ranks, by what launcher, and which stand by."""

from collections.abc import Sequence

import pytest

from torchloom.errors import UserError
from torchloom.launch.assembly.topology import BadTopology
from torchloom.launch.environments.world import World
from torchloom.launch.grammar.command import LaunchCommand
from torchloom.launch.grammar.host_plan import HostPlan, over_hosts, plan_hosts
from torchloom.launch.grammar.values import NodeCount
from torchloom.launch.hosts.sites import NOWHERE
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest

HERE = World("plain", ("n1",), (1,))
FILE = World("plain", ("n1", "n2", "n3"), (2, 2, 2))
UNEVEN = World("plain", ("n1", "n2"), (3, 1))
SLURM = World("slurm", ("n1", "n2", "n3"), (2, 2, 2), job_id="7")
PBS = World("pbs", ("n1", "n2", "n3"), (2, 2, 2), job_id="7")
OPEN_MPI = "mpirun (Open MPI) 4.1.4"


def plan(
    world: World,
    *,
    programs: Sequence[str] = ("srun", "mpiexec", "ssh"),
    version: str = OPEN_MPI,
    **asked: object,
) -> HostPlan:
    command = LaunchCommand(("train.py",), **asked)  # type: ignore[arg-type]
    ranks = {None: 1, "auto": 4, "gpu": 4}
    return plan_hosts(
        command,
        world,
        "n1",
        lambda wanted: wanted if isinstance(wanted, int) else ranks[wanted],  # type: ignore[index]
        lambda program: program in programs,
        lambda: version,
    )


@pytest.mark.parametrize(
    ("world", "asked", "launcher", "hosts", "counts", "spares"),
    [
        (HERE, {}, "agent", ("n1",), (1,), ()),
        (HERE, {"total": 4}, "agent", ("n1",), (4,), ()),
        (HERE, {"per_node": "auto"}, "agent", ("n1",), (4,), ()),
        (FILE, {}, "ssh", ("n1", "n2", "n3"), (2, 2, 2), ()),
        (FILE, {"per_node": 1}, "ssh", ("n1", "n2", "n3"), (1, 1, 1), ()),
        (FILE, {"total": 4}, "ssh", ("n1", "n2"), (2, 2), ("n3",)),
        (FILE, {"nodes": NodeCount(2, 2)}, "ssh", ("n1", "n2"), (2, 2), ("n3",)),
        (FILE, {"spares": 1}, "ssh", ("n1", "n2"), (2, 2), ("n3",)),
        (FILE, {"nodes": NodeCount(2, 2), "spares": 0}, "ssh", ("n1", "n2"), (2, 2), ()),
        (FILE, {"nodes": NodeCount(1, 1), "spares": 1}, "agent", ("n1",), (2,), ()),
        (UNEVEN, {}, "ssh", ("n1", "n2"), (3, 1), ()),
        (UNEVEN, {"launcher": "mpirun"}, "mpirun", ("n1", "n2"), (3, 1), ()),
        (SLURM, {}, "srun", ("n1", "n2", "n3"), (2, 2, 2), ()),
        (SLURM, {"launcher": "ssh"}, "ssh", ("n1", "n2", "n3"), (2, 2, 2), ()),
        (SLURM, {"launcher": "mpiexec"}, "mpirun", ("n1", "n2", "n3"), (2, 2, 2), ()),
        (PBS, {}, "mpirun", ("n1", "n2", "n3"), (2, 2, 2), ()),
    ],
)
def test_a_plan(
    world: World,
    asked: dict[str, object],
    launcher: str,
    hosts: tuple[str, ...],
    counts: tuple[int, ...],
    spares: tuple[str, ...],
) -> None:
    made = plan(world, **asked)

    assert (made.launcher, made.topology.hosts, made.topology.per_host, made.spares) == (
        launcher,
        hosts,
        counts,
        spares,
    )


def test_without_srun_an_allocation_is_reached_by_ssh() -> None:
    assert plan(SLURM, programs=("ssh",)).launcher == "ssh"


@pytest.mark.parametrize(
    ("nodes", "least"), [(NodeCount(2, 3), 2), (NodeCount(3, 3), None), (NodeCount(1, 9), 1)]
)
def test_a_range_of_nodes_says_how_small_the_group_may_get(
    nodes: NodeCount, least: int | None
) -> None:
    made = plan(FILE, nodes=nodes)

    assert (len(made.topology.hosts), made.least) == (3, least)


def test_more_nodes_than_there_are_is_an_error_with_its_remedies() -> None:
    with pytest.raises(BadTopology, match=r"4.*3 hosts here.*--hostfile"):
        plan(FILE, nodes=NodeCount(4, 4))


def test_flags_for_a_launcher_need_one() -> None:
    with pytest.raises(UserError, match="--mpi=none"):
        plan(HERE, launcher_flags=("--mpi=none",))


def test_a_request_for_one_host_becomes_one_for_all_of_the_plan() -> None:
    command = ReplicaRequest(("python", "train.py"), {"A": "1"})
    role = RoleRequest("train", (command,), ranks=3)
    one = LaunchRequest("app-1", "app", "torchx", "/work", "/logs", (role,))
    asked = LaunchCommand(("train.py",), launcher_flags=("-v",))

    request = over_hosts(one, plan(UNEVEN), asked, NOWHERE)

    assert request.roles == (
        RoleRequest("train", (command, command), ranks=3, distributed=True, uneven=(3, 1)),
    )
    assert request.nodes == ("n1", "n2")
    assert request.carrier is not None
    assert (request.carrier.launcher, request.carrier.flags) == ("ssh", ("-v",))
    assert LaunchRequest.from_dict(request.to_dict()) == request
