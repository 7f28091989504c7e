"""Many jobs at once over HTTP: stored, answered and cancelled together, whatever happens."""

import contextlib
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from torchloom.client import Client
from torchloom.specs.api import AppState

from ..harness import evidence
from ..harness.home import processes_of, until
from ..harness.metric_senders import Launched, Teller
from ..harness.server_plane import PATIENCE, Plane, Server, running
from .test_log_search import pages, printed

pytestmark = pytest.mark.process
HOLD = {"name": "hold", "command": [sys.executable, "-c", "import time; time.sleep(600)"]}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("plane")
    with running(folder) as started:
        started.env["LOOM_DEVICES"] = "cpu:3"
        started.start_agent()
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    return plane.start_server()


@pytest.fixture(scope="module")
def admin(server: Server, plane: Plane) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
        client.post("/api/jobs/cancel", json={"state": ["RUNNING", "QUEUED"]})


@pytest.fixture(scope="module")
def holder(admin: httpx.Client, plane: Plane) -> Iterator[str]:
    """Take two of the three slots, so that a job of three workers waits."""
    spec = {**HOLD, "resources": {"workers": 2}}
    job = admin.post("/api/jobs", json=spec).json()["id"]
    until(lambda: len(processes_of(job)) > 2, PATIENCE)
    yield job
    admin.delete(f"/api/jobs/{job}")
    until(lambda: not processes_of(job), PATIENCE)


@pytest.fixture
def waiting(admin: httpx.Client, holder: str) -> Iterator[None]:
    """Have a job wait for room that is too big for what is free: others wait behind it."""
    spec = {**HOLD, "name": "big", "resources": {"workers": 3}, "priority": 9}
    admin.post("/api/jobs", json=spec).raise_for_status()
    yield
    admin.post("/api/jobs/cancel", json={"state": ["QUEUED"]}).raise_for_status()


def rows(plane: Plane, query: str) -> list[tuple[Any, ...]]:
    """Read the database with nothing of ours between."""
    path = f"file:{plane.home / 'plane' / 'state.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True)) as base:
        return base.execute(query).fetchall()


def named(prefix: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{**HOLD, "name": f"{prefix}{number}", **more} for number in range(count)]


def test_a_bad_item_of_a_batch_takes_no_other_with_it_and_the_answers_keep_their_order(
    admin: httpx.Client, plane: Plane, waiting: None
) -> None:
    good = {**HOLD, "name": "good"}
    items: list[Any] = [good, {**good, "resources": {"workers": 0}}, 7]
    items += [{"spec": {**good, "name": "keyed"}, "key": "k1", "cwd": "/tmp"}]
    items += [{"spec": good, "cwd": "relative"}, {**good, "resources": {"workers": 999}}]

    answer = admin.post("/api/jobs", json={"items": items})

    found = answer.json()["items"]
    assert answer.status_code == 207
    assert [one["status"] for one in found] == [201, 422, 422, 201, 422, 409]
    fields = [one["problem"].get("field") for one in found if one["problem"]]
    assert fields == ["items.1.resources.workers", "items.2.spec", "items.4.cwd", None]
    stored = rows(plane, "SELECT name, cwd FROM submissions JOIN jobs ON jobs.id = job")
    assert [row for row in stored if row[0] in ("good", "keyed")] == [
        ("good", ""),
        ("keyed", "/tmp"),
    ]


def test_a_batch_that_is_sent_again_with_its_keys_is_stored_once(
    admin: httpx.Client, plane: Plane, waiting: None
) -> None:
    items = [{"spec": spec, "key": f"once-{n}"} for n, spec in enumerate(named("once", 20))]
    whole = {"Idempotency-Key": "whole-batch"}

    first, again = (admin.post("/api/jobs", json={"items": items}).json() for _ in range(2))
    one, two = (
        admin.post("/api/jobs", json={"items": named("w", 3)}, headers=whole).json()["items"]
        for _ in range(2)
    )

    ids = [item["job"]["id"] for item in first["items"]]
    assert [item["job"]["id"] for item in again["items"]] == ids
    assert {item["status"] for item in again["items"]} == {200}
    assert [item["job"]["id"] for item in two] == [item["job"]["id"] for item in one]
    assert rows(plane, "SELECT count(*) FROM jobs WHERE name LIKE 'once%'") == [(20,)]
    assert rows(plane, "SELECT count(*) FROM jobs WHERE name LIKE 'w_'") == [(3,)]


def test_a_batch_that_was_answered_is_in_the_database_of_a_weaver_that_was_killed_at_once(
    admin: httpx.Client, plane: Plane, waiting: None
) -> None:
    items = [{"spec": spec, "key": f"kill-{n}"} for n, spec in enumerate(named("kill", 200))]

    answer = admin.post("/api/jobs", json={"items": items})
    plane.weaver.end(signal.SIGKILL)
    stored = {row[0] for row in rows(plane, "SELECT id FROM jobs WHERE name LIKE 'kill%'")}
    plane.start_weaver()

    assert {one["job"]["id"] for one in answer.json()["items"]} == stored
    until(lambda: admin.get("/readyz").status_code == 200, PATIENCE)
    again = admin.post("/api/jobs", json={"items": items}).json()["items"]
    assert {one["status"] for one in again} == {200}


def test_a_batch_has_its_limits_in_words(admin: httpx.Client) -> None:
    long = {**HOLD, "env": {"LONG": "x" * 5000}}
    answers = [
        admin.post("/api/jobs", json=body)
        for body in (
            {"items": named("many", 257)},
            {"items": [long] * 250},
            {"items": []},
            {"items": {}},
        )
    ]

    found = [(each.status_code, each.json()["code"]) for each in answers]
    assert found == [(413, "too_large")] * 2 + [(422, "bad_value")] * 2
    assert "at most 256 jobs" in answers[0].json()["detail"]


def test_all_that_wait_are_cancelled_in_one_request_and_whoever_watches_hears_of_each(
    admin: httpx.Client, server: Server, plane: Plane, waiting: None
) -> None:
    with Client(server.url, plane.token()) as client:
        ids = [one["job"]["id"] for one in client.submit_many(named("gone", 600))]

        answer = admin.post("/api/jobs/cancel", json={"state": ["QUEUED"], "reason": "too many"})

        done = {one["id"]: one for one in answer.json()["items"]}
        assert set(ids) <= set(done)
        assert {one["job"]["state"] for one in done.values()} == {"CANCELLED"}
        assert client.queue() == []
        shown = {job["id"] for job in client.jobs(state="CANCELLED")}
        assert set(ids) <= shown
        heard = [event["kind"] for event in client.events(ids[0])]
    assert heard[-2:] == ["cancelled", "job_state"]
    wanted = ", ".join(f"'{job}'" for job in ids)
    ended = rows(plane, f"SELECT state, started_at, reason FROM jobs WHERE id IN ({wanted})")
    assert set(ended) == {("CANCELLED", None, "too many")}
    assert [job for job in ids if (plane.home / "runs" / job).exists()] == []  # none has started


def test_what_cannot_be_cancelled_is_said_job_by_job(
    admin: httpx.Client, waiting: None, holder: str
) -> None:
    (job,) = (
        one["job"]["id"]
        for one in admin.post("/api/jobs", json={"items": named("x", 1)}).json()["items"]
    )
    admin.delete(f"/api/jobs/{job}")

    answer = admin.post("/api/jobs/cancel", json={"jobs": [job, "nobody"]})
    both = admin.post("/api/jobs/cancel", json={"jobs": [job], "state": ["QUEUED"]})
    ended = admin.post("/api/jobs/cancel", json={"state": ["COMPLETED"]})

    found = [(one["id"], one["status"], one["problem"]["code"]) for one in answer.json()["items"]]
    assert found == [(job, 409, "job_over"), ("nobody", 404, "not_found")]
    assert (both.status_code, ended.status_code) == (422, 422)
    assert admin.get(f"/api/jobs/{holder}").json()["state"] == "RUNNING"


def test_loom_stop_all_takes_what_waits_and_leaves_what_runs(
    admin: httpx.Client, plane: Plane, waiting: None, holder: str
) -> None:
    sent = admin.post("/api/jobs", json={"items": named("cli", 50)}).json()["items"]
    env = {**plane.env, "LOOM_PLANE": "1"}
    words = [str(Path(sys.executable).with_name("loom")), "stop", "--all", "--state", "queued"]

    def stop(*more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*words, *more],
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=PATIENCE,
        )

    unasked, done, none = stop(), stop("-y"), stop("-y", "--json")

    assert (
        unasked.returncode,
        "this stops 51 jobs; without a terminal, confirm with --yes" in unasked.stderr,
    ) == (2, True)
    assert done.returncode == 0, done.stderr
    gone = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" CANCELLED")}
    assert {one["job"]["id"] for one in sent} < gone
    assert (json.loads(none.stdout), none.returncode) == ([], 0)
    assert admin.get(f"/api/jobs/{holder}").json()["state"] == "RUNNING"


def test_loom_stop_all_asks_on_a_terminal_and_a_no_changes_nothing(
    admin: httpx.Client, plane: Plane, waiting: None
) -> None:
    admin.post("/api/jobs", json={"items": named("asked", 5)}).raise_for_status()
    words = [str(Path(sys.executable).with_name("loom")), "stop", "--all", "--state", "queued"]
    ours, theirs = pty.openpty()
    given: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    loom = subprocess.Popen(words, env={**plane.env, "LOOM_PLANE": "1"}, **given)
    os.close(theirs)

    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 1000)
    os.write(ours, b"n\n")

    assert loom.wait(PATIENCE) == 1
    os.close(ours)
    assert b"stop 6 jobs?" in said
    assert rows(plane, "SELECT count(*) FROM jobs WHERE state = 'QUEUED'") == [(6,)]


MANY = 2000  # jobs
BIG = {"resources": {"workers": 3}}  # more than is free
LARGE = 1 << 30  # bytes of logs
RANKS = 64
STARTS = {
    "plain": "",
    "gloo": "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()",
}


@pytest.mark.soak
@pytest.mark.needs("torch")
def test_many_jobs_a_large_log_and_many_ranks_take_as_long_as_is_said(
    server: Server, plane: Plane, waiting: None, tmp_path: Path
) -> None:
    load = os.getloadavg()[0]
    figures = {**_jobs(server, plane), **_search(server, plane), **_ranks(tmp_path)}

    evidence.write("adversary-load", [figures], load_before=round(load, 2), targets=TARGETS)
    assert figures["submits_per_second"] > TARGETS["submits_per_second"]
    assert figures["cancel_seconds"] < TARGETS["cancel_seconds"]
    assert figures["search_mb_per_second"] > TARGETS["search_mb_per_second"]
    assert figures["ranks_plain_seconds"] < TARGETS["ranks_plain_seconds"]
    assert figures["ranks_gloo_seconds"] < TARGETS["ranks_gloo_seconds"]


TARGETS = {
    "submits_per_second": 300,
    "cancel_seconds": 5,
    "search_mb_per_second": 500,
    "ranks_plain_seconds": 8,
    "ranks_gloo_seconds": 8,
}


def _jobs(server: Server, plane: Plane) -> dict[str, float]:
    """Submit jobs in batches and cancel them in one request, each three times; the median."""
    submits, cancels = [], []
    with Client(server.url, plane.token()) as client:
        for turn in range(3):
            began = time.monotonic()
            sent = client.submit_many(named(f"soak{turn}-", MANY, **BIG))
            submits.append(MANY / (time.monotonic() - began))
            assert {one["status"] for one in sent} == {201}
            began = time.monotonic()
            gone = client.cancel_many(state=["QUEUED"])
            cancels.append(time.monotonic() - began)
            assert {one["job"]["id"] for one in sent} <= {one["id"] for one in gone}
    wanted = "SELECT count(*) FROM jobs WHERE name LIKE 'soak%' AND state = 'CANCELLED'"
    assert rows(plane, wanted) == [(3 * MANY,)]
    return {
        "submits_per_second": round(sorted(submits)[1], 1),
        "cancel_seconds": round(sorted(cancels)[1], 3),
    }


def _search(server: Server, plane: Plane) -> dict[str, float]:
    """Search a gigabyte for what is at its end, for a text and for a simple pattern."""
    rates = []
    with Teller(plane, "gigabyte") as teller, server.client() as client:
        launched = Launched(plane, teller.job)
        for path in printed(launched, LARGE):
            with path.open("a") as file:
                file.write("the needle is here\n")
        launched.write(AppState.SUCCEEDED)
        teller.ends("COMPLETED", "ranks_ended")
        for pattern in ("the needle", r"needle is \w+$", "the needle", r"CUDA error|the needle"):
            began = time.monotonic()
            found = list(pages(client, teller.job, regex=pattern))
            rates.append(found[-1]["bytes"] / 1e6 / (time.monotonic() - began))
            assert sum(len(page["items"]) for page in found) == 2
    return {"search_mb_per_second": round(sorted(rates)[1])}


def _ranks(folder: Path) -> dict[str, float]:
    """Start many ranks with a warm interpreter: seconds until the last is behind its beginning."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
    for name, place in (("HOME", "user"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
        (folder / place).mkdir(mode=0o700)
        env[name] = str(folder / place)
    loom, figures = str(Path(sys.executable).with_name("loom")), {}
    try:
        for kind, words in STARTS.items():
            script = folder / f"{kind}.py"
            mark = f"open({str(folder)!r} + '/{kind}' + os.environ['RANK'], 'w')"
            script.write_text(f"import os, time\n{words}\n{mark}.write(str(time.time()))\n")
            taken = [_started(loom, script, kind, env) for _ in range(4)]
            figures[f"ranks_{kind}_cold_seconds"] = round(taken[0][0], 2)
            figures[f"ranks_{kind}_seconds"] = round(sorted(one for one, _ in taken[1:])[1], 2)
            figures[f"ranks_{kind}_ended_seconds"] = round(
                sorted(one for _, one in taken[1:])[1], 2
            )
    finally:
        subprocess.run([loom, "down"], env=env, capture_output=True, check=True, timeout=PATIENCE)
    return figures


def _started(loom: str, script: Path, kind: str, env: dict[str, str]) -> tuple[float, float]:
    """Launch ranks; return the seconds until the last has begun, and until the launch is over."""
    marks = [script.with_name(f"{kind}{rank}") for rank in range(RANKS)]
    for mark in marks:
        mark.unlink(missing_ok=True)
    began = time.time()
    words = [loom, "launch", "-n", str(RANKS), str(script)]
    subprocess.run(words, env=env, capture_output=True, check=True, timeout=PATIENCE)
    ended = time.time()
    return max(float(mark.read_text()) for mark in marks) - began, ended - began
