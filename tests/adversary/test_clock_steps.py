"""The clock of a host is set by an hour, forward and back, under a plane and a job.

Every process lives by a clock of the test (`clock.py`) but the NATS server, which asks the kernel
without the C library. The steady clock is left alone, as a real step leaves it.
Steps are judged by the ranks' own files and by the plane's databases, read past the plane.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from ..control.conftest import database, living, plane, warm
from ..harness.chaos_training import Training
from ..harness.home import processes_of, until
from ..harness.metric_rows import in_file
from ..harness.plane_jobs import PATIENCE, Plane, loom
from .clock import Clock
from .test_nats_rights import Admitted

__all__ = ["database", "plane", "warm"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs("torch"),
    pytest.mark.needs("cc"),
]
HOUR = 3600.0
WORLD, STEPS, PACE = 2, 100_000, 0.02
MORE = 40  # steps of every rank behind a step of the clock
SETTINGS = [HOUR, -HOUR]  # of the clock, one after the other: forward, then back by two hours
MORE_SETTINGS = [HOUR, 0.0, -HOUR, 0.0]
SILENT = 20  # seconds within which an agent that is silent is noticed; it takes two
EXPECTED = {  # to happen; whatever is not among these was caused by the clock
    *("user_put", "token_added", "agent_up", "job_started", "job_state", "exit", "live"),
    *("rank_up", "rank_gone", "regrouping", "recovered"),
    *("checkpoint_committed", "checkpoint_removed"),
    *(f"command_{state}" for state in ("accepted", "preparing", "committed", "applied")),
}
LIFE = 397 * 86_400.0  # seconds for which a certificate is good
MAKE = """
import pathlib, sys
from torchloom.plane.certificates import certificate
certificate(pathlib.Path(sys.argv[1]), "127.0.0.1")
"""
WRONG = re.compile(r"this is a bug|Traceback \(most recent call last\)")


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clock]:
    """Give whatever this module starts a clock of its own."""
    made = Clock(tmp_path_factory.mktemp("clock"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def place(clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the module a state folder, and end what still runs for it."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("home", "loom", "run", "work"):
        (folder / name).mkdir(mode=0o700)
    yield folder
    for pid in living(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until(lambda: not living(folder), PATIENCE)


@pytest.fixture
def training(plane: Plane, warm: None, tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "job", WORLD, STEPS, pace=PACE, EVERY=200)
    yield made
    if processes_of(made.id):
        loom("stop", "--now", made.id)


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has just ended
        return ""


def rank_pid(job: str, rank: int) -> int:
    """Return the process of a rank, by its environment; 0 while there is none."""
    for pid in processes_of(job):
        words = read(f"/proc/{pid}/environ").split("\0")
        if f"RANK={rank}" in words:
            return pid
    return 0


def steps_of(training: Training, rank: int) -> list[int]:
    """Return the numbers that a rank wrote, in the order in which it wrote them."""
    whole = (training.out / f"rank-{rank}").read_bytes()
    return [json.loads(line)[0] for line in whole.split(b"\n")[:-1]]


def passes(training: Training, more: int = MORE) -> None:
    goals = [steps_of(training, rank)[-1] + more for rank in range(WORLD)]
    until(lambda: all(steps_of(training, r)[-1] >= goal for r, goal in enumerate(goals)), PATIENCE)


def happened(plane: Plane, job: str = "") -> list[tuple[float, str, str]]:
    """Return time, kind and reason of the plane's events, as they were stored."""
    query = "select time, kind, reason from events where ? in ('', job) order by seq"
    with plane.database("state") as base:
        return base.execute(query, (job,)).fetchall()


def state_of(plane: Plane, job: str) -> str:
    with plane.database("state") as base:
        found: str = base.execute("select state from jobs where id = ?", (job,)).fetchone()[0]
        return found


def count(plane: Plane, job: str, wanted: str) -> int:
    """Return how often something happened to a job."""
    return sum(kind == wanted for _, kind, _ in happened(plane, job))


def steer(training: Training, plane: Plane, lr: float) -> None:
    """Use the verbs of a running job, each of which must do what it is for."""
    job = training.id
    listed = [one["state"] for one in json.loads(loom("ls", "--json")) if one["id"] == job]
    assert (listed, json.loads(loom("show", "--json", job))["state"]) == (["RUNNING"], "RUNNING")
    assert json.loads(loom("set", "--json", job, f"lr={lr}"))["state"] == "applied"
    before = count(plane, job, "checkpoint_committed")
    loom("checkpoint", job)
    until(lambda: count(plane, job, "checkpoint_committed") > before, PATIENCE)


def printed(job: str, *words: str) -> list[int]:
    """Return which steps `loom logs` shows as printed."""
    return [int(number) for number in re.findall(r"step (\d+)", loom("logs", *words, job))]


def kill(training: Training, plane: Plane, rank: int) -> None:
    """End a rank by force; come back when it was recovered live."""
    job = training.id
    before, old = count(plane, job, "recovered"), rank_pid(job, rank)
    os.kill(old, signal.SIGKILL)
    until(lambda: count(plane, job, "recovered") > before, PATIENCE)
    until(lambda: rank_pid(job, rank) not in (0, old), PATIENCE)


def wrong_words(folder: Path) -> list[str]:
    """Return what processes wrote into their logs that they should not have to."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and (path.suffix in (".log", ".old") or path.name == "events.jsonl"):
            found += [f"{path}: {line}" for line in WRONG.findall(path.read_text(errors="replace"))]
    return found


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SETTINGS, id="short"),
        pytest.param(MORE_SETTINGS, id="long", marks=pytest.mark.soak),
    ],
)
def test_a_step_of_the_clock_disturbs_neither_plane_nor_job(
    settings: list[float], clock: Clock, plane: Plane, place: Path, training: Training
) -> None:
    job = training.id
    until(lambda: training.is_live() and len(steps_of(training, 0)) > MORE, PATIENCE)
    everything = living(place) | processes_of(job)
    assert {pid for pid in everything if not clock.is_of(pid)} == {plane.pid("nats")}

    for number, ahead in enumerate(settings):
        before = steps_of(training, 0)[-1]
        clock.set(ahead)
        passes(training)
        steer(training, plane, 0.01 * (number + 1))
        assert min(printed(job, "--since", "1s")) >= before
        if ahead < 0:
            plane.back("weaver", plane.kill("weaver"))
        kill(training, plane, number % WORLD)
        passes(training)
        assert state_of(plane, job) == "RUNNING"
    clock.set(0.0)
    loom("stop", job)
    until(lambda: not processes_of(job), PATIENCE)

    for rank in range(WORLD):  # a step that a death interrupted may be there twice
        steps = list(dict.fromkeys(steps_of(training, rank)))
        assert steps == list(range(len(steps)))
    assert sorted(set(printed(job))) == list(range(len(steps)))
    points = metrics(place, job)
    assert list(points) == list(range(len(steps)))
    eras = {round((time - points[0]) / HOUR) for time in points.values()}
    assert eras == {round(ahead / HOUR) for ahead in (0.0, *settings)}
    events = happened(plane)
    assert eras == {round((time - points[0]) / HOUR) for time, *_ in events}
    assert {kind for _, kind, _ in events} <= EXPECTED
    deaths = [reason for _, kind, reason in happened(plane, job) if kind == "rank_gone"]
    killed = [f"exit_signal_9_rank_{number % WORLD}" for number in range(len(settings))]
    assert deaths == [*killed, *["ended"] * WORLD]
    assert state_of(plane, job) == "CANCELLED"
    assert wrong_words(place) == []


def test_an_agent_that_falls_silent_is_lost_though_the_clock_is_set_again_and_again(
    clock: Clock, plane: Plane
) -> None:
    until(plane.is_whole, PATIENCE)
    before = len([kind for _, kind, _ in happened(plane) if kind == "agent_lost"])
    agent, began = plane.kill("agent", signal.SIGSTOP), time.monotonic()

    try:
        for number in range(2 * SILENT):  # by the time of day nobody would ever be silent
            clock.set(HOUR if number % 2 else 0.0)
            time.sleep(0.5)
            lost = [reason for _, kind, reason in happened(plane) if kind == "agent_lost"][before:]
            if lost:
                break
    finally:
        clock.set(0.0)
        os.kill(agent, signal.SIGCONT)
    until(plane.is_whole, PATIENCE)

    assert lost, f"not lost after {time.monotonic() - began:.0f} s"
    assert lost[0].startswith("silent for ")


def metrics(place: Path, job: str) -> dict[int, float]:
    """Return when each step was logged by the rank that did so last, in the order of the steps."""
    shown = in_file(place / "loom" / "plane" / "records.db")
    found = [(at[4], point.time) for at, point in shown.items() if at[:2] == (job, "loss")]
    return dict(sorted(found))


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_tokens_and_links_end_by_the_time_of_day_and_nothing_else_does(
    ahead: float, clock: Clock, plane: Plane
) -> None:
    found = json.loads(loom("up", "--status", "--json"))
    admin = httpx.Client(base_url=found["url"], headers=bearer(found["token_file"]))
    guest = httpx.Client(base_url=found["url"])
    clock.set(0.0)
    with admin, guest:
        lives = {"short": HOUR / 2, "long": 2 * HOUR}
        tokens = {name: token_for(admin, name, seconds) for name, seconds in lives.items()}
        code = admin.post("/api/links", json={"user": "guest"}).json()["code"]
        while (refused := login(guest, "guess")).status_code != 429:
            assert refused.status_code == 401
        began, wait = time.monotonic(), int(refused.headers["retry-after"])

        clock.set(ahead)

        again = login(guest, "guess")
        is_held = again.status_code == 429 and int(again.headers["retry-after"]) <= wait
        assert is_held or time.monotonic() - began > wait - 1
        assert login(guest, code).status_code == 200
        until(lambda: who(guest, tokens["short"]) == (401 if ahead > 0 else 200), PATIENCE)
        assert who(guest, tokens["long"]) == 200
        clock.set(0.0)
        until(lambda: who(guest, tokens["short"]) == 200, PATIENCE)


def bearer(path: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {Path(path).read_text().strip()}"}


def token_for(admin: httpx.Client, label: str, seconds: float) -> str:
    wanted = {"user": "admin", "label": label, "seconds": seconds}
    made = admin.post("/api/tokens", json=wanted)
    assert made.status_code == 201, made.text
    secret: str = made.json()["token"]
    return secret


def login(guest: httpx.Client, code: str) -> httpx.Response:
    return guest.post("/api/login", json={"code": code, "kind": "token"})


def who(guest: httpx.Client, token: str) -> int:
    return guest.get("/api/me", headers={"Authorization": f"Bearer {token}"}).status_code


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_token_of_nats_from_another_hour_is_good_at_once(
    ahead: float, clock: Clock, plane: Plane, tmp_path: Path
) -> None:
    clock.set(ahead)  # of the plane, which signs it; the NATS server has the real one
    admitted = Admitted("job-elsewhere", "n2", tmp_path)
    clock.set(0.0)

    async def greet() -> None:
        agent = await admitted.agent()
        await agent.bus.close()

    asyncio.run(greet())
    body = admitted.token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert abs(claims["iat"] - time.time() - ahead) < HOUR / 2
    assert "nbf" not in claims


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_certificate_from_another_hour_is_good_at_once(
    ahead: float, clock: Clock, tmp_path: Path
) -> None:
    clock.set(ahead)
    subprocess.run([sys.executable, "-c", MAKE, str(tmp_path)], check=True)
    clock.set(0.0)

    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    moved = certificate.not_valid_after_utc.timestamp() - LIFE - time.time()
    assert abs(moved - ahead) < HOUR / 2
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    client.load_verify_locations(tmp_path / "authority" / "ca.pem")
    shake_hands(server, client)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Have both sides agree, with no network between; a certificate that is not good is refused."""
    ways = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(ways[0], ways[1], server_hostname="127.0.0.1"),
        server.wrap_bio(ways[1], ways[0], server_side=True),
    ]
    for side in sides * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert sides[0].cipher() is not None
