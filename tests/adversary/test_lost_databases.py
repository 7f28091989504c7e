"""A training goes on, steered and recovered, though a database of its plane is damaged or gone."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..control.conftest import database, place, plane, warm
from ..harness import step_records as ledgers
from ..harness.home import processes_of, until
from ..harness.live_training import ENDS, Proof
from ..harness.plane_jobs import LOOM, PATIENCE, Plane, loom
from .test_databases import spoil

__all__ = ["database", "place", "plane", "warm"]

EPOCHS = 40  # enough for a plane to go and come back meanwhile
pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


@pytest.fixture
def proofs(plane: Plane, warm: None) -> Iterator[list[Proof]]:
    """Give a place for trainings; what still runs is ended after the test."""
    found: list[Proof] = []
    yield found
    for proof in found:
        if processes_of(proof.id):
            loom("stop", "--now", proof.id)


@pytest.fixture(scope="module")
def expected(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> list[ledgers.Chain]:
    """Return the bits behind each step of a training that nothing happens to."""
    out = tmp_path_factory.mktemp("quiet") / "mlp"
    proof = Proof("mlp", out, policy="restart", pace=0, EPOCHS=EPOCHS)
    proof.over()
    return proof.chains()


def begun(proofs: list[Proof], out: Path, **more: Any) -> Proof:
    """Return a training under way that is watched by the plane."""
    proofs.append(Proof("mlp", out, pace=0.1, EPOCHS=EPOCHS, **more))
    until(lambda: any(told["is_live"] for told in proofs[-1].events("watched")), PATIENCE)
    until(lambda: proofs[-1].step() >= 5, PATIENCE)
    return proofs[-1]


def struck(proof: Proof, rank: int) -> None:
    """Kill a rank, found by what /proc has of its environment."""
    for pid in processes_of(proof.id):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in words:
                os.kill(pid, signal.SIGKILL)
                return
    raise AssertionError(f"no process of rank {rank}")


def recovered(proof: Proof, expected: list[ledgers.Chain], victim: int) -> None:
    """See a training beyond a loss: the others never stopped, and no bit is another."""
    until(lambda: len(proof.ranks()[victim]) == 2 or proof.state() in ENDS, PATIENCE)
    step = proof.step()
    until(lambda: proof.step() >= step + 3 or proof.state() in ENDS, PATIENCE)
    ranks = proof.ranks()
    assert proof.state() == "RUNNING", proof.words()
    ledgers.one_attempt(ranks)
    ledgers.survivors_survived(ranks, {victim: 1})
    upto = min(max(ledgers.chain(lives)) for lives in ranks)
    done = [{n: line for n, line in chain.items() if n <= upto} for chain in expected]
    ledgers.same_steps([_until(lives, upto) for lives in ranks], done)


def _until(lives: list[ledgers.Life], upto: int) -> list[ledgers.Life]:
    return [replace(life, lines=[one for one in life.lines if one.step <= upto]) for life in lives]


def known(job: str) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        found: dict[str, Any] = door.ask("job", job=job)
        return found
    return {}


def ready() -> tuple[int, Any]:
    """Return what a stranger is told of the plane's readiness."""
    found = door.find()
    assert found is not None
    try:
        with urllib.request.urlopen(f"{found['url']}/readyz", timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def found_by_doctor() -> str:
    """Return the problems that `loom doctor` finds with the databases."""
    words = [LOOM, "doctor", "--quick", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    findings = [one for one in json.loads(done.stdout) if one["name"] == "databases"]
    return "\n".join(one["text"] for one in findings if not one["ok"])


def folder(place: Path) -> Path:
    return place / "loom" / "plane"


def removed(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "when", ["under a living plane", pytest.param("while it is down", marks=pytest.mark.soak)]
)
def test_a_training_whose_plane_lost_its_state_is_adopted_and_recovered_live(
    place: Path, proofs: list[Proof], expected: list[ledgers.Chain], tmp_path: Path, when: str
) -> None:
    loom("down")  # agents and launch processes hear of a later weaver than a first one
    loom("up")
    proof = begun(proofs, tmp_path / "job")
    state = folder(place) / "state.db"

    if when == "under a living plane":
        removed(state)
        until(lambda: "state" in door.ask("status")["problems"], PATIENCE)
        assert ready()[0] == 503
        assert "state.db was removed while the plane uses it" in found_by_doctor()
    loom("down")
    removed(state)
    loom("up")
    until(lambda: is_watched(state, proof.id) or proof.state() in ENDS, PATIENCE)
    struck(proof, 1)

    recovered(proof, expected, victim=1)
    assert known(proof.id)["state"] == "RUNNING"


def is_watched(state: Path, job: str) -> bool:
    """Tell whether the plane would recover a job live, by what it has stored."""
    with contextlib.closing(sqlite3.connect(state)) as opened:
        words = "SELECT count(*) FROM regroupings WHERE job = ?"
        return bool(opened.execute(words, (job,)).fetchone()[0])


def test_with_damaged_records_a_training_runs_is_steered_and_recovered_and_says_so(
    place: Path, proofs: list[Proof], expected: list[ledgers.Chain], tmp_path: Path
) -> None:
    loom("down")
    removed(folder(place) / "records.db")
    (folder(place) / "records.db").write_bytes(b"\xa5" * 65_536)
    loom("up")
    proof = begun(proofs, tmp_path / "job")

    loom("pause", proof.id)
    still = proof.step()
    loom("resume", "-d", proof.id)
    until(lambda: proof.step() > still, PATIENCE)
    struck(proof, 2)
    recovered(proof, expected, victim=2)

    shown = json.loads(loom("show", "--json", proof.id))
    listed = {one["id"]: one for one in json.loads(loom("ls", "--json"))}
    assert "metrics are not stored" in shown["warning"]
    assert "metrics are not stored" in listed[proof.id]["warning"]
    assert "records.db is damaged" in found_by_doctor()
    assert "state.db" not in found_by_doctor()
    code, told = ready()
    assert (code, told["problems"]) == (
        200,
        ["the records database is damaged or not the one that was opened; see `loom doctor`"],
    )

    loom("down")
    assert "records.db (file is not a database)" in loom("restore", "--salvage")
    loom("up")
    until(lambda: known(proof.id).get("warning") == "", PATIENCE)
    until(lambda: stored(folder(place) / "records.db", proof.id) > 0, PATIENCE)


def stored(records: Path, job: str) -> int:
    """Return how many records of a job are in the database."""
    with contextlib.closing(sqlite3.connect(records)) as opened:
        words = "SELECT coalesce(sum(upto), 0) FROM received WHERE job = ?"
        return int(opened.execute(words, (job,)).fetchone()[0])


def test_a_plane_with_a_damaged_state_database_says_which_file_and_what_to_do(
    place: Path, plane: Plane
) -> None:
    path = folder(place) / "state.db"
    loom("down")
    whole = path.read_bytes()
    spoil(path)

    up = subprocess.run([LOOM, "up"], capture_output=True, text=True, timeout=PATIENCE)

    path.write_bytes(whole)
    assert up.returncode == 1
    assert f"{path} is damaged (file is not a database)" in up.stderr
    assert "`loom restore FILE`" in up.stderr
    assert "`loom restore --salvage`" in up.stderr
