import pytest

from torchloom.launch.assembly.topology import (
    BadTopology,
    HostTopology,
    head_address,
    resolve,
    shared_port,
)
from torchloom.launch.environments.world import World
from torchloom.launch.hosts.host_lists import MissingHostfile

THREE = World("slurm", ("a", "b", "c"), (4, 4, 2))


@pytest.mark.parametrize(
    ("n", "ppn", "nhosts", "hosts", "per_host"),
    [
        (None, None, None, "a b c", (4, 4, 2)),
        (None, None, 2, "a b", (4, 4)),
        (None, 2, None, "a b c", (2, 2, 2)),
        (None, 2, 1, "a", (2,)),
        (3, None, None, "a", (3,)),
        (6, None, None, "a b", (4, 2)),
        (10, None, None, "a b c", (4, 4, 2)),
        (6, None, 3, "a b c", (2, 2, 2)),
        (4, 2, None, "a b", (2, 2)),
        (4, 2, 2, "a b", (2, 2)),
        (1, 4, None, "a", (1,)),
    ],
)
def test_ranks_are_placed(
    n: int | None, ppn: int | None, nhosts: int | None, hosts: str, per_host: tuple[int, ...]
) -> None:
    assert resolve(THREE, n, ppn, nhosts) == HostTopology(tuple(hosts.split()), per_host)


def test_more_ranks_than_slots_are_spread_evenly_and_said() -> None:
    world = World("slurm", ("a", "b"), (1, 1))

    assert resolve(world, 8) == HostTopology(
        ("a", "b"), (4, 4), ("a: 4 ranks on 1 slots, and 1 more",)
    )


def test_pbs_says_how_many_cores_a_host_gives_apart_from_its_node_file() -> None:
    world = World("pbs", ("a",), (1,), cores=2)

    assert resolve(world, 2) == HostTopology(("a",), (2,))
    assert resolve(world, 3) == HostTopology(("a",), (3,), ("a: 3 ranks on 2 slots",))


def test_a_laptop_takes_any_number() -> None:
    assert resolve(World("plain", ("laptop",)), 4) == HostTopology(("laptop",), (4,))


def test_devices_count_before_slots() -> None:
    world = World("pbs", ("a", "b"), (64, 64), gpus_per_host=4)

    assert resolve(world) == HostTopology(("a", "b"), (4, 4))


@pytest.mark.parametrize(
    ("n", "ppn", "nhosts", "why"),
    [
        (5, 2, None, "-n 5 is not a multiple of --ppn 2"),
        (4, 2, 1, "-n 4 with --ppn 2 is 2 hosts, not --nhosts 1"),
        (None, None, 4, "4 hosts requested, 3 available"),
        (16, 4, None, "4 hosts requested, 3 available"),
        (11, None, None, "-n 11 cannot be spread evenly over 3 hosts that offer 10 ranks"),
        (4, None, 3, "-n 4 cannot be spread evenly over 3 hosts"),
        (0, None, None, "-n takes a number from 1, not 0"),
        (None, -1, None, "--ppn takes a number from 1, not -1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    n: int | None, ppn: int | None, nhosts: int | None, why: str
) -> None:
    with pytest.raises(BadTopology) as raised:
        resolve(THREE, n, ppn, nhosts)

    assert str(raised.value).startswith(why)


def test_a_world_without_hosts_asks_for_a_host_file() -> None:
    with pytest.raises(MissingHostfile, match=r"PBS_NODEFILE .* --hostfile"):
        resolve(World("openmpi", rank=0, world_size=2))


def test_one_host_meets_on_its_loopback() -> None:
    assert head_address(THREE, HostTopology(("a",), (4,))) == "127.0.0.1"


def test_several_hosts_meet_at_the_first_ones_name() -> None:
    assert head_address(THREE, HostTopology(("b", "c"), (1, 1))) == "b"


def test_an_address_that_the_platform_tells_is_used() -> None:
    world = World("torchrun", ("a", "b"), address="10.0.0.5")

    assert head_address(world, HostTopology(("a", "b"), (1, 1))) == "10.0.0.5"


def test_a_site_may_name_hosts_otherwise() -> None:
    spot = HostTopology(("a.example.org", "b"), (1, 1))

    assert head_address(THREE, spot, "{host}.hsn.example.org") == "a.hsn.example.org"


def test_a_loopback_name_is_no_address_for_others() -> None:
    with pytest.raises(BadTopology, match="localhost is not an address for the other 1 hosts"):
        head_address(THREE, HostTopology(("localhost", "b"), (1, 1)))


@pytest.mark.parametrize(
    ("job", "port"), [("123456", 18456), ("77[3]", 15773), ("abc", 15000), (None, 15000)]
)
def test_every_rank_computes_the_same_port(job: str | None, port: int) -> None:
    assert shared_port(job) == port
