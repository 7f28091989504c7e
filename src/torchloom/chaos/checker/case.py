"""The case to judge: where the traces of a job and of its faults are."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """Places of the evidence; none of them comes from the job or its plane."""

    job: str
    run: Path
    home: Path
    database: str = ""  # a Postgres URL; else SQLite files in `home`
    digests: Path | None = None  # the step digest logs
    is_from_start: bool = True  # the digest logs begin with the job; else with the series
    no_digests: str = ""  # why there are none, if that is known
    against: Path | None = None  # the digest logs of an undisturbed run
    api: str = ""  # URL of the plane, if it is to be checked
    proc: Path = Path("/proc")
    shm: Path = Path("/dev/shm")
    patience: float = 20.0  # seconds for the last processes of a job to end

    @property
    def struck(self) -> Path:
        """Return the record of the faults."""
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
    """Return the case of a job, from its run folder and an environment.

    `log` is a digest log that was begun for the series; `no_log` is why there is none.
    """
    home, database = run.absolute().parent.parent, env.get("LOOM_DATABASE", "")
    if database:
        database = f"postgresql://{database.partition('://')[2]}"
    api = api if api.startswith("http://") else ""
    digests = log or digests_of(run, env)
    return Case(job, run, home, database, digests, log is None, no_log, against, api)


def status(run: Path) -> dict[str, Any]:
    """Return the last status that a launch wrote; empty if there is none."""
    return object_in(run / "status.json")


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a JSON lines file; the last one may be torn."""
    whole = path.read_bytes() if path.exists() else b""
    for line in whole.split(b"\n")[:-1]:
        found = _parsed(line)
        if found:
            yield found


def digests_of(run: Path, env: Mapping[str, str]) -> Path | None:
    """Return the folder of the ranks' step digest logs.

    A job that was launched in the foreground has it from the environment of its shell.
    """
    roles = object_in(run / "app.json").get("roles") or ()
    named = [(role.get("env") or {}).get("LOOM_LEDGER") for role in roles]
    found = next(filter(None, (*named, env.get("LOOM_LEDGER"))), None)
    return Path(found) if found else None


def object_in(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none."""
    return _parsed(path.read_bytes()) if path.exists() else {}


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
