"""Collect the evidence about a job once, for judges that only compare."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.chaos.checker import readers
from torchloom.chaos.checker.case import Case, status
from torchloom.chaos.checker.readers import DigestLog

_SEED = re.compile(rb"S[UAO][A-Z2-7]{56}")  # of a key of NATS
_FAILED = re.compile(rb"\b500 Internal Server Error\b")
_SHORTEST = 12  # characters of a secret that is searched for
_LARGEST = 64 << 20  # bytes of a file that are searched
TIMEOUT = 20.0  # seconds
_AWAY = (502, 503)  # the status while a part of the plane is down
_JOB = {"id", "name", "state", "reason", "step", "run_id", "attempt", "generation", "ranks"}
_SHAPES: Mapping[str, tuple[set[str], set[str]]] = {  # fields of the reply and of its items
    "": (_JOB, set()),
    "/ranks": ({"items"}, {"rank", "node", "pid", "state", "step", "generation"}),
    "/events": ({"items", "next"}, {"time", "job", "kind", "rank"}),
    "/checkpoints": ({"items"}, {"job", "step", "generation", "state", "place"}),
}
TTL = 60.0  # seconds that an abandoned checkpoint draft may exist
_NO_DIGESTS = "the ranks wrote no step digest log: run the job with LOOM_LEDGER=DIR"
_NEWEST = 2  # checkpoints that are read while the job is running


def leaks(case: Case) -> tuple[str, ...]:
    """Return the files that contain a secret or an internal server error."""
    secrets = _secrets(case.home / "plane")
    found = []
    for path in _texts(case):
        with path.open("rb") as file:
            text = file.read(_LARGEST)
        if _SEED.search(text) or any(secret in text for secret in secrets):
            found.append(f"a secret is in {path.relative_to(case.home)}")
        if path.parent.name == "logs" and _FAILED.search(text):
            found.append(f"a reply was 500, by {path.name}")
    return tuple(found)


def _secrets(plane: Path) -> set[bytes]:
    words: set[bytes] = set()
    for path in (plane / "admin.token", *(plane / "keys").glob("*.token")):
        if path.is_file():
            words.update(path.read_bytes().split())
    return {word for word in words if len(word) >= _SHORTEST}


def _texts(case: Case) -> Iterator[Path]:
    """Yield the files that users read: logs, events, records; not the folder of keys."""
    found = [*(case.home / "plane" / "logs").rglob("*"), *(case.run / "logs").rglob("*")]
    for path in (*found, *case.run.glob("*.json*"), *case.run.glob("*.log")):
        if path.is_file() and path.is_relative_to(case.home):
            yield path


def wrong_answers(case: Case) -> tuple[str, ...]:
    """Return problems of the API's replies; a plane that is briefly down is no problem."""
    return tuple(fact for path in _SHAPES for fact in _wrong(case, path))


def _wrong(case: Case, path: str) -> Iterator[str]:
    url = f"/api/jobs/{case.job}{path}"
    try:
        found = _asked(case, url)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in _AWAY:
            yield f"{url}: the reply was {error.code}"
        return
    except ValueError:
        yield f"{url}: the reply is not JSON"
        return
    except OSError:  # it is restarting
        return
    of_all, of_each = _SHAPES[path]
    if missing := of_all - found.keys():
        yield f"{url}: no {min(missing)} in the reply"
    for item in found.get("items") or ():
        if missing := of_each - item.keys():
            yield f"{url}: no {min(missing)} in an item"
            return


def _asked(case: Case, url: str) -> dict[str, Any]:
    token = (case.home / "plane" / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{case.api.rstrip('/')}{url}", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        found = json.load(answer)
    return found if isinstance(found, dict) else {}


def find_leftovers(case: Case, root: str, is_over: bool = True) -> tuple[str, ...]:
    """Return processes, shared memory and drafts that are left over after a grace period.

    Of a running job, only processes of incarnations that were replaced, and drafts.
    """
    deadline = time.monotonic() + case.patience
    while found := [*_processes(case), *_memory(case)] if is_over else list(_outlived(case)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return (*found, *_drafts(root))


def _processes(case: Case) -> Iterator[str]:
    everyone = list(readers.living_processes(case.proc))
    written = {line.process for log in readers.read_digests(case.digests) for line in log}
    named = {one.key for one in readers.processes_of_job(iter(everyone), case.job)}
    for one in everyone:
        if one.key in written | named:
            yield f"process {one.pid} is still running: {' '.join(one.words)[:60]}"


def _outlived(case: Case) -> Iterator[str]:
    """Yield processes of earlier incarnations of a rank, by their environment."""
    found = [
        (_slot(one), one)
        for one in readers.processes_of_job(readers.living_processes(case.proc), case.job)
    ]
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    for (place, number), _ in found:
        newest[place] = max(number, newest.get(place, number))
    for (place, number), one in found:
        if place[1] and number < newest[place]:
            yield f"process {one.pid} of an earlier incarnation of rank {place[1]} is running"


def _slot(one: readers.ProcessEntry) -> tuple[tuple[str, str], tuple[int, int]]:
    """Return the role and rank of a process, and its attempt and incarnation number."""
    env = dict(entry.partition("=")[::2] for entry in one.env)
    numbers = (env.get("LOOM_ATTEMPT", ""), env.get("LOOM_LIFE", ""))
    attempt, incarnation = (int(text) if text.isdecimal() else 0 for text in numbers)
    return (env.get("LOOM_ROLE", ""), env.get("RANK", "")), (attempt, incarnation)


def _memory(case: Case) -> Iterator[str]:
    for path in sorted(case.shm.glob(f"*{case.job}*")):
        yield f"{path} still exists"


def _drafts(root: str) -> Iterator[str]:
    if "://" in root:
        return
    for path in readers.draft_folders(root):
        age = time.time() - path.stat().st_mtime
        if age > TTL:
            yield f"{path.name} was begun {age:.0f} s ago and never committed"


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a job and its plane at one moment."""

    n: int  # after which fault; -1: before the first
    time: float
    alive: tuple[tuple[int, tuple[str, ...]], ...]  # by rank: incarnations with a live process
    newest: int | None  # the highest committed step
    half: str  # a checkpoint that is named as committed but is incomplete
    memory: tuple[tuple[str, int], ...]  # bytes of each part of the plane
    spool: int  # bytes
    logs: int  # bytes, of the plane
    answers: tuple[str, ...] | None = None  # problems of the API's replies, if checked


def look(case: Case, n: int, root: str) -> Observation:
    """Return an observation of this moment."""
    found = list(readers.living_processes(case.proc))
    saved = readers.committed_checkpoints(root) or []
    ours = [one for one in found if f"LOOM_HOME={case.home}" in one.env and one.part]
    return Observation(
        n=n,
        time=time.time(),
        alive=_alive(case, {one.key for one in found}),
        newest=max((one.step for one in saved), default=None),
        half=next((one.problem for one in saved if one.problem), ""),
        memory=tuple(sorted((one.part, one.memory) for one in ours)),
        spool=_bytes(case.home / "plane" / "spool"),
        logs=_bytes(case.home / "plane" / "logs"),
        answers=wrong_answers(case) if case.api else None,
    )


def _alive(case: Case, living: set[tuple[int, int]]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return, for each rank, the incarnations in its digest log that still have a process."""
    return tuple(
        (rank, tuple(dict.fromkeys(line.incarnation for line in log if line.process in living)))
        for rank, log in enumerate(readers.read_digests(case.digests))
    )


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # it was just removed
            continue
    return total


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """Evidence about one job, collected from outside of it."""

    series: readers.StruckSeries
    digest_logs: tuple[DigestLog, ...]
    expected: tuple[DigestLog, ...] | None  # of an undisturbed run
    base: readers.Base
    root: str
    saved: tuple[readers.SavedCheckpoint, ...] | None
    there: frozenset[str]  # names of checkpoints that existed before or after the database was read
    damage: tuple[tuple[str, str], ...]  # by name of a checkpoint
    looks: tuple[Observation, ...]
    left: tuple[str, ...] | None  # leftovers; None if they were not searched for
    leaks: tuple[str, ...]
    is_over: bool = True
    begins: int | None = 0  # the step that digest logs must begin with; None: any
    silent: str = ""  # why some ranks have no digest log, if so

    @property
    def faults(self) -> tuple[readers.Struck, ...]:
        """Return the faults."""
        return self.series.faults

    @property
    def hit(self) -> frozenset[str]:
        """Return the names of checkpoints that were damaged on purpose."""
        shards = (Path(one.name) for one in self.faults if one.kind == "corrupt-shard")
        return frozenset(shard.parent.name.partition(".bad")[0] for shard in shards)


def gather(
    case: Case, looks: tuple[Observation, ...], is_over: bool, whole: bool = True
) -> JobEvidence:
    """Collect the evidence; without `whole`, read only the newest checkpoints and no logs."""
    root, against = case.checkpoints, case.against
    saved = readers.committed_checkpoints(root)
    read = (saved or [])[0 if whole else -_NEWEST :]
    base, own = (
        readers.read_rows(case.job, case.home, case.database),
        readers.read_digests(case.digests),
    )
    seen = (*(saved or ()), *(readers.committed_checkpoints(root) or ()))
    return JobEvidence(
        series=readers.read_series(case.struck),
        digest_logs=own,
        expected=None if against is None else readers.read_digests(against),
        base=base,
        root=root,
        saved=None if saved is None else tuple(saved),
        there=frozenset(one.path.name for one in seen),
        damage=tuple((one.path.name, readers.damage(one)) for one in read),
        looks=looks,
        left=find_leftovers(case, root, is_over) if is_over or whole else None,
        leaks=leaks(case) if whole else (),
        is_over=is_over,
        begins=0 if case.is_from_start else None,
        silent=_silent(case, own),
    )


def _silent(case: Case, own: tuple[DigestLog, ...]) -> str:
    """Return why the steps of some ranks are unknown, if so."""
    if not any(own):
        return case.no_digests or _NO_DIGESTS
    written = {rank for rank, log in enumerate(own) if log}
    ranks = {int(one["rank"]) for one in status(case.run).get("ranks") or ()}
    missing = sorted(ranks - written)
    return f"rank {missing[0]} wrote no step digest log" if missing else ""
