"""The queue between a rank and its agent, which both sides must count alike."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.messages.plane import VERSION, Goodbye, Head, Message, Register
from torchloom.worker.threadlet.link import TICK, AgentLink, FrameQueue

from ...harness.home import until

HEAD = Head(VERSION, "job-1", 0, 0, "life")


def sent_all(queue: FrameQueue) -> list[bytes]:
    """Send what there is on this connection."""
    out = []
    while (data := queue.next) is not None:
        out.append(data)
        queue.sent()
    return out


def test_frames_are_sent_once_and_forgotten_when_they_are_kept() -> None:
    queue = FrameQueue()
    for data in (b"a", b"b", b"c"):
        queue.put(data)

    first = sent_all(queue)
    queue.kept(2)
    queue.put(b"d")

    assert first == [b"a", b"b", b"c"]
    assert sent_all(queue) == [b"d"]


def test_another_connection_gets_what_was_not_kept() -> None:
    queue = FrameQueue()
    for data in (b"a", b"b", b"c"):
        queue.put(data)
    sent_all(queue)

    queue.kept(1)
    queue.again()
    queue.kept(2)  # what the next agent says when it answers

    assert sent_all(queue) == [b"c"]


def test_an_agent_that_has_lost_its_disk_gets_what_is_left() -> None:
    queue = FrameQueue()
    for data in (b"a", b"b"):
        queue.put(data)
    sent_all(queue)
    queue.kept(1)

    queue.again()
    queue.kept(0)
    left = sent_all(queue)
    queue.kept(1)
    queue.put(b"c")

    assert left == [b"b"]
    assert sent_all(queue) == [b"c"]


def test_a_full_queue_lets_unsent_numbers_go_and_counts_them() -> None:
    queue = FrameQueue(most=10)
    queue.put(b"sent", 5)
    queue.sent()
    queue.put(b"n1", 2)
    queue.put(b"n2", 3)
    queue.put(b"ev")
    queue.put(b"n3", 4)

    assert sent_all(queue) == [b"n1", b"ev", b"n3"]
    assert queue.lost == 3


@pytest.mark.process
def test_what_was_logged_is_looked_at_in_each_tick_and_not_at_each_waking(tmp_path: Path) -> None:
    looks: list[float] = []

    def collect() -> Iterator[Message]:
        looks.append(time.monotonic())
        return iter(())

    errors: list[BaseException] = []
    register = Register(HEAD, "trainer", 0, "here", 1, 1, "trainer/0", (), "none", (), 1, "")
    nobody = str(tmp_path / "agent")
    told = (lambda: register, lambda message: None, collect, errors.append, lambda metrics: metrics)
    link = AgentLink(nobody, *told)
    link.start()

    def woken() -> bool:
        link.wake()
        return len(looks) >= 4

    until(woken)
    link.close(Goodbye(HEAD, 0))

    ticks = [later - sooner for sooner, later in itertools.pairwise(looks[:4])]
    assert min(ticks) > 0.9 * TICK
    assert errors == []
