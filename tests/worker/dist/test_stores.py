"""Where ranks meet, by rule; and what they tell each other there."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from torchloom.errors import UserError
from torchloom.launch.environments import World, find_world
from torchloom.worker.dist.place import RankPlace, place_of
from torchloom.worker.dist.stores import (
    MeetingPlace,
    RanksMissing,
    NoMeetingPoint,
    alone,
    exchange,
    meeting_of,
)
from torchloom.worker.dist.stores import _read_note as read_note

Recorded = Callable[[str], list[dict[str, str]]]
FAR = RankPlace(1, 4, None, None, None, 2)
NEAR = RankPlace(1, 2, 1, 2, 0, 1)


@pytest.mark.parametrize(
    ("world", "env", "place", "port", "expected"),
    [
        (World("plain"), {"MASTER_ADDR": "h", "MASTER_PORT": "5"}, FAR, None, MeetingPlace("h", 5)),
        (World("plain"), {"MASTER_ADDR": "h", "MASTER_PORT": "5"}, FAR, 7, MeetingPlace("h", 5)),
        (World("plain"), {"MASTER_ADDR": "h"}, FAR, 7, MeetingPlace("h", 7)),
        (World("slurm", job_id="98765"), {"MASTER_ADDR": "h"}, FAR, None, MeetingPlace("h", 23765)),
        (World("openmpi"), {}, NEAR, None, MeetingPlace("127.0.0.1", None)),
        (World("openmpi"), {}, NEAR, 7, MeetingPlace("127.0.0.1", 7)),
        (World("openmpi"), {"MASTER_PORT": "5"}, NEAR, None, MeetingPlace("127.0.0.1", 5)),
        (World("slurm", ("a", "b"), job_id="42"), {}, FAR, None, MeetingPlace("a", 15042)),
        (World("slurm", ("a", "b"), job_id="42"), {}, FAR, 7, MeetingPlace("a", 7)),
        (World("aws_batch", address="10.0.0.5"), {}, FAR, 7, MeetingPlace("10.0.0.5", 7)),
    ],
)
def test_the_users_word_comes_first_then_a_rule_that_all_ranks_share(
    world: World, env: dict[str, str], place: RankPlace, port: int | None, expected: MeetingPlace
) -> None:
    assert meeting_of(world, env, place, "a", port) == expected


def test_all_ranks_of_a_recorded_job_find_the_same_meeting(recorded: Recorded) -> None:
    hosts = ["node01", "node01", "node02", "node02"]
    found = set()
    for env, host in zip(recorded("srun_two_a_node"), hosts, strict=True):
        world = find_world(env, host)
        found.add(meeting_of(world, env, place_of(world, env), host))

    assert found == {MeetingPlace("node01", 15003)}


@pytest.mark.parametrize(
    ("world", "env", "place", "host", "why"),
    [
        (World("openmpi"), {}, FAR, "a", "set MASTER_ADDR to its host for all of them"),
        (World("plain"), {"MASTER_PORT": "x"}, FAR, "a", "MASTER_PORT='x' is not a port"),
        (World("plain"), {"MASTER_PORT": "70000"}, FAR, "a", "MASTER_PORT='70000' is not a port"),
        (
            World("slurm", ("a", "b")),
            {},
            RankPlace(0, 4, 0, 2, 1, 2),
            "b.site",
            "rank 0 is on b.site, not on the first host, a: set MASTER_ADDR=b.site",
        ),
        (World("slurm", ("localhost", "b")), {}, FAR, "b", "localhost is not an address"),
    ],
)
def test_where_nobody_can_know_the_place_the_variable_to_set_is_named(
    world: World, env: dict[str, str], place: RankPlace, host: str, why: str
) -> None:
    with pytest.raises(UserError, match=why) as refused:
        meeting_of(world, env, place, host)

    assert isinstance(refused.value, NoMeetingPoint) or "localhost" in why


def test_every_rank_hears_every_ranks_word_in_rank_order() -> None:
    store, heard = alone(), {}

    def rank(number: int) -> None:
        heard[number] = exchange(store, "x", RankPlace(number, 3), f"word {number}")

    threads = [threading.Thread(target=rank, args=(number,)) for number in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert heard == {rank: ["word 0", "word 1", "word 2"] for rank in range(3)}


def test_a_note_of_a_dead_rank_0_is_not_believed(tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    dead = {"host": "h", "boot": "other", "pid": 1, "started": "1"}
    note.write_text(json.dumps({"port": 5, "by": dead}))

    with pytest.raises(RanksMissing, match="set MASTER_ADDR and MASTER_PORT"):
        read_note(note, timedelta(seconds=0.1))
