"""Jobs are submitted over HTTP to a real weaver with a real node: once a key, and they run."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ...harness.home import processes_of, until
from ...harness.server_plane import PATIENCE, Plane, Server, running

pytestmark = pytest.mark.process
FINAL = ("COMPLETED", "FAILED", "CANCELLED")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        started.start_agent()
        yield started


@pytest.fixture
def held(admin: httpx.Client) -> Iterator[None]:
    """Let nobody's job begin: the one worker that the admin may have is taken."""
    admin.put("/api/quotas/admin", json={"workers": 1})
    blocker = submit(admin, spec("blocker", "import time", "time.sleep(600)")).json()["id"]
    until(lambda: state(admin, blocker) == "RUNNING", PATIENCE)
    yield
    for job in admin.get("/api/jobs?state=QUEUED&limit=1000").json()["items"]:
        admin.delete(f"/api/jobs/{job['id']}")
    admin.delete(f"/api/jobs/{blocker}")
    until(lambda: state(admin, blocker) == "CANCELLED", PATIENCE)
    admin.put("/api/quotas/admin", json={"workers": None})


def spec(name: str = "demo", *code: str, **more: Any) -> dict[str, Any]:
    words = [sys.executable, "-c", "\n".join(code) or "pass"]
    return {"name": name, "command": words, **more}


def submit(client: httpx.Client, body: dict[str, Any], key: str = "") -> httpx.Response:
    return client.post("/api/jobs", json=body, headers={"Idempotency-Key": key} if key else {})


def state(client: httpx.Client, job: str) -> str:
    found: str = client.get(f"/api/jobs/{job}").json()["state"]
    return found


def test_a_submitted_job_runs_and_its_own_file_says_so(admin: httpx.Client, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = ("import os, sys", f"open({str(out)!r}, 'w').write(os.environ['LOOM_JOB'])")

    answer = submit(admin, spec("real", *code, project="p", tags=["t"], env={"SECRET": "s3"}))

    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/api/jobs/{job['job_id']}")
    assert (job["owner"], job["created"]) == ("admin", True)
    until(lambda: state(admin, job["id"]) in FINAL, PATIENCE)
    assert (state(admin, job["id"]), out.read_text()) == ("COMPLETED", job["id"])
    assert admin.get(f"/api/jobs/{job['id']}/spec").json()["env"] == {"SECRET": "s3"}
    for query in ("project=p", "tag=t", "project=p&tag=t", "name=real", "state=COMPLETED"):
        found = [one["id"] for one in admin.get(f"/api/jobs?{query}").json()["items"]]
        assert found == [job["id"]], query
    until(lambda: not processes_of(job["id"]), PATIENCE)


def test_a_spec_is_looked_at_as_json_or_as_yaml_and_nothing_is_submitted(
    admin: httpx.Client,
) -> None:
    body = {"name": "looked-at", "script": "train.py", "hyperparameters": {"lr": 0.1}}
    text = "name: looked-at\nscript: train.py\nhyperparameters:\n  lr: 0.1\n"
    yaml = {"Content-Type": "application/yaml"}

    by_json = admin.post("/api/specs/check", json=body)
    by_yaml = admin.post("/api/specs/check", content=text, headers=yaml)
    wrong = admin.post("/api/specs/check", json={**body, "resources": {"workers": 0}}).json()

    assert by_json.json() == {"ok": True, "spec": body, "yaml": text, "refused": None}
    assert by_yaml.json() == by_json.json()
    assert (wrong["ok"], wrong["refused"]["field"]) == (False, "resources.workers")
    assert "must be 1 to" in wrong["refused"]["remedy"]
    assert admin.get("/api/jobs?name=looked-at").json()["items"] == []


def test_one_key_posted_at_once_and_again_is_one_job(admin: httpx.Client, held: None) -> None:
    body = spec("once")

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: submit(admin, body, "key-1"), range(24)))
    other = submit(admin, spec("another"), "key-1")

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 23 + [201]
    assert len(admin.get("/api/jobs?name=once").json()["items"]) == 1
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")


def test_pages_are_stable_while_jobs_are_added(admin: httpx.Client, held: None) -> None:
    made = [submit(admin, spec(f"page-{n}")).json()["id"] for n in range(7)]

    pages, cursor = [], ""
    while cursor is not None:
        query = {"limit": 3, "state": "QUEUED"} | ({"cursor": cursor} if cursor else {})
        page = admin.get("/api/jobs", params=query).json()
        pages.append([job["id"] for job in page["items"]])
        cursor = page["next"]
        submit(admin, spec("later"))

    assert [len(page) for page in pages] == [3, 3, 1]
    assert [job for page in pages for job in page] == made[::-1]


def test_a_queue_shows_who_waits_and_why_and_a_cancelled_job_leaves_it(
    admin: httpx.Client, held: None
) -> None:
    job = submit(admin, spec("waits", priority=5)).json()["id"]
    (waiting,) = admin.get("/api/cluster/queue").json()["items"]

    gone = admin.delete(f"/api/jobs/{job}", params={"reason": "changed my mind"})
    again = admin.delete(f"/api/jobs/{job}")

    assert (waiting["job"], waiting["owner"], waiting["priority"]) == (job, "admin", 5)
    assert waiting["why"]
    assert (gone.status_code, gone.json()["status"]) == (200, "CANCELLED")
    assert (again.status_code, again.json()["code"]) == (409, "job_over")
    assert admin.get("/api/cluster/queue").json()["items"] == []
    audited = admin.get(f"/api/jobs/{job}/audit").json()["items"]
    assert [(event["kind"], event["author"]) for event in audited] == [
        ("submitted", "admin"),
        ("cancelled", "admin"),
    ]


def test_a_running_job_is_ended(admin: httpx.Client, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = ("import time", f"open({str(out)!r}, 'w').close()", "time.sleep(600)")
    job = submit(admin, spec("long", *code)).json()["id"]
    until(out.exists, PATIENCE)

    answer = admin.delete(f"/api/jobs/{job}")

    assert answer.status_code == 200
    until(lambda: state(admin, job) == "CANCELLED", PATIENCE)
    until(lambda: not processes_of(job), PATIENCE)


def test_what_can_never_run_is_refused_at_once_and_not_stored(admin: httpx.Client) -> None:
    answer = submit(admin, spec("huge", resources={"workers": 99_999}))

    assert (answer.status_code, answer.json()["code"]) == (409, "unschedulable")
    assert admin.get("/api/jobs?name=huge").json()["items"] == []


def test_workers_and_resources_are_those_of_this_machine(admin: httpx.Client) -> None:
    (worker,) = admin.get("/api/cluster/workers").json()["items"]
    whole = admin.get("/api/cluster/resources").json()

    assert (worker["state"], worker["cpus"]) == ("up", whole["cpus"]["total"])
    assert (whole["nodes"], whole["memory_mb"]["total"]) == (1, worker["memory_mb"])
    assert 0 < whole["cpus"]["free"] <= whole["cpus"]["total"]


def test_a_viewer_sees_no_values_of_the_environment(
    server: Server, admin: httpx.Client, held: None
) -> None:
    job = submit(admin, spec("secret", env={"KEY": "s3cr3t"})).json()["id"]
    admin.put("/api/users/vera", json={"role": "viewer"})
    token = admin.post("/api/tokens", json={"user": "vera"}).json()["token"]

    with server.client(token) as viewer:
        seen = [viewer.get(f"/api/jobs/{job}{path}").json() for path in ("", "/spec")]
        refused = viewer.post("/api/jobs", json=spec())

    assert [list(seen[0]["spec"]["env"]), list(seen[1]["env"])] == [["KEY"], ["KEY"]]
    assert "s3cr3t" not in json.dumps(seen)
    assert refused.status_code == 403


def test_the_author_is_who_asks_and_nobody_else(admin: httpx.Client, held: None) -> None:
    answer = submit(admin, {**spec("mine"), "owner": "eve"})

    assert (answer.status_code, answer.json()["field"]) == (422, "owner")


def test_a_secret_of_a_job_reaches_its_ranks_and_no_reader_of_the_interface(
    admin: httpx.Client, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = ("import os", f"open({str(out)!r}, 'w').write(os.environ['HF_TOKEN'])")
    body = spec("sealed", *code, env={"HF_TOKEN": "secret:canary-77", "PLAIN": "x"})

    answers = [submit(admin, body, key="again"), submit(admin, body, key="again")]

    job = answers[0].json()["id"]
    assert [answer.json()["id"] for answer in answers] == [job, job]
    until(lambda: state(admin, job) in FINAL, PATIENCE)
    assert out.read_text() == "canary-77"
    shown = {"HF_TOKEN": "secret:***", "PLAIN": "x"}
    assert admin.get(f"/api/jobs/{job}/spec").json()["env"] == shown
    assert admin.get(f"/api/jobs/{job}").json()["spec"]["env"] == shown
    for path in ("", "/spec", "/events", "/logs"):
        assert "canary-77" not in admin.get(f"/api/jobs/{job}{path}").text
    for value in ("sealed:AAAA", "secret:***", "secret:", f"secret:{3001 * 'x'}"):
        refused = submit(admin, spec("copied", "pass", env={"HF_TOKEN": value}))
        assert refused.status_code == 422
        assert "env.HF_TOKEN" in refused.text
        assert "write the value itself, secret:VALUE" in refused.text
