"""What is judged: where a job has left what it did, and what was done to it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """Where to look. Nothing in it is asked of the job or of its plane."""

    job: str
    run: Path
    home: Path
    database: str = ""  # a Postgres URL; else there are files in the home
    ledger: Path | None = None
    is_from_start: bool = True  # the ledgers begin with the job; else with the series
    no_ledger: str = ""  # why there is none, if that is known
    against: Path | None = None  # the ledgers of a run that nobody disturbed
    api: str = ""  # where the plane answers, if it is to be asked
    proc: Path = Path("/proc")
    shm: Path = Path("/dev/shm")
    patience: float = 20.0  # seconds in which the last processes of a job may leave

    @property
    def struck(self) -> Path:
        """Return the record of what was done to the job."""
        return self.run / "chaos.jsonl"

    @property
    def checkpoints(self) -> str:
        """Return the root of the job's checkpoints, which may be a bucket."""
        return str(status(self.run).get("checkpoints") or self.run / "checkpoints")


def case_of(
    job: str,
    run: Path,
    env: Mapping[str, str],
    against: Path | None = None,
    api: str = "",
    log: Path | None = None,
    no_log: str = "",
) -> Case:
    """Return where a job has left what it did, by its own folder and by an environment.

    `log` is a ledger that was begun for the series; `no_log` is why it could not be.
    """
    home, database = run.absolute().parent.parent, env.get("LOOM_DATABASE", "")
    if database:
        database = f"postgresql://{database.partition('://')[2]}"
    api = api if api.startswith("http://") else ""
    ledger = log or ledger_of(run, env)
    return Case(job, run, home, database, ledger, log is None, no_log, against, api)


def status(run: Path) -> dict[str, Any]:
    """Return what a launch last wrote of its run; nothing where it wrote none."""
    return object_in(run / "status.json")


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file; the last may have been cut short by its writer's end."""
    whole = path.read_bytes() if path.exists() else b""
    for line in whole.split(b"\n")[:-1]:
        told = _parsed(line)
        if told:
            yield told


def ledger_of(run: Path, env: Mapping[str, str]) -> Path | None:
    """Return the folder that the job's ranks were told to write their books in.

    A job that was launched in the foreground has it from an environment like ours.
    """
    roles = object_in(run / "app.json").get("roles") or ()
    told = [(role.get("env") or {}).get("LOOM_LEDGER") for role in roles]
    found = next(filter(None, (*told, env.get("LOOM_LEDGER"))), None)
    return Path(found) if found else None


def object_in(path: Path) -> dict[str, Any]:
    """Return the object that a file holds; nothing where it holds none."""
    return _parsed(path.read_bytes()) if path.exists() else {}


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
