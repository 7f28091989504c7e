"""Whatever is sent to a plane's unix sockets, bus and pages: it is refused, and no part ends.

The plane is one of `loom up`, with a job that trains nothing. The bus is spoken to with the
credentials of its own agent, so that everything a broken agent could send arrives at the weaver.
"""

import asyncio
import json
import os
import random
import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.progress_page import ProgressPage
from torchloom.client import plane as door
from torchloom.client.plane import folder
from torchloom.messages.plane import VERSION, Head
from torchloom.unix import HEADER

from ..control.conftest import database, place, plane
from ..harness import absurd_messages as absurd
from ..harness.home import processes_of, until
from ..harness.plane_jobs import PATIENCE, Plane, loom
from . import fuzzing
from .fuzzing import Dice, Fuzz, Watched
from .test_nats_rights import Raw, connect_line

__all__ = ["database", "place", "plane"]

pytestmark = pytest.mark.process
AGENT = os.uname().nodename
WAIT = 0.01  # seconds for which questions wait
_SILENCE = 20.0  # seconds in which a part closes a connection whose client has said all
_IDLE = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"


@dataclass
class Target:
    """A plane with a job, each of whose processes is to live on."""

    plane: Plane
    job: str
    watched: list[Watched]

    def fuzz(self, target: str, seconds: float) -> Fuzz:
        logs = Path(os.environ["LOOM_HOME"], "plane", "logs").glob("*.log")
        return Fuzz(target, seconds, self.watched, sorted(logs))

    def answers(self) -> None:
        """Check that the plane and its agent work together, and that the job runs."""
        assert self.plane.is_whole()
        shown = door.ask("job", job=self.job)
        assert shown["state"] == "RUNNING", shown


@pytest.fixture(scope="module")
def target(plane: Plane) -> Iterator[Target]:
    Path("idle.py").write_text(_IDLE)
    begun = Path("begun").resolve()
    job: str = json.loads(loom("run", "-d", "--json", "idle.py", str(begun)))["id"]
    until(begun.exists, PATIENCE)
    until(lambda: plane.is_whole() and door.ask("job", job=job)["state"] == "RUNNING", PATIENCE)
    watched = [Watched(part, plane.pid(part)) for part in ("nats", "weaver", "agent")]
    found = door.find()
    assert found is not None
    watched.append(Watched("plane", found["pid"]))
    watched += [Watched(f"job {pid}", pid) for pid in sorted(processes_of(job))]
    yield Target(plane, job, watched)
    loom("stop", "--now", job)
    until(lambda: not processes_of(job), PATIENCE)


def call(name: str, data: bytes) -> bytes:
    """Send bytes to a socket of the plane, and return what comes back."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(_SILENCE)
        channel.connect(str(folder() / name))
        return fuzzing.exchange(channel, data)


def framed(dice: Dice, text: bytes) -> bytes:
    """Return a message as our sockets take it; now and then its length or descriptors are lies."""
    length = dice.choice((len(text),) * 6 + (0, len(text) + 1, 2**26, 2**26 + 1, 2**32 - 1))
    count = dice.choice((0,) * 8 + (1, 65_535))
    return HEADER.pack(length, count) + text


def messages(dice: Dice, samples: list[dict[str, Any]]) -> bytes:
    """Return some framed messages, almost right ones and others."""
    match dice.randrange(8):
        case 0:
            return dice.garbage()
        case 1:
            return framed(dice, b"[" * dice.choice((10, 100_000)))
        case 2:
            return dice.mutated([HEADER.pack(0, 0) + json.dumps(one).encode() for one in samples])
        case _:
            some = [dice.choice(samples) for _ in range(dice.randint(1, 4))]
            return b"".join(framed(dice, dice.json(one)) for one in some)


def frames(data: bytes) -> Iterator[Any]:
    """Yield the values of the frames in some bytes, up to the first that is not whole."""
    while len(data) >= HEADER.size:
        length, _ = HEADER.unpack_from(data)
        text, data = data[HEADER.size : HEADER.size + length], data[HEADER.size + length :]
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            return


OF_A_JOB = (
    *("job", "ranks", "metrics", "events", "knobs", "audit", "set", "undo", "stop", "checkpoint"),
    *("digest", "pause", "resume", "cancel", "resize", "stacks", "checkpoints", "experiment"),
    *("compare", "curves", "checkpoint_remove", "checkpoint_verified", "remove"),
)
ALONE = (
    *("status", "jobs", "devices", "device_event", "device_outlook", "users", "user_put", "tokens"),
    *("token_add", "token_revoke", "link_add", "link_use", "submit", "queue", "cluster", "quota"),
    *("quotas", "retain", "retention", "experiments", "watch"),
)
ACTS = (  # these change a job, or wait for its ranks
    *("set", "undo", "stop", "checkpoint", "pause", "resume", "cancel", "resize", "remove"),
    *("digest", "stacks"),
)


def acts_on(job: str, data: bytes) -> bool:
    """Return whether some bytes are a good order for this job, which then rightly obeys.

    No job at all, `@` and the beginning of an id are names of it, too. A question that asks for
    a long wait gets it.
    """
    asked = [one for one in frames(data) if isinstance(one, dict)]
    asked = [one for one in asked if one.get("ask") in ACTS or one.get("wait", 0) not in (0, WAIT)]
    return any(name == "@" or job.startswith(name) for name in map(named, asked))


def named(question: dict[str, Any]) -> str:
    name = question.get("job")
    return name if isinstance(name, str) else ""


def test_the_fuzzer_asks_only_what_the_weaver_knows(target: Target) -> None:
    names = [name for name in (*OF_A_JOB, *ALONE) if name != "watch"]

    assert [name for name in names if b"no question" in asked(name)] == []
    assert b"no question" in asked("watchers")


def asked(name: str) -> bytes:
    text = json.dumps({"ask": name, "version": 1, "job": "none"}).encode()
    return call("weaver.sock", HEADER.pack(len(text), 0) + text)


@fuzzing.short_and_long
def test_questions_of_any_bytes_at_the_weavers_door_end_no_part_of_the_plane(
    target: Target, seconds: float
) -> None:
    facts = {"version": 1, "wait": WAIT, "author": "mallory", "limit": 5, "after": {}, "id": "c"}
    of_job = {"job": "none", "values": {"lr": 0.1}, "step": 3, "ranks": [0], "names": ["loss"]}
    people = {"user": "eve", "role": "viewer", "label": "x", "code": "x", "seconds": 5, "key": "k"}
    samples = [{"ask": name, **facts, **of_job} for name in OF_A_JOB]
    samples += [{"ask": name, **facts, **people, "spec": {"name": 5}} for name in ALONE]

    def attempt(dice: Dice) -> None:
        if not acts_on(target.job, data := messages(dice, samples)):
            no_bug(call("weaver.sock", data))

    target.fuzz("weaver.sock", seconds).run(attempt, target.answers)


def no_bug(heard: bytes) -> None:
    assert b"the weaver failed" not in heard, heard[-2000:]


@fuzzing.short_and_long
def test_questions_of_any_bytes_at_the_planes_socket_end_no_part_of_it(
    target: Target, seconds: float
) -> None:
    samples: list[dict[str, Any]] = [
        {"ask": "status", "version": 1},
        {"ask": "admit", "version": 1, "agent": "n2-job", "key": "U" + "A" * 55},
        {"ask": "ready", "version": 1, "only": "", "pinned": True},
    ]

    def attempt(dice: Dice) -> None:
        call("plane.sock", messages(dice, samples))

    target.fuzz("plane.sock", seconds).run(attempt, target.answers)


@fuzzing.short_and_long
def test_messages_of_any_bytes_at_a_launch_process_socket_end_neither_it_nor_its_job(
    target: Target, seconds: float
) -> None:
    samples: list[dict[str, Any]] = [
        {"say": "ask"},
        {"say": "proof", "proof": "x"},
        {"say": "plane", "node": "n2", "key": "U" + "A" * 55, "challenge": "c"},
        {"say": "exited", "ranks": [{"key": ["trainer", 0], "code": 1}]},
        {"say": "hello", "host": 5},  # a whole one would take the job over
    ]

    def attempt(dice: Dice) -> None:
        call(f"../{target.job}.launch", messages(dice, samples))

    target.fuzz("launch.sock", seconds).run(attempt, target.answers)


def own_head(life: str) -> Head:
    """Return how this process speaks for itself: nobody launched it."""
    return Head(VERSION, f"local-{os.getpid()}", 0, 0, life)


@fuzzing.short_and_long
def test_messages_of_any_bytes_at_the_agents_socket_end_no_part_of_the_plane(
    target: Target, seconds: float
) -> None:
    head = own_head("fuzz")
    said = [encode(one) for one in absurd.records(head)]
    hello = absurd.framed(encode(absurd.register(head)))

    def attempt(dice: Dice) -> None:
        lengths = (None,) * 8 + (0, 1, 2**20 + 1, 2**32 - 1)
        some = [dice.mutated(said) for _ in range(dice.randint(0, 12))]
        data = b"".join(absurd.framed(one, dice.choice(lengths)) for one in some)
        call("agent.sock", hello * (dice.random() < 0.7) + (data or dice.garbage()))

    target.fuzz("agent.sock", seconds).run(attempt, target.answers)


@fuzzing.short_and_long
def test_a_progress_page_of_any_bytes_ends_no_part_of_the_plane(
    target: Target, seconds: float, tmp_path: Path
) -> None:
    path, random_step = tmp_path / "page", random.Random(1)
    ProgressPage.open(path).close()
    whole, head = path.read_bytes(), own_head("paged")
    hello = absurd.framed(encode(absurd.register(head, page=str(path))))

    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(folder() / "agent.sock"))
        channel.sendall(hello)  # the agent reads the page for as long as this is open

        def attempt(dice: Dice) -> None:
            match dice.randrange(5):
                case 0:
                    data = dice.randbytes(dice.randrange(8192))
                case 1:
                    data = b""
                case 2:
                    words = [dice.getrandbits(64) for _ in range(5)]
                    data = whole[:12] + struct.pack("<I5Q", random_step.randrange(9), *words)
                case _:
                    data = dice.mutated([whole[:64]]) + whole[64:]
            path.write_bytes(data)
            if dice.random() < 0.1:
                channel.sendall(absurd.framed(encode(dice.choice(absurd.records(head)))))

        target.fuzz("page", seconds).run(attempt, target.answers)


@fuzzing.short_and_long
def test_payloads_of_any_bytes_on_an_agents_subjects_end_no_part_of_the_plane(
    target: Target, seconds: float
) -> None:
    found, heads = door.find(), [Head(VERSION, "fuzzed", 1, 0, "l8"), own_head("l9")]
    assert found is not None
    creds = Path(os.environ["LOOM_HOME"], "plane", "keys", "agents", f"{AGENT}.creds")
    whats = ("hello", "beat", "records", "acts", "stacks", "devices", "checkpoints", "none", "down")
    said = [encode(one) for head in heads for _, one in absurd.of_agents("nobody", head)]
    said += [encode(one) for head in heads for one in absurd.records(head)]
    refused: list[str] = []
    loop = asyncio.new_event_loop()

    async def complain(error: Exception) -> None:
        refused.append(str(error))

    client = loop.run_until_complete(
        nats.connect(found["nats"], user_credentials=str(creds), error_cb=complain)
    )

    async def publish(dice: Dice) -> None:
        for _ in range(10):
            what = dice.choice(whats)
            data = dice.garbage() if dice.random() < 0.1 else dice.mutated(said)
            reply = f"{subjects.inbox(AGENT)}.{what}" if dice.random() < 0.2 else ""
            await client.publish(f"{subjects.PREFIX}.agent.{AGENT}.{what}", data, reply)
        await client.flush(_SILENCE)

    def attempt(dice: Dice) -> None:
        loop.run_until_complete(publish(dice))

    try:
        target.fuzz("nats", seconds).run(attempt, target.answers)
    finally:
        loop.run_until_complete(client.close())
        loop.close()
    assert refused == []  # all of it were subjects that an agent may publish on


class Speaker:
    """A connection to NATS made by hand, so that subjects may be any bytes."""

    def __init__(self, url: str, user: str) -> None:
        text = Path(os.environ["LOOM_HOME"], "plane", "keys", f"{user}.creds").read_text()
        self._token, self._seed = re.findall(r"-----\n(\S+)\n------", text)
        self._url = url
        self.refused = self.ended = 0
        self._open()

    def _open(self) -> None:
        self._raw = Raw(self._url)
        line = connect_line(self._token, self._seed, self._raw.nonce)
        assert self._raw.connect(line) == b"PONG"

    def hears(self, data: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Send some lines; return subject and payload of what arrives until all are answered."""
        heard = []
        try:
            self._raw.channel.sendall(data + b"PING\r\n")
            while (line := self._raw.file.readline()) != b"PONG\r\n":
                if not line:
                    raise ConnectionResetError
                if line.startswith(b"MSG "):
                    payload = self._raw.file.read(int(line.split()[-1]) + 2)
                    heard.append((line.split()[1], payload[:-2]))
                self.refused += line.startswith(b"-ERR 'Permissions Violation")
        except ConnectionError:  # of a line that is none
            self.ended += 1
            self._raw.close()
            self._open()
        return heard

    def close(self) -> None:
        self._raw.close()


def subject(dice: Dice, samples: list[str]) -> bytes:
    """Return a subject with other parts than a good one, or of any bytes."""
    if dice.random() < 0.05:
        return dice.garbage(300)
    parts = dice.choice(samples).split(".")
    some = [part for sample in samples for part in sample.split(".")]
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        at = dice.randrange(len(parts) + 1)
        own = dice.choice((dice.choice(some), "*", ">", "", dice.word(), dice.choice(some).upper()))
        parts[at : at + dice.randint(0, 2)] = [own] * dice.choice((1, 1, 1, 2, 60))
    name = ".".join(parts).encode(errors="surrogatepass")
    return name if dice.random() < 0.05 else b"".join(name.split()).replace(b"\0", b"")[:3000]


@fuzzing.short_and_long
def test_on_subjects_of_any_name_an_agent_is_heard_and_hears_as_itself_alone(
    target: Target, seconds: float
) -> None:
    found = door.find()
    assert found is not None
    own, inbox = f"{subjects.PREFIX}.agent.{AGENT}.", f"{subjects.inbox(AGENT)}."
    foreign = [subjects.down("n2"), f"{subjects.inbox('n2')}.1", subjects.door("none"), "a.b"]
    samples = [*foreign, f"{own}records", f"{own}down", f"{inbox}1", subjects.DEVICE_EVENTS]
    samples += ["$SYS.REQ.USER.INFO", "$JS.API.INFO", "_INBOX.a.b", subjects.EVERYTHING]
    agent, weaver = Speaker(found["nats"], f"agents/{AGENT}"), Speaker(found["nats"], "weaver")
    weaver.hears(b"SUB %s 1\r\n" % subjects.EVERYTHING.encode())
    canaries = b"".join(
        b"PUB %s 6\r\ncanary\r\n" % name.encode() for name in (*foreign[:3], f"{own}down")
    )
    arrived = delivered = 0

    def lines(dice: Dice, line: Callable[[bytes, int], bytes]) -> bytes:
        return b"".join(line(subject(dice, samples), number) for number in range(20))

    def attempt(dice: Dice) -> None:
        nonlocal arrived, delivered
        heard = agent.hears(lines(dice, lambda name, _: b"PUB %s 4\r\nfuzz\r\n" % name))
        heard += agent.hears(lines(dice, lambda name, number: b"SUB %s %d\r\n" % (name, number)))
        seen = [name for name, data in weaver.hears(canaries) if data == b"fuzz"]
        heard += agent.hears(b"".join(b"UNSUB %d\r\n" % number for number in range(20)))

        assert [name for name in seen if not name.startswith(own.encode())] == []
        mine = (inbox.encode(), f"{own}down".encode())
        assert [name for name, _ in heard if not name.startswith(mine)] == []
        arrived, delivered = arrived + len(seen), delivered + len(heard)

    try:
        target.fuzz("nats-subjects", seconds).run(attempt, target.answers)
    finally:
        agent.close()
        weaver.close()
    assert min(arrived, delivered, agent.refused, agent.ended) > 0  # all of it was tried
