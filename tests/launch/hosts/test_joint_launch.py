"""When a launch meets others, where, and which of them is the head."""

import json
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch import wire
from torchloom.launch.assembly.topology import shared_port
from torchloom.launch.environments import find_world
from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand
from torchloom.launch.grammar.values import NodeCount
from torchloom.launch.hosts import joint_launch
from torchloom.launch.hosts.joint_launch import CannotJoin, JointLaunch, meeting_of

RECORDINGS = Path(__file__).parents[1] / "environments" / "recordings"
TWO = NodeCount(2, 2)
ALONE: Mapping[str, str] = {}
KUBEFLOW = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "net-worker-0",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "PET_NODE_RANK": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "net-master-0",
    "PET_MASTER_PORT": "23456",
}
INDEXED = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2", "NNODES": "3"}
INDEXED |= {"MASTER_ADDR": "train-0.mesh", "MASTER_PORT": "29400"}


def recorded(name: str, rank: int) -> dict[str, str]:
    tasks = json.loads((RECORDINGS / f"{name}.json").read_text())["tasks"]
    (env,) = [task["env"] for task in tasks if task["rank"] == rank]
    found: dict[str, str] = env
    return found


def one_a_node(rank: int) -> dict[str, str]:
    """Return what `srun -N2 --ntasks-per-node=1` gives a task: the recording of a step of two."""
    env = recorded("srun_two_a_node", 2 * rank)
    counts = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_TASKS_PER_NODE": "1(x2)"}
    return {**env, **counts, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank)}


def meeting(
    words: str, env: Mapping[str, str] = ALONE, torchrun: bool = True
) -> JointLaunch | None:
    argv = [*([AS_TORCHRUN] if torchrun else []), *words.split(), "x.py"]
    return meeting_of(LaunchCommand.parse(argv, env), find_world(env, "here"))


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ("", {}, None),
        ("--nproc-per-node 2", {}, None),
        ("--standalone --nproc-per-node 2", {}, None),
        ("--rdzv-backend c10d --rdzv-endpoint localhost:0 --nnodes 1", {}, None),
        (
            "--nnodes 2 --node_rank 1 --master_addr n1 --master_port 1234",
            {},
            JointLaunch("n1", 1234, TWO, 1, "none"),
        ),
        ("--nnodes 2 --master_addr n1", {}, JointLaunch("n1", 29500, TWO, 0, "none")),
        (
            "--nnodes 2 --node_rank 1 --rdzv-endpoint n1:77",
            {},
            JointLaunch("n1", 77, TWO, 1, "none"),
        ),
        (
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:1234 --rdzv-id job",
            {},
            JointLaunch("n1", 1234, TWO, None, "job", elects=True),
        ),
        (
            "--nnodes 1:4 --rdzv-backend=c10d --rdzv-endpoint=n1 "
            "--rdzv-conf join_timeout=9,last_call_timeout=2",
            {},
            JointLaunch("n1", 29400, NodeCount(1, 4), None, "none", True, 9.0, 2.0),
        ),
        (
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint [fe80::1]:5",
            {},
            JointLaunch("fe80::1", 5, TWO, None, "none", elects=True),
        ),
        (
            "--nnodes 2 --rdzv-backend c10d",
            {},
            JointLaunch("localhost", 29400, TWO, None, "none", elects=True),
        ),
        (
            "",
            {"PET_NNODES": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "n1:9"},
            JointLaunch("n1", 9, TWO, None, "none", elects=True),
        ),
        ("", KUBEFLOW, JointLaunch("net-master-0", 23456, TWO, 1, "none")),
    ],
)
def test_torchruns_words_and_variables_say_where_hosts_meet(
    words: str, env: dict[str, str], expected: JointLaunch | None
) -> None:
    assert meeting(words, env) == expected


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ("-n 2", {}, None),
        ("--nnodes 2", {}, None),
        (
            "--nnodes 2 --rdzv-endpoint n1:5",
            {},
            JointLaunch("n1", 5, TWO, None, "none", elects=True),
        ),
        ("--nnodes 2 --node-rank 1 --master-addr n1", {}, JointLaunch("n1", 29500, TWO, 1, "none")),
        ("--ppn 2", one_a_node(0), JointLaunch("node01", shared_port("3"), TWO, 0, "3")),
        ("--ppn 2", one_a_node(1), JointLaunch("node01", shared_port("3"), TWO, 1, "3")),
        (
            "--ppn 2 --nnodes 1:2",
            one_a_node(1),
            JointLaunch("node01", shared_port("3"), NodeCount(1, 2), 1, "3"),
        ),
        ("--ppn 2 --nnodes 1", one_a_node(1), None),
        ("--ppn 2 --standalone", one_a_node(1), None),
        ("--ppn 2 --hostfile f", one_a_node(1), None),
        ("--ppn 2 --per-rank --launcher srun", one_a_node(1), None),
        ("--ppn 2", recorded("srun_two_a_node", 1), None),
        ("--ppn 2", recorded("salloc_then_srun_on_one_node", 0), None),
        ("--ppn 2", INDEXED, JointLaunch("train-0.mesh", 29400, NodeCount(3, 3), 2, "train")),
        ("--ppn 2", {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"}, None),
    ],
)
def test_our_own_words_meet_where_something_started_them_on_every_host(
    words: str, env: dict[str, str], expected: JointLaunch | None
) -> None:
    assert meeting(words, env, torchrun=False) == expected


@pytest.mark.parametrize("words", ["--nproc-per-node 2", "--nproc-per-node 2 --standalone"])
def test_a_torchrun_that_speaks_of_one_host_meets_nobody(words: str) -> None:
    assert meeting(words, one_a_node(1)) is None


def test_the_place_of_a_task_counts_and_not_for_the_election() -> None:
    words = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node02:5"

    met = [meeting(words, one_a_node(rank)) for rank in (0, 1)]

    assert met == [JointLaunch("node02", 5, TWO, place, "none", elects=True) for place in (0, 1)]


# The head, and who finds it.


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("place", [None, 0, 1])
def test_the_first_to_take_an_endpoint_is_the_head(place: int | None, free_port: int) -> None:
    meet = JointLaunch("127.0.0.1", free_port, TWO, place, elects=True)

    with joint_launch.take_head(meet) or pytest.fail("no head") as listener:
        assert joint_launch.take_head(meet) is None
        assert listener.getsockname() == ("127.0.0.1", free_port)


def test_a_static_meeting_has_its_head_at_the_first_place(free_port: int) -> None:
    with joint_launch.take_head(JointLaunch("127.0.0.1", free_port, TWO, 0)) or pytest.fail(
        "no head"
    ):
        assert joint_launch.take_head(JointLaunch("127.0.0.1", free_port, TWO, 1)) is None
        with pytest.raises(CannotJoin) as refused:
            joint_launch.take_head(JointLaunch("127.0.0.1", free_port, TWO, 0))

    assert str(refused.value) == (
        f"cannot meet at 127.0.0.1:{free_port}: Address already in use; name an address and a free "
        "port of the first host with --rdzv-endpoint or --master-addr and --master-port"
    )


def test_an_endpoint_of_another_host_is_not_taken(free_port: int) -> None:
    assert joint_launch.take_head(JointLaunch("203.0.113.1", free_port, TWO, elects=True)) is None
    assert (
        joint_launch.take_head(JointLaunch("no.such.host.invalid", free_port, TWO, elects=True))
        is None
    )


def test_a_head_that_nobody_is_is_said_after_the_longest_wait(free_port: int) -> None:
    with pytest.raises(CannotJoin) as refused:
        joint_launch.settle(JointLaunch("127.0.0.1", free_port, TWO, 1, longest_wait=0.2), "secret")

    assert str(refused.value) == (
        f"could not reach the head at 127.0.0.1:{free_port} in 0.2 s: Connection refused"
    )


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "what listens there does not answer"),
        (b"", "it does not know our key: share $LOOM_HOME, or set LOOM_LAUNCH_TOKEN"),
        (b"\0" * 100, "it does not know our key: share $LOOM_HOME, or set LOOM_LAUNCH_TOKEN"),
    ],
)
def test_somebody_else_at_the_endpoint_is_not_waited_for_longer(
    answer: bytes | None, problem: str
) -> None:
    with Somebody(answer) as port, pytest.raises(CannotJoin) as refused:
        joint_launch.settle(JointLaunch("127.0.0.1", port, TWO, 1, longest_wait=0.3), "secret")

    assert str(refused.value) == f"could not reach the head at 127.0.0.1:{port} in 0.3 s: {problem}"


class Somebody:
    """A server that is no head: silent, or with one answer to everyone."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._callers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: Any) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for end in (self._listener, *self._callers):
            end.close()

    def _serve(self) -> None:
        for caller in self._accepted():
            self._callers.append(caller)
            if self._answer is not None:
                caller.sendall(self._answer)
                caller.shutdown(socket.SHUT_WR)

    def _accepted(self) -> Iterator[socket.socket]:
        while True:
            try:
                yield self._listener.accept()[0]
            except OSError:
                return


# What all of one meeting know.


def test_all_who_share_a_home_know_one_secret_for_each_meeting(tmp_path: Path) -> None:
    meet = JointLaunch("n1", 29400, TWO, 0, "job")
    own = joint_launch.token(meet, {}, tmp_path / "home")

    assert (
        joint_launch.token(JointLaunch("localhost", 29400, TWO, 1, "job"), {}, tmp_path / "home")
        == own
    )
    assert (
        joint_launch.token(JointLaunch("n1", 29400, TWO, 0, "other"), {}, tmp_path / "home") != own
    )
    assert joint_launch.token(meet, {}, tmp_path / "elsewhere") != own
    assert joint_launch.token(meet, {"LOOM_LAUNCH_TOKEN": "said"}, tmp_path / "home") == "said"
    key = tmp_path / "home" / "launch.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["launch.key"]
    assert key.read_text() not in own


def test_a_key_that_was_half_written_is_never_read(tmp_path: Path) -> None:
    meet, found = JointLaunch("n1", 29400, TWO), set()
    threads = [
        threading.Thread(target=lambda: found.add(joint_launch.token(meet, {}, tmp_path)))
        for _ in range(16)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 1
    assert len(next(iter(found))) == len(wire.proof("", "", ""))
