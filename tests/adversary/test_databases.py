"""Databases that are copied, brought back, damaged, unlinked or gone: each is said and survived."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import LoomError, UserError
from torchloom.messages.plane import VERSION, Event, Head
from torchloom.weaver.store import DatabasePlace, NumberedBatch, PlaneStore, open_store
from torchloom.weaver.store.backup import (
    BackupDamaged,
    CopyPace,
    DatabaseDamaged,
    back_up,
    read_manifest,
)
from torchloom.weaver.store.daily_backup import BackupRules, DailyCopy, copies, findings, name_of
from torchloom.weaver.store.integrity import DatabaseHealth
from torchloom.weaver.store.integrity import findings as health_findings
from torchloom.weaver.store.restoration import restore, salvage
from torchloom.weaver.store.rows import Fact
from torchloom.weaver.store.schema import SchemaNewer

from ..cli.test_json import problems
from ..harness.fresh_databases import fresh
from ..harness.plane_jobs import LOOM, PATIENCE

FAST = CopyPace(rest=0.0, least=0.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a state folder with both databases and keys."""
    fresh(tmp_path / "loom" / "plane")
    keys = tmp_path / "loom" / "plane" / "keys" / "authority"
    keys.mkdir(parents=True, mode=0o700)
    (keys / "ca.key").write_text("a key")
    (tmp_path / "loom" / "plane" / "admin.token").write_text("a token\n")
    return tmp_path / "loom"


def place(home: Path) -> DatabasePlace:
    return DatabasePlace(home / "plane")


@contextlib.contextmanager
def opened(home: Path) -> Iterator[PlaneStore]:
    store = open_store(place(home))
    try:
        yield store
    finally:
        store.close()


def events(number: int) -> list[NumberedBatch]:
    head = Head(VERSION, "j", 0, 0, "i")
    return [NumberedBatch(head, number, [Event(head, "x", number, 0.0, {"filling": "y" * 500})])]


def remembered(home: Path) -> str | None:
    """Return what the state database has of a name, read by nobody of ours."""
    with contextlib.closing(sqlite3.connect(home / "plane" / "state.db")) as database:
        row = database.execute("SELECT value FROM facts WHERE name = 'what'").fetchone()
    return str(row[0]) if row else None


def loom(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [LOOM, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
    )


# Backup and restore.


def test_a_backup_made_while_others_commit_is_one_moment_of_each_database(
    home: Path, tmp_path: Path
) -> None:
    over = threading.Event()
    with opened(home) as store, contextlib.closing(store.ingest()) as ingest:
        for number in range(1, 2000):
            ingest.write(events(number))

        def commit() -> None:
            number = 2000
            while not over.is_set():
                store.state.put(Fact("left", number), Fact("right", number))
                ingest.write(events(number))
                number += 1

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            back_up(place(home), home, tmp_path / "copy.tar", CopyPace(pages=4))
        finally:
            over.set()
            thread.join()
        stored = store.records.received()[0].upto

    with tarfile.open(tmp_path / "copy.tar") as tar:
        tar.extractall(tmp_path / "copy", filter="data")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy" / "state.db")) as state:
        values = [row[0] for row in state.execute("SELECT value FROM facts")]
        assert state.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with contextlib.closing(sqlite3.connect(tmp_path / "copy" / "records.db")) as records:
        numbers = [row[0] for row in records.execute("SELECT number FROM events ORDER BY number")]
        (upto,) = records.execute("SELECT upto FROM received").fetchone()
        assert records.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert len(set(values)) <= 1
    assert numbers == list(range(1, upto + 1))
    assert upto < stored  # there were commits meanwhile


@pytest.mark.process
def test_a_backup_is_private_and_restores_databases_and_keys_into_another_home(
    home: Path, tmp_path: Path
) -> None:
    with opened(home) as store:
        store.state.put(Fact("what", "kept"))

    made = loom("backup", "--json", LOOM_HOME=str(home))
    told = json.loads(made.stdout)
    other = tmp_path / "other"
    done = loom("restore", "--json", told["file"], LOOM_HOME=str(other))

    path = Path(told["file"])
    assert problems("backup", told) == []
    assert (path.parent, path.stat().st_mode & 0o777) == (home / "backups", 0o600)
    assert problems("restore", json.loads(done.stdout)) == []
    assert json.loads(done.stdout)["replaced"] is None
    assert "kept" in str(remembered(other))
    assert (other / "plane" / "keys" / "authority" / "ca.key").read_text() == "a key"
    assert (other / "plane" / "admin.token").stat().st_mode & 0o777 == 0o600
    assert "keep it private" in loom("backup", str(tmp_path), LOOM_HOME=str(home)).stderr


def test_what_a_restore_replaces_is_kept_aside(home: Path, tmp_path: Path) -> None:
    with opened(home) as store:
        store.state.put(Fact("what", "before"))
    back_up(place(home), home, tmp_path / "copy.tar", FAST)
    with opened(home) as store:
        store.state.put(Fact("what", "after"))

    done = restore(tmp_path / "copy.tar", place(home), home)

    assert done.replaced is not None
    shutil.copytree(done.replaced, tmp_path / "aside" / "plane")
    assert "before" in str(remembered(home))
    assert "after" in str(remembered(tmp_path / "aside"))
    assert (done.replaced / "keys" / "authority" / "ca.key").exists()


def test_a_weaver_on_an_older_or_a_new_database_has_an_epoch_that_none_had(
    home: Path, tmp_path: Path
) -> None:
    with opened(home) as store:
        epochs = [store.take_epoch("host", 1)]
    back_up(place(home), home, tmp_path / "copy.tar", FAST)
    with opened(home) as store:
        epochs += [store.take_epoch("host", 1), store.take_epoch("host", 1)]

    restore(tmp_path / "copy.tar", place(home), home)
    with opened(home) as store:
        epochs.append(store.take_epoch("host", 1))
    (home / "plane" / "state.db").unlink()
    with opened(home) as store:
        epochs.append(store.take_epoch("host", 1))

    assert epochs == [1, 2, 3, 4, 5]


def damaged(path: Path, how: str) -> None:
    """Spoil a backup in one way."""
    match how:
        case "a flipped byte":
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
        case "cut short":
            os.truncate(path, path.stat().st_size // 2)
        case "another file":
            path.write_bytes(b"no tar at all" * 1000)
        case "an empty file":
            path.write_bytes(b"")


@pytest.mark.parametrize("how", ["a flipped byte", "cut short", "another file", "an empty file"])
def test_a_damaged_backup_is_refused_and_changes_nothing(
    home: Path, tmp_path: Path, how: str
) -> None:
    with opened(home) as store:
        store.state.put(Fact("what", "here"))
    copy = tmp_path / "copy.tar"
    back_up(place(home), home, copy, FAST)
    damaged(copy, how)
    before = sorted(home.rglob("*"))

    with pytest.raises(BackupDamaged, match="use another one"):
        restore(copy, place(home), home)

    assert sorted(home.rglob("*")) == before
    assert "here" in str(remembered(home))


def rewritten(path: Path, **facts: Any) -> Path:
    """Return a backup that says something else of itself."""
    other = path.with_name("other.tar")
    with tarfile.open(path) as old, tarfile.open(other, "w:") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            if member.name == "manifest.json":
                text = json.dumps({**json.loads(file.read()), **facts}).encode()
                member.size = len(text)
                (other.parent / "text").write_bytes(text)
                file = (other.parent / "text").open("rb")  # type: ignore[assignment]
            new.addfile(member, file)
    return other


def test_a_backup_of_a_later_torchloom_is_refused_in_words(home: Path, tmp_path: Path) -> None:
    back_up(place(home), home, tmp_path / "copy.tar", FAST)
    schemas = {"state": "state_99", "records": "records_3"}

    with pytest.raises(SchemaNewer, match=r"state_99.*Install the newer torchloom"):
        restore(rewritten(tmp_path / "copy.tar", schemas=schemas), place(home), home)
    with pytest.raises(UserError, match="version 3 of the format"):
        restore(rewritten(tmp_path / "copy.tar", version=3), place(home), home)


def test_a_backup_cannot_write_outside_of_the_plane(home: Path, tmp_path: Path) -> None:
    back_up(place(home), home, tmp_path / "copy.tar", FAST)
    manifest = read_manifest(tmp_path / "copy.tar")
    files = [{"name": e.name, "size": e.size, "sha256": e.sha256} for e in manifest.files]
    for entry in files:
        entry["name"] = str(entry["name"]).replace("keys/", "keys/../../../")
    other = rewritten(tmp_path / "copy.tar", files=files)
    with tarfile.open(other) as old, tarfile.open(tmp_path / "evil.tar", "w:") as new:
        for member in old:
            file = old.extractfile(member)
            member.name = member.name.replace("keys/", "keys/../../../")
            new.addfile(member, file)

    with pytest.raises(BackupDamaged, match="does not belong to it"):
        restore(tmp_path / "evil.tar", place(home), home)

    assert not (tmp_path / "authority").exists()


@pytest.mark.process
def test_a_restore_under_a_running_plane_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    env = {"LOOM_HOME": str(home), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "LOOM_NATS": ""}
    shutil.rmtree(home / "plane" / "keys")
    back_up(place(home), home, tmp_path / "copy.tar", FAST)
    assert loom("up", "--only", "nats", **env).returncode == 0
    try:
        found = loom("restore", str(tmp_path / "copy.tar"), **env)
        elsewhere = loom("restore", "--salvage", **{**env, "XDG_RUNTIME_DIR": str(tmp_path)})
    finally:
        loom("down", **env)

    assert (found.returncode, elsewhere.returncode) == (2, 2)
    assert "stop it with `loom down`" in found.stderr
    assert "stop it with `loom down`" in elsewhere.stderr
    assert loom("restore", str(tmp_path / "copy.tar"), **env).returncode == 0


def test_a_plane_does_not_start_on_a_restore_that_was_interrupted(
    home: Path, tmp_path: Path
) -> None:
    back_up(place(home), home, tmp_path / "copy.tar", FAST)
    (home / "plane" / "restore.incomplete").touch()
    (home / "plane" / "state.db").unlink()

    with pytest.raises(LoomError, match="interrupted; run `loom restore` again"):
        open_store(place(home))
    restore(tmp_path / "copy.tar", place(home), home)

    open_store(place(home)).close()


# The copy of a day.


def test_a_copy_is_made_a_day_and_the_oldest_go(home: Path, tmp_path: Path) -> None:
    folder = home / "backups"
    folder.mkdir()
    (folder / "backup-20200101-000000.tar").write_text("made by hand")
    (folder / ".daily-20200101-000000.tar.x").mkdir()
    now = [1_800_000_000.0]
    daily = DailyCopy(place(home), home, lambda: now[0])

    made = []
    for hours in (0, 1, 24, 48, 72):
        now[0] = 1_800_000_000.0 + 3600 * hours
        made.append(daily.carry_out(BackupRules(3, folder)))

    kept = [path for _, path in copies(folder)]
    assert [path is not None for path in made] == [True, False, True, True, True]
    assert kept == [made[4], made[3], made[2]]
    assert sorted(path.name for path in folder.iterdir())[0] == "backup-20200101-000000.tar"
    assert [len(read_manifest(path).files) for path in kept] == [4, 4, 4]


def test_a_clock_that_is_set_back_by_a_day_brings_a_copy_and_by_less_none(
    home: Path, tmp_path: Path
) -> None:
    now = [1_800_000_000.0]
    daily = DailyCopy(place(home), home, lambda: now[0])

    made = []
    for hours in (0, -23, 0, 23, -25):
        now[0] = 1_800_000_000.0 + 3600 * hours
        made.append(daily.carry_out(BackupRules(9, tmp_path / "copies")))

    assert [path is not None for path in made] == [True, False, False, False, True]


def test_a_damaged_database_costs_no_copy_that_is_whole(home: Path) -> None:
    folder = home / "backups"
    DailyCopy(place(home), home, lambda: 1_800_000_000.0).carry_out(BackupRules(1, folder))
    spoil(home / "plane" / "records.db")

    with pytest.raises(DatabaseDamaged, match=r"records\.db is damaged"):
        DailyCopy(place(home), home, lambda: 1_900_000_000.0).carry_out(BackupRules(1, folder))

    assert [path.name for path in folder.iterdir()] == [name_of("daily", 1_800_000_000.0)]


def test_doctor_shows_how_old_the_newest_copy_is(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOOMCONFIG", raising=False)
    now = 1_800_000_000.0
    DailyCopy(place(home), home, lambda: now).look()

    fresh_one = findings(home, place(home), now + 3600)
    old = findings(home, place(home), now + 3 * 86_400)
    (tmp_path / ".loomconfig").write_text("[backup]\nkeep = many\n")
    wrong = findings(home, place(home), now)

    assert [one[0].state for one in (fresh_one, old, wrong)] == ["ok", "note", "problem"]
    assert "newest copy 1 h old, 1 kept" in fresh_one[0].text
    assert "write a number" in wrong[0].text


def spoil(path: Path, begin: int = 0) -> None:
    """Overwrite some of a file, as a disk does that fails."""
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"\xa5" * 4096)


# Files that are damaged, removed or replaced.


def filled(home: Path) -> None:
    with opened(home) as store, contextlib.closing(store.ingest()) as ingest:
        for number in range(1, 1001):
            ingest.write(events(number))
        store.state.put(*(Fact(f"fact-{number}", "z" * 200) for number in range(1000)))
        store.state.put(Fact("what", "kept"))


def can_recover(path: Path) -> bool:
    """Tell whether this host's shell of SQLite has `.recover`; some are built without."""
    words = ["sqlite3", str(path), ".recover"]
    with contextlib.suppress(OSError):
        return not subprocess.run(words, capture_output=True, timeout=PATIENCE).stderr
    return False


@pytest.mark.parametrize("shell", ["with the shell of sqlite", "row by row"])
@pytest.mark.parametrize("name", ["records", "state"])
def test_what_can_be_read_of_a_damaged_database_is_salvaged(
    home: Path, name: str, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(home)
    path = home / "plane" / f"{name}.db"
    before = path.stat().st_size
    if shell == "row by row":
        monkeypatch.setenv("PATH", "")
    elif not can_recover(path):
        pytest.skip("there is no shell of sqlite that has .recover")
    for part in (0.6, 0.8):  # where leaves are
        spoil(path, int(before * part) // 4096 * 4096)

    (found,) = salvage(place(home), home)

    table, whole = ("events", 1000) if name == "records" else ("facts", 1001)
    assert (found.name, found.by == "row by row") == (f"{name}.db", shell == "row by row")
    assert whole * 0.9 < found.rows[table] <= whole
    assert (found.replaced / f"{name}.db").stat().st_size == before
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with opened(home) as store, contextlib.closing(store.ingest()) as ingest:
        assert store.damage == {}
        head = Head(VERSION, "j", 0, 0, "later")
        assert ingest.write([NumberedBatch(head, 1, [Event(head, "x", 1, 0.0)])]) == [1]
    assert salvage(place(home), home) == []


def test_a_damaged_state_database_is_named_with_its_remedies(home: Path) -> None:
    spoil(home / "plane" / "state.db")

    with pytest.raises(DatabaseDamaged) as refused:
        open_store(place(home))

    assert str(refused.value).startswith(f"{home}/plane/state.db is damaged (file is not a data")
    assert "`loom restore FILE`" in str(refused.value)
    assert "`loom restore --salvage`" in str(refused.value)


def test_a_damaged_records_database_is_named_and_the_other_half_opens(home: Path) -> None:
    spoil(home / "plane" / "records.db")

    with opened(home) as store:
        store.state.put(Fact("what", "stored"))
        with pytest.raises(LoomError, match=r"records\.db is damaged"):
            store.ingest().write(events(1))

        assert list(store.damage) == ["records"]
        assert "state.db" not in store.damage["records"]
    assert "stored" in str(remembered(home))


def test_a_database_that_is_removed_replaced_or_spoilt_under_its_user_is_noticed(
    home: Path,
) -> None:
    filled(home)
    with opened(home) as store:
        health = DatabaseHealth(store.place, store.damage, lambda: "")
        well = dict(health.problems)
        os.rename(home / "plane" / "state.db", home / "plane" / "aside")
        health.look()
        removed = health.problems["state"]
        shutil.copy(home / "plane" / "aside", home / "plane" / "state.db")
        health.look()
        replaced = health.problems["state"]
        os.rename(home / "plane" / "aside", home / "plane" / "state.db")
        spoil(home / "plane" / "records.db", 40960)
        health.check()
        health.look()
        spoilt = health.problems

    assert well == {}
    assert "state.db was removed while the plane uses it" in removed
    assert "state.db was replaced by another file" in replaced
    assert list(spoilt) == ["records"]
    assert "records.db is damaged" in spoilt["records"]


def test_doctor_checks_files_that_no_plane_uses(home: Path) -> None:
    filled(home)
    well = health_findings(place(home), ())
    spoil(home / "plane" / "records.db", 40960)

    (found,) = health_findings(place(home), ())

    assert [(one.state, one.text) for one in well] == [("ok", "both were checked")]
    assert found.state == "problem"
    assert "records.db is damaged" in found.text
    assert "loom restore" in found.remedy
