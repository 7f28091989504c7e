"""Room is found for all workers of a job at once, or for none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.rules.queue import Need, NodeCapacity, NodeShare, fit, free, place, shortage

THREE = {"a": NodeCapacity(4), "b": NodeCapacity(2), "c": NodeCapacity(8)}


def test_one_node_takes_all_and_it_is_the_fullest_that_can() -> None:
    assert place(Need(2), THREE) == (NodeShare("b", 2, 2),)
    assert place(Need(3), THREE) == (NodeShare("a", 3, 3),)


def test_several_nodes_take_what_one_cannot_as_few_as_possible() -> None:
    assert place(Need(10), THREE) == (NodeShare("c", 8, 8), NodeShare("b", 2, 2))
    assert place(Need(14), THREE) == (
        NodeShare("c", 8, 8),
        NodeShare("a", 4, 4),
        NodeShare("b", 2, 2),
    )


def test_there_is_no_half_a_job() -> None:
    assert place(Need(15), THREE) is None
    assert place(Need(1, gpus=1), THREE) is None


def test_each_worker_has_gpus_of_its_own() -> None:
    rooms = {"a": NodeCapacity(8, 0, ("g0", "g1", "g2")), "b": NodeCapacity(8, 0, ("h0",))}

    shares = place(Need(2, cpus=2, gpus=1), rooms)

    assert shares == (NodeShare("a", 2, 4, 0, ("g0", "g1")),)
    assert free(rooms, shares)["a"] == NodeCapacity(4, 0, ("g2",))


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (Need(14), ""),
        (Need(15), "needs 15 workers, the cluster has 14"),
        (Need(4, cpus=4), "needs 4 workers with 4 CPUs each, the cluster has 3"),
        (Need(1, 2, 1, 5), "needs 1 worker with 2 CPUs and 1 GPU and 5 MB each, the cluster has 0"),
    ],
)
def test_what_is_lacking_is_said(need: Need, words: str) -> None:
    assert shortage(need, THREE) == words


def test_without_nodes_that_is_said() -> None:
    assert shortage(Need(1), {}) == "needs 1 worker, the cluster has no node"


ROOMS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(
        NodeCapacity, st.integers(0, 9), st.integers(0, 99), st.sampled_from([(), ("x", "y", "z")])
    ),
)
NEEDS = st.builds(Need, st.integers(1, 12), st.integers(0, 3), st.integers(0, 2), st.integers(0, 9))


@given(NEEDS, ROOMS)
def test_whatever_is_needed_all_is_given_and_no_more_than_there_is(need: Need, rooms: dict) -> None:  # type: ignore[type-arg]
    shares = place(need, rooms)

    if shares is None:
        assert sum(fit(need, room) for room in rooms.values()) < need.workers
        return
    assert sum(share.workers for share in shares) == need.workers
    assert len({share.node for share in shares}) == len(shares)
    for share in shares:
        assert len(share.gpus) == len(set(share.gpus)) == share.workers * need.gpus
    left = free(rooms, shares)
    assert all(room.cpus >= 0 and room.memory_mb >= 0 for room in left.values())
    given_away = sum(len(rooms[name].gpus) - len(left[name].gpus) for name in rooms)
    assert given_away == need.workers * need.gpus
