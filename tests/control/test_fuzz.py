"""Whatever is said to the agent or on the bus: it is dropped and counted, and nothing dies."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import LONGEST, encode
from torchloom.client import plane as door
from torchloom.messages.plane import VERSION, Goodbye, Head, Ready

from ..harness import absurd_messages as absurd
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Job, Plane

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
AGENT = os.uname().nodename
PARTS = ("nats", "weaver", "agent")
JOB = "fuzzed"


def head(generation: int = 3, rank: int = 0, life: str = "l1", job: str = JOB) -> Head:
    return Head(VERSION, job, generation, rank, life)


def counts(plane: Plane) -> tuple[Counter[str], Counter[str]]:
    """Return what the agent and the weaver say that they dropped."""
    told = json.loads((door.folder() / "agent.json").read_text())
    told["dropped"].pop("no_such_rank", 0)  # answers to somebody who has hung up by then
    return Counter(told["dropped"]), Counter(plane.status()["dropped"])


def babble(tmp_path: Path, calls: list[bytes], job: str) -> None:
    """Call the agent once for each of these, as a process of this job."""
    words = tmp_path / "words"
    words.write_text("".join(f"{call.hex()}\n" for call in calls))
    agent = str(door.folder() / "agent.sock")
    argv = [sys.executable, str(SCRIPTS / "babble.py"), str(words), agent]
    subprocess.run(argv, check=True, timeout=120, env={**os.environ, "LOOM_JOB": job})


def publish(user: str, told: list[tuple[str, bytes]], complaints: int = 0) -> list[str]:
    """Say these on the bus as a user of it; return what the server complained about.

    The client is told of complaints when it likes; so many are waited for.
    """
    wrong: list[str] = []
    heard = asyncio.Semaphore(0)

    async def complain(error: Exception) -> None:
        wrong.append(str(error))
        heard.release()

    async def say() -> None:
        found = door.find()
        assert found is not None
        keys = Path(os.environ["LOOM_HOME"], "plane", "keys", user)
        client = await nats.connect(
            found["nats"], user_credentials=str(keys), error_cb=complain, max_reconnect_attempts=0
        )
        for subject, data in told:
            await client.publish(subject, data)
        await client.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE / 2):
                for _ in range(complaints):
                    await heard.acquire()
        await client.close()

    asyncio.run(say())
    return wrong


def settle(look: Callable[[], object], expected: object) -> None:
    """Come back when what is seen is what is expected; show both when it does not become so."""
    with contextlib.suppress(AssertionError):
        until(lambda: look() == expected, PATIENCE / 2)
    assert look() == expected


def lives(plane: Plane, job: Job, before: dict[str, int]) -> None:
    """Check that no process was replaced, that the job is steered and training goes on."""
    outcome = job.set({"lr": 0.01 + job.step() / 1e6})
    job.passes(5)
    assert {part: plane.pid(part) for part in PARTS} == before
    assert (outcome["state"], len(outcome["ranks"])) == ("applied", job.world)


@pytest.fixture
def job(plane: Plane, start: Callable[..., Job]) -> Job:
    return start("ddp.py", 2, PAUSE=0.005).ready()


def test_what_is_wrong_on_the_agents_socket_is_dropped_and_counted_by_its_reason(
    plane: Plane, job: Job, tmp_path: Path
) -> None:
    pids = {part: plane.pid(part) for part in PARTS}
    before, _ = counts(plane)
    hello = absurd.framed(encode(absurd.register(head())))
    old = absurd.framed(encode(absurd.register(head(1, life="l0"))))
    foreign = absurd.register(head(job=job.id, rank=1))
    calls = [
        *(absurd.framed(data) for data in absurd.malformed(head())),
        absurd.framed(b"x" * (LONGEST + 1)),
        absurd.framed(b"x", 2**32 - 1),
        hello[:-3],
        absurd.framed(encode(foreign)),
        absurd.framed(encode(Goodbye(head(), 1))),
        hello + absurd.framed(encode(Goodbye(head(job=job.id), 1))),
        hello + absurd.framed(encode(Goodbye(head(rank=5), 1))),
        hello + old,
        old + absurd.framed(encode(Ready(head(1, life="l0"), "c/1", 1, 1))),
    ]

    babble(tmp_path, calls, JOB)

    wrong = len(absurd.malformed(head()))
    expected = {"malformed": wrong - 1, "version": 1, "oversized": 2, "foreign_job": 2}
    expected |= {"unregistered": 1, "foreign_rank": 2, "old_incarnation": 1, "old_generation": 1}
    settle(lambda: dict(counts(plane)[0] - before), expected)
    lives(plane, job, pids)


def test_what_is_wrong_on_the_bus_is_dropped_and_counted_by_its_reason(
    plane: Plane, job: Job
) -> None:
    pids = {part: plane.pid(part) for part in PARTS}
    _, before = counts(plane)
    wrong = absurd.malformed(head())
    # a Goodbye of another version is only where a Goodbye may be said a matter of its version
    ours = {what: f"{subjects.PREFIX}.agent.{AGENT}.{what}" for what in ("hello", "beat", "acts")}
    old = Head(VERSION, job.id, -1, 0, "nobody")
    told = [(subject, data) for subject in ours.values() for data in wrong]
    told += [(subjects.DEVICE_EVENTS, data) for data in wrong]
    stranger = subjects.heartbeat("somebody-else")

    as_agent = publish(
        f"agents/{AGENT}.creds", [*told[:-6], (ours["acts"], encode(Ready(old, "c/1", 1, 1)))]
    )
    as_door = publish("door.creds", told[-6:])
    refused = publish(f"agents/{AGENT}.creds", [(stranger, b""), (subjects.DEVICE_EVENTS, b"")], 2)
    refused += publish("door.creds", [(ours["acts"], b"")], 1)

    expected = {"malformed": 4 * len(wrong) - 1, "version": 1, "unknown_rank": 1}
    settle(lambda: dict(counts(plane)[1] - before), expected)
    assert as_agent == as_door == []
    assert len(refused) == 3
    assert all("permissions violation" in words.lower() for words in refused), refused
    lives(plane, job, pids)


def test_absurd_messages_and_five_hundred_mutated_ones_kill_nobody(
    plane: Plane, job: Job, tmp_path: Path
) -> None:
    pids, dice = {part: plane.pid(part) for part in PARTS}, random.Random(7)
    hello, said = encode(absurd.register(head(life="l9"))), absurd.records(head(life="l9"))
    calls = [absurd.framed(hello) + b"".join(absurd.framed(encode(one)) for one in said)]
    changed = list(absurd.mutated(said, dice, 250))
    calls += [absurd.framed(hello) + b"".join(map(absurd.framed, changed))]
    calls += [bytes(dice.randrange(256) for _ in range(200)) for _ in range(20)]
    of_agents = absurd.of_agents(AGENT, head(life="l8"))
    told = [(what, encode(message)) for what, message in of_agents]
    told += [
        (what, data)
        for what, data in zip(
            dice.choices(("beat", "records", "acts", "hello"), k=250),
            absurd.mutated([message for _, message in of_agents], dice, 250),
            strict=True,
        )
    ]
    subject = f"{subjects.PREFIX}.agent.{AGENT}."

    babble(tmp_path, calls, JOB)
    publish(f"agents/{AGENT}.creds", [(subject + what, data) for what, data in told])

    stored = plane.status()["stored"]
    lives(plane, job, pids)
    until(lambda: plane.status()["stored"] > stored and not plane.status()["backlog"])
    lives(plane, job, pids)
    assert sum(counts(plane)[1].values()) > 100
