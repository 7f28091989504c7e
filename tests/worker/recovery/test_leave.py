"""A rank that waits for one who does not answer is freed, leaves at once, and the others notice."""

import pytest
import torch
import torch.distributed

from torchloom.worker.recovery.leave import NotMet, is_collective_error

from ...harness.home import allowed
from .conftest import Ranks

pytestmark = [pytest.mark.needs("torch"), pytest.mark.process]
END = "\nos._exit(0)\n"  # not by torch's own shutting down, which waits for the others


def test_a_rank_that_waits_for_a_stopped_peer_is_freed_and_leaves_at_once(ranks: Ranks) -> None:
    ranks.run(
        """
group = join()
value = torch.ones(100_000)
dist.all_reduce(value)
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
stopped = int((folder / "pid-2").read_text())
until(lambda: "(T" in "(" + Path(f"/proc/{stopped}/stat").read_text().rpartition(")")[2].strip())
freed = []

def free():
    time.sleep(0.3)  # by then it waits
    freed.append(time.monotonic())
    group.free()

threading.Thread(target=free).start()
raised(lambda: dist.all_reduce(value))
since = time.monotonic()
group.leave()
tell(freed=since - freed[0], left=time.monotonic() - since, is_there=dist.is_initialized())
(folder / f"left-{rank}").touch()
if rank == 0:
    until((folder / "left-1").exists)
    os.kill(stopped, signal.SIGKILL)
"""
        + END,
        codes=(0, 0, -9),
    )

    for rank in range(2):
        error, told = ranks.told(rank)
        assert (error["is_collective"], told["is_there"]) == (True, False)
        assert error["seconds"] > 0.2  # it did wait
        assert told["freed"] < allowed(0.1)
        assert told["left"] < allowed(0.1)


def test_a_message_for_what_nobody_waits_for_any_more_keeps_nobody(ranks: Ranks) -> None:
    ranks.run(
        """
group = join()
value = torch.ones(100_000)

def free():
    time.sleep(0.3)  # by then it waits
    group.free()

if rank == 0:
    dist.irecv(value, 1, tag=7)  # and lets go of it, as a collective does that fails
    (folder / "wanted").touch()
    threading.Thread(target=free).start()
    raised(lambda: dist.recv(torch.ones(1), 1, tag=8))
    group.leave()
    tell(is_there=dist.is_initialized())
    (folder / "left").touch()
else:
    until((folder / "wanted").exists)
    works = [dist.isend(value, 0, tag=7), dist.isend(torch.ones(1), 0, tag=8)]
    until((folder / "left").exists)
"""
        + END,
        world=2,
    )

    error, told = ranks.told(0)
    assert (error["is_collective"], told["is_there"]) == (True, False)
    assert "Timed out" not in error["error"]


@pytest.mark.parametrize("way", ["isend", "irecv"])
def test_a_message_that_is_half_on_its_way_when_its_peer_dies_keeps_nobody(
    ranks: Ranks, way: str
) -> None:
    ranks.run(
        f"""
way = "{way}"
"""
        """
group = join()
value = torch.ones(20_000_000)

def free():
    until((folder / "dead").exists)
    time.sleep(0.3)  # by then it waits
    group.free()

if rank == 0:
    work = dist.isend(value, 1) if way == "isend" else dist.irecv(value, 1)
    threading.Thread(target=free).start()
    raised(work.wait)
    group.leave()
    tell(is_there=dist.is_initialized())
elif rank == 1:
    work = dist.irecv(value, 0) if way == "isend" else dist.isend(value, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
else:
    pid = int((folder / "pid-1").read_text())
    until(lambda: "(T" in "(" + Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].strip())
    time.sleep(0.3)  # what can be sent and received by then is
    os.kill(pid, signal.SIGKILL)
    (folder / "dead").touch()
    until((folder / "told-0").exists)
""" + END,
        codes=(0, -9, 0),
    )

    error, told = ranks.told(0)
    assert (error["is_collective"], told["is_there"]) == (True, False)
    assert "Timed out" not in error["error"]


def test_a_member_that_leaves_makes_the_others_collectives_raise(ranks: Ranks) -> None:
    ranks.run(
        """
group = join()
value = torch.ones(100_000)
dist.all_reduce(value)
if rank == 2:
    group.leave()
    until(lambda: (folder / "told-0").exists() and (folder / "told-1").exists())
else:
    raised(lambda: dist.all_reduce(value))
"""
        + END
    )

    for rank in range(2):
        (error,) = ranks.told(rank)
        assert error["is_collective"]
        assert error["seconds"] < allowed(1.0)


def test_a_member_that_is_killed_makes_ddp_raise_and_behind_that_all_can_meet_again(
    ranks: Ranks,
) -> None:
    ranks.run(
        """
from torch.nn.parallel import DistributedDataParallel
group = join()
model = torch.nn.Linear(50, 50)
joined = DistributedDataParallel(model)

def step():
    joined(torch.ones(2, 50)).sum().backward()

step()
if rank == 2:
    if (pid := os.fork()) == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    signal.pause()
raised(step)
joined = None
since = time.monotonic()
group.leave()
tell(left=time.monotonic() - since)
world = 2
group = join(1)
value = torch.ones(1)
dist.all_reduce(value)
tell(sum=value.item())
"""
        + END,
        codes=(0, 0, -9),
    )

    for rank in range(2):
        error, left, told = ranks.told(rank)
        assert error["is_collective"]
        assert left["left"] < allowed(0.1)
        assert told == {"sum": 2.0}


def test_no_connection_of_the_program_is_touched(ranks: Ranks) -> None:
    ranks.run(
        """
import socket
listener = socket.create_server(("127.0.0.1", 0))
mine = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
leaving.watch()
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/own", world), rank=rank,
                        world_size=world)
(folder / f"met-{rank}").touch()
until(lambda: all((folder / f"met-{each}").exists() for each in range(world)))
late = socket.create_connection(listener.getsockname())
last, _ = listener.accept()
group = leaving.current()
group.free()
for one, answer in ((mine, other), (late, last)):
    one.sendall(b"x")
    tell(heard=answer.recv(1).decode())
raised(lambda: dist.barrier())
group.leave()
tell(is_known=leaving.current() is not None)
"""
        + END,
        world=2,
    )

    for rank in range(2):
        first, second, error, last = ranks.told(rank)
        assert (first, second) == ({"heard": "x"}, {"heard": "x"})
        assert error["is_collective"]
        assert last == {"is_known": False}


def test_a_descriptor_that_is_used_again_is_not_shut_down(ranks: Ranks) -> None:
    ranks.run(
        """
import socket
group = join()
dist.barrier()
dist.destroy_process_group()
listener = socket.create_server(("127.0.0.1", 0))
near = [socket.create_connection(listener.getsockname()) for _ in range(20)]
far = [listener.accept()[0] for _ in near]
group.free()
for one, answer in zip(near, far):
    one.sendall(b"x")
tell(heard=b"".join(answer.recv(1) for answer in far).decode())
""",
        world=2,
    )

    assert [ranks.told(rank) for rank in range(2)] == [[{"heard": "x" * 20}]] * 2


def test_a_timeout_and_a_store_that_does_not_answer_are_a_groups(ranks: Ranks) -> None:
    ranks.run(
        """
from datetime import timedelta
group = join(timeout=0.5)
if rank == 0:
    raised(lambda: dist.all_reduce(torch.ones(10)))
    store = dist.FileStore(f"{folder}/empty", world)
    store.set_timeout(timedelta(seconds=0.2))
    raised(lambda: store.get("never"))
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    asked = dist.TCPStore("127.0.0.1", served.port, is_master=False, wait_for_workers=False,
                          timeout=timedelta(seconds=0.5))
    raised(lambda: asked.get("never"))
    served = None
    raised(lambda: asked.get("gone"))
    (folder / "done").touch()
until((folder / "done").exists)
"""
        + END,
        world=2,
    )

    told = ranks.told(0)
    assert [one["is_collective"] for one in told] == [True] * 4, told


def test_groups_of_the_programs_own_are_seen(ranks: Ranks) -> None:
    ranks.run(
        """
join()
tell(more=leaving.has_more_groups())
dist.new_group([0, 1])
tell(more=leaving.has_more_groups())
dist.barrier()
""",
        world=2,
    )

    assert ranks.told(0) == [{"more": False}, {"more": True}]


def wrapped(error: Exception) -> Exception:
    try:
        try:
            raise error
        except Exception as first:
            raise ValueError("the step failed") from first
    except Exception as second:
        return second


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]"


@pytest.mark.parametrize(
    ("error", "is_a_groups"),
    [
        (RuntimeError(GLOO), True),
        (wrapped(RuntimeError(GLOO)), True),
        (RuntimeError("Gloo connectFullMesh failed with [..] Connection refused"), True),
        (torch.distributed.DistBackendError("NCCL error in: ..., remote process exited"), True),
        (torch.distributed.DistNetworkError("Connection was likely closed"), True),
        (torch.distributed.DistStoreError("wait timeout after 500ms, keys: /a"), True),
        (RuntimeError("NCCL communicator was aborted on rank 1."), True),
        (NotMet("a member did not come to the store"), True),
        (ValueError("Connection closed by peer"), False),
        (ConnectionResetError("Connection reset by peer"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)"), False),
        (RuntimeError("Connection closed by peer"), False),  # of the program's own service
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (KeyboardInterrupt(), False),
        (wrapped(RuntimeError("loss is nan")), False),
    ],
)
def test_whose_an_error_may_be_is_told_by_its_kind(error: BaseException, is_a_groups: bool) -> None:
    assert is_collective_error(error) is is_a_groups


def test_errors_of_torch_itself_are_the_programs() -> None:
    found = []
    for act in (
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(2).view(3),
        lambda: torch.ones(1).backward(),
    ):
        try:
            act()
        except RuntimeError as error:
            found.append(is_collective_error(error))

    assert found == [False] * 3
