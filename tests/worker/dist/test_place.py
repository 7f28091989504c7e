"""A rank's numbers, by the environments of real launches."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.launch.environments import World, find_world
from torchloom.worker import dist
from torchloom.worker.dist.place import ALONE, BadRankVariables, RankPlace, place_of, settle

Recorded = Callable[[str], list[dict[str, str]]]
HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}


@pytest.fixture(autouse=True)
def _unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    settle(None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NGPU_PER_HOST"):
        monkeypatch.delenv(name, raising=False)


def asked(env: dict[str, str], host: str = "here") -> RankPlace:
    return place_of(find_world(env, host), env)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ALONE),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, ALONE),
        ({"WORLD_SIZE": "4"}, ALONE),
        (HAND, RankPlace(1, 2, 1, 2, 0, 1)),
        ({**HAND, "MASTER_ADDR": "far"}, RankPlace(1, 2, None, None, None, None)),
        (
            {**HAND, "MASTER_ADDR": "127.0.0.1", "JOB_COMPLETION_INDEX": "1", "NNODES": "2"},
            RankPlace(1, 2, None, None, 1, 2),
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
            | {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"},
            RankPlace(5, 8, 1, 4, 1, 2),
        ),
        (
            {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_NODEID": "0"}
            | {"PMI_SIZE": "2", "PMI_LOCAL_SIZE": "2"},
            RankPlace(1, 2, 1, 2, 0, 1),
        ),
    ],
)
def test_what_is_set_says_which_rank_this_is(env: dict[str, str], expected: RankPlace) -> None:
    assert asked(env) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("srun_cyclic", [(0, 0, 2, 0), (1, 0, 1, 1), (2, 1, 2, 0)]),
        ("srun_two_a_node", [(0, 0, 2, 0), (1, 1, 2, 0), (2, 0, 2, 1), (3, 1, 2, 1)]),
        ("mpirun_by_slot", [(0, 0, 2, None), (1, 1, 2, None), (2, 0, 1, None)]),
        ("hydra_two_a_node", [(0, 0, 2, None), (1, 1, 2, None), (2, 0, 1, None)]),
    ],
)
def test_a_recorded_rank_knows_what_its_launcher_told_and_no_more(
    name: str, expected: list[tuple[int, int, int, int | None]], recorded: Recorded
) -> None:
    size, nodes = len(expected), 2 if name.startswith("srun") else None

    found = [asked(env) for env in recorded(name)]

    assert found == [
        RankPlace(r, size, local, each, node, nodes) for r, local, each, node in expected
    ]


def test_the_rest_is_filled_from_the_hosts_of_all_ranks() -> None:
    hosts = ["b", "a", "b", "a", "a"]

    found = [RankPlace(rank, 5, None, None, None, None).among(hosts) for rank in range(5)]

    assert found == [
        RankPlace(0, 5, 0, 2, 0, 2),
        RankPlace(1, 5, 0, 3, 1, 2),
        RankPlace(2, 5, 1, 2, 0, 2),
        RankPlace(3, 5, 1, 3, 1, 2),
        RankPlace(4, 5, 2, 3, 1, 2),
    ]
    assert RankPlace(1, 2, 7, 8, None, None).among(["a", "a"]) == RankPlace(1, 2, 7, 8, 0, 1)


def test_a_rank_outside_its_world_is_refused() -> None:
    with pytest.raises(BadRankVariables, match="rank 2 in a world of 2"):
        place_of(World("plain"), {"RANK": "2", "WORLD_SIZE": "2"})


def test_the_place_is_written_in_torchruns_words_and_read_back() -> None:
    place = RankPlace(5, 8, 1, 4, 1, 2)

    assert asked(place.variables) == place
    assert RankPlace(1, 2, None, None, None, None).variables == {"RANK": "1", "WORLD_SIZE": "2"}


def test_questions_are_answered_from_the_environment_before_set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=2\n")
    for name, value in {**RankPlace(5, 8, 1, 4, 1, 2).variables, "NGPU_PER_HOST": "6"}.items():
        monkeypatch.setenv(name, value)

    told = {
        "rank": (dist.get_rank(), dist.get_local_rank(), dist.get_node_index()),
        "sizes": (dist.get_world_size(), dist.get_local_world_size(), dist.get_num_nodes()),
        "total": (dist.get_world_size(total=True), dist.get_num_nodes(hosts)),
    }

    assert told == {"rank": (5, 1, 1), "sizes": (8, 4, 2), "total": (12, 2)}


def test_what_only_peers_know_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**HAND, "MASTER_ADDR": "far"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(
        BadRankVariables, match=r"does not set the local rank: call setup_torch\(\) first"
    ):
        dist.get_local_rank()


def test_documented_ranks_have_places() -> None:
    path = Path(__file__).parents[2] / "launch/environments/recordings/documented.json"
    cases = {case["name"]: case for case in json.loads(path.read_text())}
    case = cases["a PALS rank inside a PBS job"]

    world = find_world(case["env"], case["own_host"], lambda path: case["files"][str(path)])

    assert place_of(world, case["env"]) == RankPlace(3, 4, 1, 2, 1, 2)
