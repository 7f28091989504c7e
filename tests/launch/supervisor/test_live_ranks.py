from torchloom.launch.protocol import ForkRank, RankNote, ReplicaOrder
from torchloom.launch.supervisor.starts import LiveRanks
from torchloom.specs.states import Place, ReplicaKey

KEY = ReplicaKey("train", 0)
PLACES: tuple[Place, ...] = (("train", 0, 0), ("train", 0, 1))


FORK = ForkRank(ReplicaOrder("train", 0, 3, ("true",), "/", ()))


def two_ranks() -> LiveRanks:
    one = LiveRanks(lambda key: "n1")
    one.begin(KEY, 2, attempt=3)
    return one


def note(local_rank: int, attempt: int, incarnation: int) -> RankNote:
    return RankNote("train", 0, local_rank, attempt, incarnation)


def test_what_is_said_counts_only_of_the_process_that_is_there_now() -> None:
    one = two_ranks()
    said = [note(0, 3, 1), note(1, 3, 1), note(1, 2, 1), note(1, 3, 2)]

    first = one.current(said)
    one.ended(PLACES[1])
    gone = one.current(said)
    one.join(PLACES[1], (3, 2), "n1", FORK)

    assert (first, gone) == (said[:2], said[:1])
    assert one.current(said) == [said[0], said[3]]


def test_a_newcomer_is_where_it_was_sent_until_its_replica_starts_again() -> None:
    one = two_ranks()

    one.join(PLACES[1], (3, 2), "n2", FORK)
    moved = (one.at(PLACES[0]), one.at(PLACES[1]), one.nodes_of(KEY), one.on("n2"))
    one.begin(KEY, 2, attempt=4)

    assert moved == ("n1", "n2", {"n1", "n2"}, {PLACES[1]: (3, 2)})
    assert (one.nodes_of(KEY), one.alive) == ({"n1"}, dict.fromkeys(PLACES, (4, 1)))


def test_an_order_is_to_come_until_an_agent_speaks_of_it_or_its_node_is_lost() -> None:
    one, order = two_ranks(), FORK

    one.join(PLACES[1], (3, 2), "n2", order)
    waiting = one.to_come("n2")
    one.acknowledge(PLACES[1])
    heard = one.to_come("n2")
    one.join(PLACES[1], (3, 3), "n2", order)
    one.lose("n2")

    assert (waiting, heard, one.to_come("n2")) == ({PLACES[1]: order}, {}, {})
    assert one.alive == {PLACES[0]: (3, 1)}
