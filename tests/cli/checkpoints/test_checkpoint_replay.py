"""What a replay is made of: which steps, which request, which knobs, and the first difference."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.codec import Frames, decode, frame
from torchloom.cli.checkpoints import replay, rerun
from torchloom.cli.checkpoints.inventory import of_record
from torchloom.cli.checkpoints.replay import Stretch, TrackDifference, borrowed, stretch_of
from torchloom.cli.checkpoints.rerun import ReplayAgent
from torchloom.errors import LoomError, UserError
from torchloom.launch.records.request import (
    AgentCarrier,
    LaunchRequest,
    ReplicaRequest,
    RoleRequest,
)
from torchloom.messages.plane import VERSION, Applied, Event, Head, Planned, Register, ToRank

from ...harness.home import until
from .stored import commit


@pytest.mark.parametrize(
    ("step", "steps", "stretch"),
    [
        (None, None, Stretch(20, 30, (30,), 2)),
        (10, None, Stretch(10, 20, (20,), 2)),
        (30, None, Stretch(30, 50, (), 2)),
        (10, 5, Stretch(10, 15, (), 2)),
        (10, 25, Stretch(10, 35, (20, 30), 2)),
    ],
)
def test_a_stretch_goes_to_the_next_checkpoint_or_as_far_as_asked(
    step: int | None,
    steps: int | None,
    stretch: Stretch,
    ended: Callable[..., Any],
    state: Path,
) -> None:
    record = ended("train-1")
    for each in (10, 20, 30):
        commit(state / "runs" / "train-1" / "checkpoints", each)

    assert stretch_of(of_record(record), step, steps) == stretch


def request(**more: Any) -> LaunchRequest:
    replica = ReplicaRequest(("python", "train.py"), {"SEED": "7", "LOOM_GENERATION": "3"})
    role = RoleRequest("trainer", (replica,), ranks=4, distributed=True, max_retries=3)
    whole = LaunchRequest("train-1", "train", "torchx", "/work", "/logs", (role,))
    told = {"checkpoints": "/store", "saves": True, "generation": 3, "resume_from": 10}
    return replace(whole, **{**told, **more})


def test_the_same_program_runs_again_under_another_id_and_saves_nothing(state: Path) -> None:
    found = rerun.again(request(), "train-1-replay-1", 2, {"LOOM_UNTIL": "20", "SEED": "8"})

    (role,) = found.roles
    assert (role.replicas[0].argv, role.ranks, role.max_retries) == (("python", "train.py"), 2, 0)
    assert role.replicas[0].env == {"SEED": "8", "LOOM_GENERATION": "3", "LOOM_UNTIL": "20"}
    assert (found.app_id, found.checkpoints, found.saves) == ("train-1-replay-1", "", False)
    assert (found.generation, found.resume_from, found.cwd) == (0, None, "/work")
    assert found.log_dir == str(state / "runs" / "train-1-replay-1" / "logs")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (request(nodes=("a", "b")), "ran on several hosts"),
        (request(carrier=AgentCarrier("ssh", {})), "ran on several hosts"),
        (
            request(roles=(replace(request().roles[0], replicas=request().roles[0].replicas * 2),)),
            "ran on several hosts",
        ),
        (
            request(roles=(replace(request().roles[0], distributed=False),)),
            "is not a group of 2 ranks",
        ),
    ],
)
def test_what_one_host_cannot_repeat_is_refused(asked: LaunchRequest, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        rerun.again(asked, "x", 2, {})


def note(folder: Path, rank: int, *lines: tuple[int, dict[str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"generation": 1, "step": s, "digest": "", "tensors": t} for s, t in lines]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"rank_{rank}.jsonl").write_text(text)


def test_the_first_step_rank_and_tensor_that_differ_are_named(tmp_path: Path) -> None:
    for name, odd in (("a", "x"), ("b", "y")):
        note(tmp_path / name, 0, (5, {"w": "1", "b": "1"}), (6, {"w": "1", "b": "1"}), (7, {}))
        note(tmp_path / name, 1, (5, {"w": "1", "b": "1"}), (6, {"w": "1", "b": odd}))
    one, other = (replay.read_tracks(tmp_path / name, 2) for name in ("a", "b"))

    steps = replay.common_tracks([*one, *other])

    assert steps == [5, 6]
    assert replay.first_difference(one, other, steps) == TrackDifference(6, 1, "b")
    assert replay.first_difference(one, other, [5]) is None
    assert replay.common_tracks([*one, *other], limit=5) == [5]


def test_a_tensor_that_only_one_has_is_a_difference() -> None:
    assert replay.odd({"w": "1"}, {"w": "1", "m": "2"}) == "m"
    assert replay.odd({"w": "1", "m": "2"}, {"w": "1"}) == "m"
    assert replay.odd({"w": "1"}, {"w": "1"}) is None


def test_a_rank_that_noted_nothing_has_an_empty_track(tmp_path: Path) -> None:
    assert replay.read_tracks(tmp_path, 2) == [{}, {}]


def test_ranks_are_welcomed_with_the_changes_and_heard(tmp_path: Path) -> None:
    head = Head(VERSION, "train-1-replay-1", 1, 0, "life", "trainer")
    rank = Register(head, "trainer", 0, "here", 1, 1, "trainer/0", (), "none")
    changes = (Planned("c1/0", 12, {"name": "lr", "value": 0.5}, True),)

    with (
        ReplayAgent(tmp_path, changes) as hearing,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line,
    ):
        line.connect(str(hearing.path))
        line.sendall(frame(rank))
        frames, told = Frames(), []
        while len(told) < 2:
            told += [decode(data, ToRank) for data in frames.feed(line.recv(4096))]
        line.sendall(frame(Event(head, "restored", 10, 0.0, {"step": 10, "why": "other size"})))
        line.sendall(frame(Applied(head, "c1/0", 12)))
        until(lambda: hearing.acted)

    assert [type(one).__name__ for one in told] == ["Kept", "Welcome"]
    assert told[1].changes == changes
    assert hearing.acted == {"c1/0"}
    assert hearing.restored == [{"step": 10, "why": "other size"}]


def test_a_checkpoint_that_is_held_outlives_its_removal_and_goes_afterwards(
    tmp_path: Path,
) -> None:
    storage = commit(tmp_path / "run" / "checkpoints", 10)

    with borrowed(storage, (10, 20)) as held:
        storage.remove(10)
        steps = held.committed()
        held.verify(10)

    assert (steps, storage.committed()) == ([10], [])
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_what_is_held_goes_also_when_the_replay_fails(tmp_path: Path) -> None:
    storage = commit(tmp_path / "run" / "checkpoints", 10)

    with pytest.raises(LoomError), borrowed(storage, (10,)):
        raise LoomError("on purpose")

    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]
