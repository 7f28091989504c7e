"""Checkpoints over HTTP: listed in pages, deleted by who may, told to whoever listens."""

import itertools
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.checkpoint import Draft, LocalStorage, Manifest
from torchloom.client.http import Client
from torchloom.messages.plane import Commit, Committed, Event, Remove, Removed

from ...harness.fake_agents import job_event
from ...harness.home import until
from ...harness.metric_senders import Teller
from ...harness.server_plane import PATIENCE, Plane, Server
from ..following import Page
from ..listening import listening
from .test_prometheus import scraped

pytestmark = pytest.mark.process
ROOT = "/runs/x/checkpoints"
HASH = "blake3:" + "0" * 64
_COUNT = itertools.count()


class Saving:
    """A job of one rank whose agent says that whatever it is told is done."""

    def __init__(self, plane: Plane, teller: Teller, root: str = ROOT) -> None:
        self.job = teller.job
        self._plane, self._teller, self._done = plane, teller, 0
        told = job_event("job", self.job, checkpoints=root)
        self._root = root
        teller._do(teller._agent.act(told))

    @property
    def url(self) -> str:
        return f"/api/jobs/{self.job}/checkpoints"

    def save(self, client: httpx.Client, *steps: int, size: int = 7, content: str = HASH) -> None:
        for step in steps:
            whose = {"step": step, "generation": 0, "attempt": 1, "rank": 0, "world_size": 1}
            file = {"name": "worker_0.pt", "size": size, "hash": content}
            facts = {**whose, **file, "metrics": {"loss": 1.5}, "trigger": "end"}
            self._teller._say(0, _shard(self._teller, step, facts))
            until(lambda step=step: self._is(client, step, "committed"), PATIENCE)  # type: ignore[misc]

    def write(self, client: httpx.Client, step: int, content: bytes) -> Path:
        """Save bytes as the shard of a step, really, and return their file when it is committed."""
        storage, draft = LocalStorage(self._root), Draft(step, 0, 1)
        file = storage.write_shard(draft, "worker_0.pt", [memoryview(content)])
        self.save(client, step, size=file.size, content=file.hash)
        asked = [each for each in self._teller._agent.heard if isinstance(each, Commit)]
        storage.commit(draft, Manifest.from_json(zlib.decompress(asked[-1].manifest)))
        return Path(storage.place_of(step), "worker_0.pt")

    def answer(self) -> None:
        """Do what the weaver has asked for and was not answered."""
        agent = self._teller._agent
        asked = [each for each in agent.heard if isinstance(each, Commit | Remove)]
        for each in asked[self._done :]:
            key = (each.step, each.generation, each.attempt)
            said: Committed | Removed = Removed(each.head, agent.name, *key)
            if isinstance(each, Commit):
                said = Committed(each.head, agent.name, *key, f"{ROOT}/{each.step}")
            self._teller._do(agent.bus.publish(subjects.checkpoints(agent.name), encode(said)))
        self._done = len(asked)

    def _is(self, client: httpx.Client, step: int, state: str) -> bool:
        self.answer()
        rows = client.get(self.url).json()["items"]
        return (step, state) in {(row["step"], row["state"]) for row in rows}


def _shard(teller: Teller, step: int, facts: dict[str, Any]) -> Any:
    return Event(teller._ranks[0].head, "checkpoint_shard", step, 1.5, facts)


@pytest.fixture
def saving(plane: Plane, server: Server) -> Iterator[Saving]:
    with Teller(plane, f"saving-{next(_COUNT)}", ranks=1) as teller:
        yield Saving(plane, teller)


def test_checkpoints_are_listed_in_pages_and_without_a_weaver(
    plane: Plane, admin: httpx.Client, saving: Saving
) -> None:
    saving.save(admin, 9, 10, 100)

    first = admin.get(saving.url, params={"limit": 2}).json()
    second = admin.get(saving.url, params={"limit": 2, "cursor": first["next"]}).json()
    plane.weaver.end()
    try:
        alone = admin.get(saving.url)
    finally:
        plane.start_weaver()

    assert [row["step"] for row in first["items"]] == [100, 10]
    assert ([row["step"] for row in second["items"]], second["next"]) == ([9], None)
    assert (alone.status_code, len(alone.json()["items"])) == (200, 3)
    assert {name: first["items"][0][name] for name in ("state", "place", "bytes", "metrics")} == {
        "state": "committed",
        "place": f"{ROOT}/100",
        "bytes": 7,
        "metrics": {"loss": 1.5},
    }


def test_one_is_deleted_with_its_author_and_the_newest_only_by_force(
    server: Server, admin: httpx.Client, saving: Saving
) -> None:
    saving.save(admin, 1, 2)

    with Client(server.url, server.plane.token()) as client:
        needed = admin.delete(f"{saving.url}/2")
        missing = admin.delete(f"{saving.url}/3")
        wrong = admin.delete(f"{saving.url}/newest")
        going = _in_thread(lambda: client.remove_checkpoint(saving.job, 1, reason="too large"))
        until(lambda: (saving.answer(), not going.is_alive())[1], PATIENCE)
        left = [(row["step"], row["state"]) for row in client.checkpoints(saving.job)]

    assert (needed.status_code, needed.json()["code"]) == (409, "checkpoint_needed")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert wrong.status_code == 422
    assert left == [(2, "committed"), (1, "removed")]
    audited = admin.get(f"/api/jobs/{saving.job}/audit").json()["items"]
    told = [(one["kind"], one["step"], one["author"], one["reason"]) for one in audited]
    assert told == [("checkpoint_removed", 1, "admin", "too large")]


def test_a_commit_is_told_to_whoever_listens_and_counted(
    server: Server, admin: httpx.Client, saving: Saving
) -> None:
    with listening(server, f"/api/jobs/{saving.job}/stream") as client:
        client.message()
        saving.save(admin, 5)
        found = client.until(lambda said: said.get("kind") == "checkpoint_committed")
    counted = scraped(admin)

    assert (found[-1]["type"], found[-1]["step"]) == ("event", 5)
    assert found[-1]["facts"]["place"] == f"{ROOT}/5"
    states = {labels["state"]: value for labels, value in counted["torchloom_checkpoints"]}
    assert states["committed"] >= 1
    times = counted["torchloom_job_checkpoint_timestamp_seconds"]
    assert saving.job in {labels["job"] for labels, _ in times}


def test_one_is_read_and_hashed_and_whoever_looks_hears_which_file_is_damaged(
    plane: Plane, server: Server, admin: httpx.Client, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 20_000
    page = Page()
    with Teller(plane, f"saving-{next(_COUNT)}", ranks=1) as teller, page.open(server):
        saving = Saving(plane, teller, str(tmp_path))
        file = saving.write(admin, 5, content)
        page.sub("c", "checks", teller.job)
        begun = admin.post(f"{saving.url}/5/verify")
        page.until(lambda page: page.state["c"]["items"][0]["state"] == "whole")
        whole = page.state["c"]["items"][0]
        file.write_bytes(content[:-1] + b"x")
        admin.post(f"{saving.url}/5/verify").raise_for_status()
        page.until(lambda page: page.state["c"]["items"][0]["state"] == "damaged")
        damaged = admin.get(f"{saving.url}/5/verify").json()
        (row,) = admin.get(saving.url).json()["items"]
        again, unknown = admin.post(f"{saving.url}/5/verify"), admin.get(f"{saving.url}/6/verify")
        audited = admin.get(f"/api/jobs/{teller.job}/audit").json()["items"]

    assert (begun.status_code, begun.json()["step"], begun.json()["bytes"]) == (
        202,
        5,
        len(content),
    )
    assert (whole["read"], whole["author"], whole["shard"]) == (len(content), "admin", None)
    why = "its bytes are not those that were committed"
    assert (damaged["state"], damaged["shard"], damaged["reason"]) == (
        "damaged",
        "worker_0.pt",
        why,
    )
    assert (row["state"], row["reason"]) == ("damaged", f"worker_0.pt: {why}")
    assert (again.status_code, unknown.status_code) == (404, 404)  # it is none to go on from
    assert [(one["kind"], one["author"]) for one in audited] == [
        ("checkpoint_verified", "admin"),
        ("checkpoint_damaged", "admin"),
    ]


def test_one_that_the_plane_cannot_see_is_not_called_damaged(
    admin: httpx.Client, saving: Saving
) -> None:
    saving.save(admin, 3)

    def found() -> Any:
        return admin.get(f"{saving.url}/3/verify").json()

    admin.post(f"{saving.url}/3/verify").raise_for_status()
    until(lambda: found()["state"] not in ("waiting", "running"), PATIENCE)

    assert found()["state"] == "failed"
    assert "loom checkpoint verify" in found()["reason"]
    assert admin.get(saving.url).json()["items"][0]["state"] == "committed"


def _in_thread(work: Any) -> Any:
    thread = threading.Thread(target=work)
    thread.start()
    return thread
