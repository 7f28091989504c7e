"""Variables of a job that are marked as secret: only its ranks know them."""

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.records.parcel import Parcel
from torchloom.sealed import HIDDEN, SecretUnusable, hide, seal, unseal

from ..cli.conftest import Loom, loom, state, until

__all__ = ["loom", "state"]

CANARY = "canary-8e21$4b"
MARKED = f"secret:{CANARY}"
TELL = """
import json, os, sys, time
with open(sys.argv[1] + os.environ.get("RANK", "0"), "w") as file:
    json.dump({"own": os.environ["HF_TOKEN"], "spec": os.environ.get("LOOM_JOB_SPEC", "")}, file)
deadline = time.monotonic() + 60
while not os.path.exists(sys.argv[1] + "end") and time.monotonic() < deadline:
    time.sleep(0.02)
"""


def test_a_sealed_value_is_opened_by_its_name_and_its_key_alone(state: Path) -> None:
    stored = seal({"HF_TOKEN": MARKED, "PLAIN": "x"})
    key = state / "plane/keys/secrets.key"

    assert CANARY not in json.dumps(stored)
    assert stored == seal({"HF_TOKEN": MARKED, "PLAIN": "x"})  # a repeated submit is the same
    assert unseal(stored) == {"HF_TOKEN": CANARY, "PLAIN": "x"}
    assert (
        hide(stored)
        == hide({"HF_TOKEN": MARKED, "PLAIN": "x"})
        == {
            "HF_TOKEN": HIDDEN,
            "PLAIN": "x",
        }
    )
    assert (stat.S_IMODE(key.stat().st_mode), key.stat().st_uid) == (0o600, os.getuid())
    with pytest.raises(SecretUnusable, match="another name"):
        unseal({"OTHER": stored["HF_TOKEN"]})
    damaged = stored["HF_TOKEN"][:-6] + "AAAAA="
    with pytest.raises(SecretUnusable, match="another key"):
        unseal({"HF_TOKEN": damaged})
    key.unlink()
    with pytest.raises(SecretUnusable, match=r"secrets\.key: No such file"):
        unseal(stored)


@pytest.mark.process
def test_a_secret_of_a_job_of_the_queue_is_nowhere_but_in_its_ranks(
    planed: Loom, tmp_path: Path
) -> None:
    job = _submitted(planed, tmp_path, "-d", "job.json")
    told = [_written(tmp_path / f"out{rank}") for rank in (0, 1)]

    assert [one["own"] for one in told] == [CANARY, CANARY]
    assert CANARY not in told[0]["spec"]
    _check_shown(planed, job)
    assert _holders(planed.home.parent, CANARY.encode()) == []
    assert _in_databases(planed.home, CANARY) == []
    assert _in_command_lines(CANARY) == []
    (tmp_path / "outend").touch()
    assert planed("show", "--wait", job).returncode == 0
    assert _holders(planed.home.parent, CANARY.encode()) == []


@pytest.mark.process
def test_a_secret_of_a_program_that_is_run_at_once_is_not_written_either(
    loom: Loom, tmp_path: Path
) -> None:
    Path("tell.py").write_text(TELL)
    (tmp_path / "outend").touch()

    done = loom("run", "-n", "2", "-e", f"HF_TOKEN={MARKED}", "tell.py", f"{tmp_path}/out")
    planned = loom("plan", "-n", "2", "-e", f"HF_TOKEN={MARKED}", "tell.py")

    assert done.returncode == 0, done.stderr
    assert _written(tmp_path / "out1")["own"] == CANARY
    assert planned.returncode == 0
    assert CANARY.encode() not in planned.stdout + planned.stderr
    assert _holders(loom.home, CANARY.encode()) == []
    _check_shown(loom, loom.ids()[0])


@pytest.mark.process
@pytest.mark.parametrize("engine", ["slurm", "pbs", "lsf"])
def test_a_plan_of_an_engine_shows_no_secret(loom: Loom, engine: str) -> None:
    Path("tell.py").write_text(TELL)
    words = ["plan", "-s", engine, "-n", "2", "-e", f"HF_TOKEN={MARKED}", "tell.py", "out"]

    for more in ([], ["--json"]):
        done = loom(*words, *more)
        assert done.returncode == 0, done.stderr
        assert CANARY.encode() not in done.stdout + done.stderr


def test_the_files_of_a_batch_job_hold_a_secret_sealed(state: Path, tmp_path: Path) -> None:
    role = {"name": "r", "image": "", "entrypoint": "true", "env": {"HF_TOKEN": MARKED}}
    app = {"name": "told", "roles": [role]}
    parcel = Parcel("told-1", "torchx", "slurm", app, {}, {"PATH": "/bin"}, "/", "SLURM_JOB_ID")

    (tmp_path / "job").mkdir()
    parcel.write(tmp_path / "job")

    assert _holders(tmp_path, CANARY.encode()) == []
    read = Parcel.read(tmp_path / "job")
    assert unseal(read.app["roles"][0]["env"]) == {"HF_TOKEN": CANARY}


@pytest.fixture
def planed(loom: Loom, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loom]:
    monkeypatch.setenv("LOOM_PLANE", "1")
    assert loom("up").returncode == 0
    yield loom
    loom("down")


def _submitted(loom: Loom, folder: Path, *words: str) -> str:
    Path("tell.py").write_text(TELL)
    spec = {
        "name": "tell",
        "script": os.path.abspath("tell.py"),
        "args": [f"{folder}/out"],
        "env": {"HF_TOKEN": MARKED},
        "resources": {"workers": 2},
    }
    Path("job.json").write_text(json.dumps(spec))
    sent = loom("run", "--json", *words)
    Path("job.json").unlink()
    assert sent.returncode == 0, sent.stderr
    assert CANARY.encode() not in sent.stdout + sent.stderr
    job: str = json.loads(sent.stdout)["id"]
    return job


def _check_shown(loom: Loom, job: str) -> None:
    for words in (["--spec"], ["--spec", "--json"], ["--json"], ["--events"], []):
        done = loom("show", job, *words)
        assert done.returncode == 0, done.stderr
        assert CANARY.encode() not in done.stdout + done.stderr, words
    assert HIDDEN.encode() in loom("show", job, "--spec").stdout


def _written(path: Path) -> dict[str, Any]:
    def read() -> object:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            return None

    found: dict[str, Any] = until(read, str(path))
    return found


def _holders(folder: Path, text: bytes) -> list[str]:
    """Return the files below a folder that have the text, but those that the ranks wrote."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path in files if path.name not in ("out0", "out1") and _has(path, text)]


def _has(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:  # gone meanwhile
        return False


def _in_databases(home: Path, text: str) -> list[str]:
    """Return the tables of the plane's databases in which the text is, read row by row."""
    found = []
    for path in (home / "plane").glob("*.db"):
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as base:
            tables = base.execute("select name from sqlite_master where type = 'table'").fetchall()
            for (table,) in tables:
                rows = base.execute(f'select * from "{table}"')
                found += [f"{path.name}.{table}" for row in rows if text in repr(row)]
    return found


def _in_command_lines(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in words:
                found.append(entry.name)
    return found
