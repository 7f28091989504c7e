"""The queue between a rank and its agent, which both sides must count alike."""

from torchloom.worker.threadlet.link import Queue


def sent_all(queue: Queue) -> list[bytes]:
    """Send what there is on this connection."""
    out = []
    while (data := queue.next) is not None:
        out.append(data)
        queue.sent()
    return out


def test_frames_are_sent_once_and_forgotten_when_they_are_kept() -> None:
    queue = Queue()
    for data in (b"a", b"b", b"c"):
        queue.put(data)

    first = sent_all(queue)
    queue.kept(2)
    queue.put(b"d")

    assert first == [b"a", b"b", b"c"]
    assert sent_all(queue) == [b"d"]


def test_another_connection_gets_what_was_not_kept() -> None:
    queue = Queue()
    for data in (b"a", b"b", b"c"):
        queue.put(data)
    sent_all(queue)

    queue.kept(1)
    queue.again()
    queue.kept(2)  # what the next agent says when it answers

    assert sent_all(queue) == [b"c"]


def test_an_agent_that_has_lost_its_disk_gets_what_is_left() -> None:
    queue = Queue()
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
    queue = Queue(most=10)
    queue.put(b"sent", 5)
    queue.sent()
    queue.put(b"n1", 2)
    queue.put(b"n2", 3)
    queue.put(b"ev")
    queue.put(b"n3", 4)

    assert sent_all(queue) == [b"n1", b"ev", b"n3"]
    assert queue.lost == 3
