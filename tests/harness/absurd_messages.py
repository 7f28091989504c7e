"""Messages that nobody of ours would send: malformed, foreign, outdated, absurd."""

import random
import struct
from collections.abc import Iterator
from typing import Any

from torchloom.bus.codec import encode
from torchloom.messages.plane import (
    VERSION,
    Applied,
    Batch,
    Decided,
    Event,
    Goodbye,
    Head,
    Heartbeat,
    Hello,
    Message,
    Metrics,
    Progress,
    RankRefusal,
    Ready,
    Register,
)

HUGE = 2**63 + 5  # more than a database takes
WORDS = ("", "a/b/../c", "x" * 5000, "\0", "'; drop table ranks; --", "日本")


def register(head: Head, **changed: Any) -> Register:
    """Return how a rank introduces itself."""
    facts: dict[str, Any] = {"role": "trainer", "local_rank": 0, "node": "here", "pid": 1}
    facts |= {"started": 1, "replica": "A", "devices": ("here/cpu/0",), "boundary": "api"}
    return Register(head, **{**facts, **changed})


def records(head: Head) -> list[Message]:
    """Return what a rank may say about itself, in numbers and words that mean nothing."""
    return [
        *(register(head, role=word, node=word, replica=word, devices=(word,)) for word in WORDS),
        register(head, pid=HUGE, started=HUGE, local_rank=HUGE, world_size=HUGE),
        register(head, pid=-1, started=-1, local_rank=-HUGE // 4, page="/etc/passwd"),
        register(head, devices=tuple(f"d{at}" for at in range(500))),
        Metrics(head, ("loss",), ((1, 2.0, "text"), (None, None, None), (), (HUGE, 1e300, [1]))),
        Metrics(head, ("", "\0", "loss"), ((-5, float("nan"), float("inf"), True),)),
        Event(head, "exit", HUGE, float("nan"), {"code": {"a": [1, None]}}),
        Event(head, "nan", -1, -1.0, {}),
        Event(head, "job", 0, 0.0, {"policy": [1], "attempt": "x", "name": 5, "state": {}}),
        Event(head, "job_ended", 0, 0.0, {"state": "FLYING"}),
        *(Ready(head, word, HUGE, -1) for word in (*WORDS, "c/1", "c/x", "c/-1", "c/1/2")),
        RankRefusal(head, "c/1", "\0" * 100),
        Decided(head, "c/1", HUGE),
        Applied(head, "c/1", -HUGE // 4, {"a": 1}, [None]),
        Goodbye(head, HUGE),
    ]


def of_agents(agent: str, head: Head) -> list[tuple[str, Message]]:
    """Return what an agent may say, each with the last word of its subject."""
    progress = Progress(head, HUGE, 77, float("nan"), -1.0)
    data = tuple(encode(record) for record in records(head))
    return [
        ("beat", Heartbeat(head, agent, float("inf"), (progress,) * 100)),
        ("beat", Heartbeat(head, "somebody-else", 0.0)),
        ("records", Batch(head, agent, 1, (*data, b"", b"\xff"))),
        ("records", Batch(head, agent, -3, data)),
        ("records", Batch(head, agent, HUGE, data, HUGE, HUGE)),
        ("records", Batch(head, "somebody-else", 1, data)),
        ("hello", Hello(head, "somebody-else", "here", "boot", 1, 0)),
        *(("acts", record) for record in records(head)),
    ]


def malformed(head: Head) -> list[bytes]:
    """Return bytes that are no message of this version, each for one reason."""
    whole = encode(Goodbye(head, 1))
    other = Head(VERSION + 1, *[getattr(head, name) for name in head.__struct_fields__[1:]])
    return [
        b"",
        b"\xc1",
        whole[:-1],
        whole[: len(whole) // 2],
        b"\x00" * 64,
        encode(Goodbye(other, 1)),
    ]


def mutated(messages: list[Message], dice: random.Random, count: int) -> Iterator[bytes]:
    """Yield messages with some of their bytes changed, left out or doubled."""
    for _ in range(count):
        data = bytearray(encode(dice.choice(messages)))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(3):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 8)]
                case 2:
                    data[at:at] = data[at : at + dice.randint(1, 8)]
            data = data or bytearray(b"\0")
        yield bytes(data)


def framed(data: bytes, length: int | None = None) -> bytes:
    """Return bytes as a rank sends them to its agent, with their length or another before them."""
    return struct.pack("!I", len(data) if length is None else length) + data
