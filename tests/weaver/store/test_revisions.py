"""Databases of every schema, made by the commits that had it, are opened by this version.

How they were made is told in `revisions/README.md`. What they hold is read by sqlite3 alone before
this version sees them, and asked of a weaver of this version afterwards.
"""

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.weaver.api.router import Router
from torchloom.weaver.store import DatabasePlace, open_store
from torchloom.weaver.store.schema import HEADS, SchemaNewer

from ...harness.fake_agents import rows, weaver_at

FOLDER = Path(__file__).parent / "revisions"
RECORDS_OF = {1: 1, 2: 2, 3: 2}  # the schema of records beside a schema of state; later ones: 3
NUMBERS = range(1, int(HEADS["state"].rpartition("_")[2]) + 1)


def text_of(revision: str) -> str:
    (path,) = FOLDER.glob(f"{revision}-*.sql")
    return path.read_text()


def restored(folder: Path, state: str, records: str) -> Path:
    """Have both databases in a folder as they were."""
    folder.mkdir(mode=0o700, parents=True)
    for part, revision in (("state", state), ("records", records)):
        connection = sqlite3.connect(folder / f"{part}.db")
        connection.executescript(text_of(revision))
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
    return folder


def ask(folder: Path, *names: str, job: str = "job-1") -> list[Any]:
    """Return what a weaver of this version answers."""

    async def run() -> list[Any]:
        async with weaver_at(folder, Exchange()) as weaver:
            answering = Router(weaver)
            asked = [{"ask": name, "version": 1, "job": job} for name in names]
            answers = [await answering.answer(one) for one in asked]
        assert all("ok" in answer for answer in answers), answers
        return [answer["ok"] for answer in answers]

    return asyncio.run(run())


def test_there_is_a_database_of_every_revision() -> None:
    found = {path.name.partition("-")[0] for path in FOLDER.glob("*.sql")}

    assert found == {
        f"{part}_{number}"
        for part, head in HEADS.items()
        for number in range(1, int(head.rpartition("_")[2]) + 1)
    }


@pytest.mark.parametrize("number", NUMBERS)
def test_a_database_of_each_revision_is_upgraded_and_shown_with_all_it_held(
    number: int, tmp_path: Path
) -> None:
    records = f"records_{RECORDS_OF.get(number, 3)}"
    folder = restored(tmp_path / "plane", f"state_{number}", records)
    jobs = rows(folder, "SELECT id, name, state, reason FROM jobs ORDER BY id")
    events = rows(folder, "SELECT seq, job, kind, reason FROM events ORDER BY seq")
    (command,) = rows(folder, "SELECT id, author, reason, state, effective FROM commands")
    assert [row[:1] + row[2:3] for row in jobs] == [("job-1", "COMPLETED"), ("job-2", "RUNNING")]

    shown, audit, curves = ask(folder, "jobs", "audit", "metrics")

    found = sorted((one["id"], one["name"], one["state"], one["reason"]) for one in shown)
    assert found == jobs
    told = audit[0]
    assert (told["id"], told["author"], told["reason"]) == command[:3]
    assert (told["state"], told["effective_step"]) == (command[3], command[4])
    points = {
        (one["name"], one["rank"], step, value)
        for one in curves["series"]
        for step, _, value in one["points"]
    }
    assert points == {
        (name, rank, step, value)
        for rank in range(2)
        for step in range(1, 21)
        for name, value in (("loss", 1.0 / step), ("lr", step / 10))
    }
    after = rows(folder, "SELECT seq, job, kind, reason FROM events ORDER BY seq")
    assert after[: len(events)] == events
    for part, head in HEADS.items():
        assert rows(folder, "SELECT version_num FROM alembic_version", part) == [(head,)]
        assert rows(folder, "PRAGMA integrity_check", part) == [("ok",)]


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.db"))
    }


def newer(folder: Path, part: str) -> None:
    """Have one database say that a later version wrote it."""
    with sqlite3.connect(folder / f"{part}.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (f"{part}_99",))
    connection.close()


@pytest.mark.parametrize("part", ["state", "records"])
def test_of_a_newer_and_an_older_database_neither_is_written_to(tmp_path: Path, part: str) -> None:
    folder = restored(tmp_path / "plane", "state_1", "records_1")
    newer(folder, part)
    before = digests(folder)

    with pytest.raises(SchemaNewer) as caught:
        open_store(DatabasePlace(folder))

    assert digests(folder) == before
    words = str(caught.value)
    assert f"'{part}_99'" in words
    assert f"up to '{HEADS[part]}'" in words  # type: ignore[index]
    assert "Install the newer torchloom" in words


@pytest.mark.process
def test_a_weaver_that_meets_a_newer_database_ends_in_words(tmp_path: Path) -> None:
    folder = restored(tmp_path / "home" / "plane", "state_7", "records_3")
    newer(folder, "state")
    before = digests(folder)
    words = ["--home", str(tmp_path / "home"), "--runtime", str(tmp_path)]

    done = subprocess.run(
        [sys.executable, "-m", "torchloom.weaver", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 1
    assert "has schema 'state_99'" in done.stderr
    assert "Traceback" not in done.stderr
    assert digests(folder) == before
