"""Who sends to whom: whatever fails, every host that can be reached is served."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom.envs.push import HERE, Copy, Tree, render, rounds

HOSTS = [f"h{number}" for number in range(40)]


def test_sources_double_and_none_sends_more_than_its_share() -> None:
    sizes = [len(copies) for copies in rounds(HOSTS, fanout=2)]

    assert sizes == [2, 6, 18, 14]


def test_the_tree_is_drawn_with_each_host_once() -> None:
    text = render(["a", "b", "c", "d"], fanout=2)

    assert text == "here\n  a\n    d\n  b\n  c"


def test_what_a_dead_source_was_sending_is_sent_by_others() -> None:
    tree = Tree(["a", "b", "c"], fanout=1)
    (first,) = tree.ready()
    tree.arrived(first)
    assert tree.ready() == [Copy(HERE, "b"), Copy("a", "c")]

    tree.failed(Copy("a", "c"), "gone", source_is_gone=True)
    tree.arrived(Copy(HERE, "b"))

    assert tree.ready() in ([Copy(HERE, "c")], [Copy("b", "c")])
    assert tree.failures == {}


def test_what_a_peer_cannot_reach_is_tried_from_here_and_only_that_is_final() -> None:
    tree = Tree(["a", "b", "c"], fanout=1)
    tree.arrived(tree.ready()[0])
    tree.ready()

    tree.failed(Copy("a", "c"), "no route")
    assert tree.ready() == []  # here is busy, and no peer is asked again
    tree.arrived(Copy(HERE, "b"))
    assert tree.ready() == [Copy(HERE, "c")]
    tree.failed(Copy(HERE, "c"), "no such host")

    assert (tree.failures, tree.is_done) == ({"c": "no such host"}, True)


def test_a_peer_that_others_had_to_stand_in_for_twice_serves_no_more() -> None:
    tree, tried = Tree(["a", *HOSTS], fanout=1), 0
    tree.arrived(tree.ready()[0])

    while copies := tree.ready():
        for copy in copies:
            if copy.source == "a":
                tried += 1
                tree.failed(copy, "no route")
            else:
                tree.arrived(copy)

    assert (tried <= 3, tree.failures, tree.is_done) == (True, {}, True)


@given(
    count=st.integers(1, 60),
    fanout=st.integers(1, 9),
    dead=st.sets(st.integers(0, 59)),
    mute=st.sets(st.integers(0, 59)),
    dies=st.sets(st.integers(0, 59)),
    order=st.randoms(use_true_random=False),
)
def test_every_host_that_can_be_reached_from_here_is_served(
    count: int, fanout: int, dead: set[int], mute: set[int], dies: set[int], order: object
) -> None:
    """`dead` hosts take nothing, `mute` ones cannot reach others, `dies` fall when they serve."""
    hosts = [f"h{number}" for number in range(count)]
    tree, running, served, gone = Tree(hosts, fanout), [], set(), set()
    for _ in range(100_000):
        ready = tree.ready()
        assert not any(copy.source in gone for copy in ready)
        running += ready
        busy = [copy.source for copy in running]
        assert all(busy.count(source) <= fanout for source in busy)
        assert all(copy.source == HERE or copy.source in served for copy in running)
        if not running:
            break
        copy = order.choice(running)  # type: ignore[attr-defined]
        running.remove(copy)
        if int(copy.source[1:] or -1) in dies:
            gone.add(copy.source)
            tree.failed(copy, "source gone", source_is_gone=True)
        elif int(copy.target[1:]) in dead or int(copy.source[1:] or -1) in mute:
            tree.failed(copy, "no")
        else:
            served.add(copy.target)
            tree.arrived(copy)

    assert tree.is_done
    assert served == {host for host in hosts if int(host[1:]) not in dead}
    assert set(tree.failures) == set(hosts) - served
