"""Agents of two jobs on one bus: each speaks for its own job, and hears what is for it alone.

The plane is one of `loom up`: its NATS server, its weaver, and tokens that it signs for agents of
other nodes as a launch process asks for them. What the weaver made of it is read from its database.
"""

import asyncio
import base64
import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import nats.errors
import nkeys
import pytest

from torchloom.bus import subjects
from torchloom.bus.nats.client import NatsBus, new_key
from torchloom.client import plane as door
from torchloom.messages.plane import Event, Goodbye, Metrics
from torchloom.plane.credentials import Credentials

from ..control.conftest import database, place, plane
from ..harness.fake_agents import FakeAgent, job_event, register
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Plane

__all__ = ["database", "place", "plane"]

pytestmark = pytest.mark.process
OURS, THEIRS = "job-ours", "job-theirs"


class Admitted:
    """The agent of a job on another node, which the plane has let in."""

    def __init__(self, job: str, node: str, folder: Path) -> None:
        self.job, self.name = job, subjects.agent_of_job(node, job)
        self.seed, key = new_key()
        told = door.ask_control("admit", agent=self.name, key=key)
        self.token, self.url = str(told["token"]), str(told["nats"])
        self.creds = folder / f"{job}.creds"
        self.creds.write_text(
            f"-----BEGIN NATS USER JWT-----\n{self.token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.seed}\n------END USER NKEY SEED------\n"
        )
        self.creds.chmod(0o600)

    async def agent(self) -> FakeAgent:
        """Connect as the product's agents do."""
        known, inbox = (self.token, self.seed), subjects.inbox(self.name)
        bus = await NatsBus.connect(self.url, credentials=known, inbox=inbox, name=self.name)
        agent = FakeAgent(bus, self.name, f"host-of-{self.job}")
        await agent.start()
        return agent


@pytest.fixture
def ours(plane: Plane, tmp_path: Path) -> Admitted:
    return Admitted(OURS, "n2", tmp_path)


@pytest.fixture
def theirs(plane: Plane, tmp_path: Path) -> Admitted:
    return Admitted(THEIRS, "n3", tmp_path)


def rows(part: str, query: str, *words: Any) -> list[tuple[Any, ...]]:
    """Read the plane's database past the plane."""
    path = Path(os.environ["LOOM_HOME"], "plane", f"{part}.db")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        found: list[tuple[Any, ...]] = database.execute(query, words).fetchall()
    database.close()
    return found


def dropped(plane: Plane, why: str) -> int:
    return int(plane.status()["dropped"].get(why, 0))


def not_theirs(theirs: str) -> Iterator[tuple[str, str]]:
    """Yield what an agent must not do: publish on a subject, or subscribe to it."""
    for what in ("hello", "beat", "records", "acts", "stacks", "devices", "checkpoints", "down"):
        yield "publish", f"{subjects.PREFIX}.agent.{theirs}.{what}"
    for name in ("jobs", "set", "stop", "submit"):
        yield "publish", subjects.door(name)
    yield "publish", f"{subjects.inbox(theirs)}.1"
    yield "publish", f"{subjects.inbox('weaver')}.1"
    yield "publish", subjects.DEVICE_EVENTS
    yield "publish", subjects.DEVICE_ALERTS
    for wide in (">", "*.>", subjects.EVERYTHING, f"{subjects.PREFIX}.agent.*.down"):
        yield "subscribe", wide
    for wide in (subjects.RECORDS, subjects.HELLOS, f"{subjects.PREFIX}.inbox.*.>", "_INBOX.>"):
        yield "subscribe", wide
    yield "subscribe", subjects.down(theirs)
    yield "subscribe", f"{subjects.inbox(theirs)}.>"
    yield "subscribe", f"{subjects.PREFIX}.door.*"
    yield "subscribe", "$SYS.>"


async def complaints(admitted: Admitted, forbidden: list[tuple[str, str]]) -> list[str]:
    """Try what is forbidden, and return what the server said about each."""
    said: list[str] = []
    heard: list[str] = []

    async def complain(error: Exception) -> None:
        said.append(str(error).lower())

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    client = await nats.connect(
        admitted.url, user_credentials=str(admitted.creds), error_cb=complain
    )
    for how, subject in forbidden:
        if how == "publish":
            await client.publish(subject, b"x")
        else:
            await client.subscribe(subject, cb=hear)
    await client.flush(int(PATIENCE))
    async with asyncio.timeout(PATIENCE):
        while len(said) < len(forbidden):  # noqa: ASYNC110 - the client tells of them by and by
            await asyncio.sleep(0.01)
    await client.close()
    assert heard == []
    return said


def test_an_agent_can_neither_publish_nor_hear_what_is_not_its_own(
    plane: Plane, ours: Admitted, theirs: Admitted
) -> None:
    forbidden = list(not_theirs(theirs.name))

    said = asyncio.run(complaints(ours, forbidden))

    assert len(said) == len(forbidden)
    assert all("permissions violation" in one for one in said), said
    for _, subject in forbidden:
        assert any(f'"{subject.lower()}"' in one for one in said), subject


def test_an_agent_is_not_heard_about_another_job_on_its_own_subjects(
    plane: Plane, ours: Admitted, theirs: Admitted
) -> None:
    before = dropped(plane, "foreign_job")
    rank, intruder = register(job=THEIRS), register(job=THEIRS, generation=5, incarnation="evil")

    async def run() -> None:
        victim, mallory = await theirs.agent(), await ours.agent()
        victim.rank(rank)
        await victim.act(job_event("job", THEIRS, name="theirs"))
        await victim.hello()
        await mallory.hello()
        mallory.rank(intruder)
        said = [intruder, job_event("job_ended", THEIRS, state="FAILED", reason="evil")]
        said += [job_event("job", "job-of-nobody", name="evil"), Goodbye(rank.head, 3)]
        for one in said:
            await mallory.act(one)
        await mallory.send(
            rank.head, 1, Event(rank.head, "exit", 3, time.time(), {"reason": "evil"})
        )
        await mallory.send(intruder.head, 1, Metrics(intruder.head, ("evil",), ((1, 1.0, 9.0),)))
        with pytest.raises(TimeoutError):  # with a rank of theirs it is not answered
            async with asyncio.timeout(1):
                await mallory.hello()
        await victim.send(rank.head, 1, Metrics(rank.head, ("loss",), ((1, 1.0, 0.5),)))
        await victim.stored(rank.head, 1)
        await mallory.bus.close()
        await victim.bus.close()

    asyncio.run(run())

    until(lambda: dropped(plane, "foreign_job") - before >= 7, PATIENCE)
    assert rows("state", "SELECT state FROM jobs WHERE id = ?", THEIRS) == [("RUNNING",)]
    assert rows("state", "SELECT id FROM jobs WHERE id = 'job-of-nobody'") == []
    found = rows("state", "SELECT agent, generation, state FROM ranks WHERE job = ?", THEIRS)
    assert [row[:2] for row in found] == [(theirs.name, 0)]
    assert rows("records", "SELECT name FROM series WHERE job = ?", THEIRS) == [("loss",)]
    assert rows("records", "SELECT kind FROM events WHERE job = ? AND kind = 'exit'", THEIRS) == []


def test_an_agent_is_heard_about_its_own_job_on_its_own_subjects(
    plane: Plane, ours: Admitted
) -> None:
    rank = register(job=OURS)

    async def run() -> None:
        agent = await ours.agent()
        agent.rank(rank)
        await agent.hello()
        await agent.send(rank.head, 1, Metrics(rank.head, ("loss",), ((1, 1.0, 0.5),)))
        await agent.stored(rank.head, 1)
        await agent.bus.close()

    asyncio.run(run())

    assert rows("state", "SELECT agent FROM ranks WHERE job = ?", OURS) == [(ours.name,)]


class Raw:
    """A connection to the server made by hand: what was sent once can be sent again."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.channel = socket.create_connection((where.hostname, where.port or 0), PATIENCE)
        self.file = self.channel.makefile("rb")
        self.nonce = str(json.loads(self.file.readline().partition(b" ")[2])["nonce"])

    def connect(self, line: bytes) -> bytes:
        """Say who is here, and return what the server answers."""
        self.channel.sendall(line + b"PING\r\n")
        return bytes(self.file.readline()).strip()

    def close(self) -> None:
        self.file.close()
        self.channel.close()


def connect_line(token: str, seed: str, nonce: str) -> bytes:
    signed = nkeys.from_seed(bytearray(seed, "ascii")).sign(nonce.encode())
    signature = base64.urlsafe_b64encode(signed).decode().rstrip("=")
    facts = {"jwt": token, "sig": signature, "verbose": False, "pedantic": False}
    return b"CONNECT " + json.dumps({**facts, "lang": "test", "version": "1"}).encode() + b"\r\n"


def entered(url: str, line: Callable[[str], bytes]) -> bytes:
    raw = Raw(url)
    try:
        return raw.connect(line(raw.nonce))
    finally:
        raw.close()


def test_what_was_overheard_or_belongs_to_another_key_does_not_let_in(
    ours: Admitted, theirs: Admitted
) -> None:
    used: list[bytes] = []

    def own(nonce: str) -> bytes:
        used.append(connect_line(ours.token, ours.seed, nonce))
        return used[-1]

    assert entered(ours.url, own) == b"PONG"
    assert b"Authorization Violation" in entered(ours.url, lambda nonce: used[0])
    assert b"Authorization Violation" in entered(
        ours.url, lambda nonce: connect_line(ours.token, theirs.seed, nonce)
    )


def test_a_token_whose_time_is_over_ends_its_connection_and_lets_nobody_in(
    plane: Plane, ours: Admitted
) -> None:
    keys = Credentials(Path(os.environ["LOOM_HOME"], "plane", "keys"))
    key = nkeys.from_seed(bytearray(ours.seed, "ascii")).public_key.decode()
    token = keys.vouch_for_agent(ours.name, key, 2.0)
    raw = Raw(ours.url)

    assert raw.connect(connect_line(token, ours.seed, raw.nonce)) == b"PONG"
    ended = bytes(raw.file.readline())  # it has a patience of its own
    raw.close()

    assert b"User Authentication Expired" in ended
    refused = b"Authorization Violation"  # the server counts whole seconds
    again = lambda: entered(ours.url, lambda nonce: connect_line(token, ours.seed, nonce))  # noqa: E731
    until(lambda: refused in again(), 10.0)
