"""Members of a generation meet in its store, or are told that they will not."""

import pytest

from ...harness.home import allowed
from .conftest import Ranks

pytestmark = [pytest.mark.needs("torch"), pytest.mark.process]
SUM = """
value = torch.ones(2)
dist.all_reduce(value)
tell(sum=value.tolist(), backend=dist.get_backend(), is_known=leaving.current() is group)
dist.barrier()
"""


def test_members_meet_in_a_file_generation_after_generation(ranks: Ranks) -> None:
    ranks.run(
        """
for generation in range(3):
    group = join(generation)
"""
        + SUM.replace("\n", "\n    ")
        + """
    (folder / f"done-{generation}-{rank}").touch()
    until(lambda: all((folder / f"done-{generation}-{r}").exists() for r in range(world)))
    group.leave()
"""
    )

    for rank in range(3):
        told = {"sum": [3.0, 3.0], "backend": "gloo", "is_known": True}
        assert ranks.told(rank) == [told] * 3


def test_members_meet_at_an_address(ranks: Ranks) -> None:
    ranks.run(
        """
if rank == 0:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (folder / "partial").write_text(str(served.port))
    (folder / "partial").rename(folder / "port")
until((folder / "port").exists)
port = (folder / "port").read_text()
group = joining.join(f"tcp://127.0.0.1:{port}", rank, world, "gloo", 30)
"""
        + SUM
    )

    assert ranks.told(2) == [{"sum": [3.0, 3.0], "backend": "gloo", "is_known": True}]


def test_whoever_waits_for_one_that_never_comes_stops_when_the_generation_is_over(
    ranks: Ranks,
) -> None:
    ranks.run(
        """
if rank == 2:
    sys.exit()
over = threading.Event()
threading.Timer(0.3, over.set).start()
raised(lambda: join(is_over=over.is_set))
tell(is_initialized=dist.is_initialized())
world = 2
group = join(1)
"""
        + SUM
    )

    for rank in range(2):
        error, after, told = ranks.told(rank)
        assert error["is_collective"]
        assert "over before its members had met" in error["error"]
        assert 0.25 < error["seconds"] < 0.3 + allowed(0.1)
        assert after == {"is_initialized": False}
        assert told["sum"] == [2.0, 2.0]


def test_one_who_is_alone_gives_up_in_time(ranks: Ranks) -> None:
    ranks.run("raised(lambda: join(patience=0.2)) if rank == 0 else None", world=2)

    (error,) = ranks.told(0)
    assert error["error"] == "a member did not come to the store"
    assert error["seconds"] < 0.2 + allowed(0.2)


def test_without_a_store_there_is_an_error_that_says_so(ranks: Ranks) -> None:
    ranks.run(
        """
raised(lambda: joining.join("tcp://127.0.0.1:9", 0, 1, "gloo", 30, patience=0.5))
""",
        world=1,
    )

    (error,) = ranks.told(0)
    assert error["is_collective"]
    assert error["error"].startswith("no store at tcp://127.0.0.1:9: ")


def test_the_group_has_the_timeout_that_it_was_given(ranks: Ranks) -> None:
    ranks.run(
        """
join(timeout=1.0)
if rank == 0:
    raised(lambda: dist.all_reduce(torch.ones(1)))
    (folder / "done").touch()
until((folder / "done").exists)
os._exit(0)
""",
        world=2,
    )

    (error,) = ranks.told(0)
    assert "Timed out waiting 1000ms" in error["error"]


def test_members_have_long_for_a_collective_and_not_to_connect(ranks: Ranks) -> None:
    ranks.run(
        """
join(timeout=77.0)
gloo = dist.group.WORLD._get_backend(torch.device("cpu"))
tell(timeout=gloo.options._timeout.total_seconds())
dist.barrier()
""",
        world=2,
    )

    assert ranks.told(0) == [{"timeout": 77.0}]


def test_many_lives_leave_no_thread_and_no_descriptor(ranks: Ranks) -> None:
    ranks.run(
        """
counts = []
for generation in range(8):
    group = join(generation)
    dist.barrier()
    (folder / f"done-{generation}-{rank}").touch()
    until(lambda: all((folder / f"done-{generation}-{r}").exists() for r in range(world)))
    group.leave()
    counts.append([len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))])
tell(first=counts[2], last=counts[-1])
"""
    )

    for rank in range(3):
        (told,) = ranks.told(rank)
        assert told["first"] == told["last"]
