"""Readers of the evidence: fault records, `/proc`, databases, checkpoints, step digest logs."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from torchloom.chaos.checker.case import lines_of, object_in

_PARTS = {
    "torchloom.weaver": "weaver",
    "torchloom.server": "server",
    "torchloom.launch.node_agent": "agent",
}
_PAGE = 4096  # bytes
# By name: the database, the condition for the job's rows, and their order.
_TABLES = {
    "jobs": ("state", "id = ?", "id"),
    "events": ("state", "job = ?", "seq"),
    "commands": ("state", "job = ?", "number"),
    "checkpoints": ("state", "job = ?", "step, generation, attempt"),
    "ranks": ("state", "job = ?", "rank"),
    "reports": ("records", "job = ?", "id"),
}
_JSON = ("facts", "payload", "shards", "metrics")
_COMMITTED = re.compile(r"ckpt_step_([0-9]{5,19})")
_DRAFT = re.compile(r"ckpt_step_[0-9]{5,19}\.g[0-9]+-[0-9]+")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault that was injected: its kind, target and times."""

    n: int
    kind: str
    at: float  # unix seconds
    rank: int | None = None
    process: tuple[int, int] | None = None  # pid and start time in ticks
    node: str = ""
    name: str = ""  # the file or the link that was hit
    undone: float | None = None
    recovered: float | None = None
    why: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StruckSeries:
    """One series of faults on a job; faults that missed are only counted."""

    seed: int | None
    faults: tuple[Struck, ...]
    missed: int
    ended: str  # why it ended; empty while it is running


def read_series(path: Path) -> StruckSeries:
    """Return the last series of a record; of several lines about one fault the last one counts."""
    head: Mapping[str, Any] = {}
    strikes: dict[int, Mapping[str, Any]] = {}
    ended = ""
    for line in lines_of(path):
        if "chaos" in line:
            head, strikes, ended = line, {}, ""
        elif "ended" in line:
            ended = str(line.get("why") or "ended")
        elif "n" in line:
            strikes[int(line["n"])] = line
    struck = [one for one in strikes.values() if one.get("outcome") == "struck"]
    missed = sum(one.get("outcome") in ("missed", "refused") for one in strikes.values())
    faults = sorted(map(_fault, struck), key=lambda one: (one.at, one.n))
    return StruckSeries(head.get("seed"), tuple(faults), missed, ended)


def _fault(data: Mapping[str, Any]) -> Struck:
    target = data.get("target") or {}
    pid, started = target.get("pid"), target.get("started")
    return Struck(
        n=int(data["n"]),
        kind=str(data["kind"]),
        at=float(data["struck_at"]),
        rank=target.get("rank"),
        process=None if pid is None or not started else (int(pid), int(started)),
        node=str(target.get("node") or ""),
        name=str(target.get("name") or ""),
        undone=data.get("undone_at"),
        recovered=data.get("recovered_at"),
        why=str(data.get("why") or ""),
        step=data.get("step"),
    )


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process of `/proc`."""

    pid: int
    started: int
    state: str
    memory: int  # bytes
    words: tuple[str, ...]
    env: frozenset[str]

    @property
    def key(self) -> tuple[int, int]:
        """Return the pid and start time, which identify a process."""
        return (self.pid, self.started)

    @property
    def part(self) -> str:
        """Return which part of a plane the process is, if any."""
        if any(word.endswith("nats-server") for word in self.words[:1]):
            return "nats"
        return next((_PARTS[word] for word in self.words if word in _PARTS), "")


def living_processes(proc: Path) -> Iterator[ProcessEntry]:
    """Yield all processes that are not zombies."""
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
                found = _read(entry)
                if found.state not in "ZX":
                    yield found


def _read(entry: Path) -> ProcessEntry:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return ProcessEntry(
        pid=int(entry.name),
        started=int(fields[19]),
        state=fields[0],
        memory=int(fields[21]) * _PAGE,
        words=tuple(_texts(entry / "cmdline")),
        env=frozenset(_texts(entry / "environ")),
    )


def _texts(path: Path) -> list[str]:
    try:
        return [one.decode(errors="replace") for one in path.read_bytes().split(b"\0") if one]
    except PermissionError:  # another user's
        return []


def processes_of_job(found: Iterator[ProcessEntry], job: str) -> list[ProcessEntry]:
    """Return the ranks and agents of a job, by their environment."""
    names = {f"LOOM_JOB={job}", f"LOOM_AGENT_OF={job}"}
    return [one for one in found if names & one.env]


Row = Mapping[str, Any]
Ask = Callable[[str, str, tuple[object, ...]], list[Row]]


@dataclass(frozen=True, slots=True)
class Base:
    """The rows of one job in the databases."""

    jobs: Sequence[Row] = ()
    events: Sequence[Row] = ()
    commands: Sequence[Row] = ()
    checkpoints: Sequence[Row] = ()
    ranks: Sequence[Row] = ()
    reports: Sequence[Row] = ()  # events reported by ranks
    why: str = ""  # why nothing could be read


def read_rows(job: str, home: Path, url: str = "") -> Base:
    """Return the rows of a job, or why they cannot be read."""
    try:
        with contextlib.ExitStack() as open_:
            ask = _postgres(open_, url) if url else _sqlite(open_, home / "plane")
            found: dict[str, Any] = {name: _rows(ask, name, job) for name in _TABLES}
            return Base(**found)
    except (sqlite3.Error, OSError, ImportError) as error:
        return Base(why=f"the database cannot be read: {error}")


def _rows(ask: Ask, name: str, job: str) -> list[Row]:
    base, which, order = _TABLES[name]
    table = "events" if name == "reports" else name
    return [_plain(row) for row in ask(base, f"{table} WHERE {which} ORDER BY {order}", (job,))]


def _plain(row: Row) -> Row:
    """Return a row with its JSON columns parsed, as Postgres returns them."""
    texts = {name: row[name] for name in _JSON if isinstance(row.get(name), str | bytes)}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def _sqlite(open_: contextlib.ExitStack, folder: Path) -> Ask:
    bases = {name: open_.enter_context(_read_only(folder, name)) for name in ("state", "records")}

    def ask(base: str, words: str, values: tuple[object, ...]) -> list[Row]:
        return [dict(row) for row in bases[base].execute(f"SELECT * FROM {words}", values)]

    return ask


@contextlib.contextmanager
def _read_only(folder: Path, name: str) -> Iterator[sqlite3.Connection]:
    path = folder / f"{name}.db"
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as base:
        base.row_factory = sqlite3.Row
        base.execute("PRAGMA busy_timeout = 10000")
        yield base


def _postgres(open_: contextlib.ExitStack, url: str) -> Ask:
    import psycopg
    from psycopg.rows import dict_row

    try:
        base = open_.enter_context(psycopg.connect(url, connect_timeout=10, row_factory=dict_row))
        base.read_only = True
    except psycopg.Error as error:
        raise OSError(str(error)) from error

    def ask(name: str, words: str, values: tuple[object, ...]) -> list[Row]:
        query = words.replace("?", "%s")
        try:
            return list(base.execute(f"SELECT * FROM {name}.{query}".encode(), values))
        except psycopg.Error as error:
            raise OSError(str(error)) from error

    return ask


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One committed checkpoint, from its name and its manifest."""

    step: int
    path: Path
    generation: int | None
    problem: str = ""  # why it is incomplete, without reading its content


def committed_checkpoints(root: str) -> list[SavedCheckpoint] | None:
    """Return the checkpoints of a root by step; None if it is not a folder of this host."""
    if "://" in root and not root.startswith("file://"):
        return None
    folder = Path(root.removeprefix("file://"))
    found = folder.iterdir() if folder.is_dir() else iter(())
    named = ((_COMMITTED.fullmatch(path.name), path) for path in found)
    saved = [_saved(int(match[1]), path) for match, path in named if match]
    there = [one for one in saved if not one.problem or one.path.exists()]  # else just removed
    return sorted(there, key=lambda one: one.step)


def draft_folders(root: str) -> list[Path]:
    """Return the folders of checkpoints that were not committed."""
    folder = Path(root.removeprefix("file://"))
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if _DRAFT.fullmatch(path.name)]


def _saved(step: int, path: Path) -> SavedCheckpoint:
    data = object_in(path / "manifest.json")
    shards = data.get("shards")
    if not isinstance(shards, list) or not shards:
        return SavedCheckpoint(step, path, None, f"{path.name}: no manifest can be read")
    generation = data.get("generation")
    if data.get("step") != step or len(shards) != data.get("world_size"):
        return SavedCheckpoint(
            step,
            path,
            generation,
            f"{path.name}: its manifest belongs to another checkpoint, or is truncated",
        )
    missing = [one["name"] for one in shards if not (path / one["name"]).is_file()]
    problem = f"{path.name}: {missing[0]} is missing" if missing else ""
    return SavedCheckpoint(step, path, generation, problem)


def damage(saved: SavedCheckpoint) -> str:
    """Read a whole checkpoint; return how it differs from its manifest."""
    if saved.problem:
        return saved.problem
    for shard in object_in(saved.path / "manifest.json").get("shards", ()):
        found = _differs(saved.path / shard["name"], shard)
        if found and saved.path.exists():  # else it has just been removed
            return f"{saved.path.name}: {found}"
    return ""


def _differs(path: Path, shard: dict[str, Any]) -> str:
    try:
        if path.stat().st_size != shard["size"]:
            return f"{path.name} has {path.stat().st_size} bytes, not {shard['size']}"
        return "" if _hash(path) == shard["hash"] else f"{path.name} has a different hash"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"


def _hash(path: Path) -> str:
    content = blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            content.update(block)
    return f"blake3:{content.hexdigest()}"


DigestLog = tuple["DigestLine", ...]  # of one rank, in the order it was written


@dataclass(frozen=True, slots=True)
class DigestLine:
    """One step of one rank, or its state at the start of a generation."""

    attempt: int
    generation: int
    incarnation: str
    process: tuple[int, int]
    is_applied: bool
    step: int
    bits: tuple[str, str, str]  # of parameters, optimizers, buffers
    samples: str | None
    rng: str | None  # RNG state; `chance` in the file
    time: float


def read_digests(folder: Path | None) -> tuple[DigestLog, ...]:
    """Return the digest logs of a folder by rank; empty for a rank without one."""
    paths = {} if folder is None else {_rank(path): path for path in folder.glob("rank_*.jsonl")}
    ranks = range(max(paths, default=-1) + 1)
    return tuple(_log(paths[rank]) if rank in paths else () for rank in ranks)


def applied_steps(log: Iterable[DigestLine]) -> list[DigestLine]:
    """Return the steps that a rank applied itself."""
    return [line for line in log if line.is_applied]


def final_steps(log: Iterable[DigestLine]) -> dict[int, DigestLine]:
    """Return each step as it was applied last."""
    return {line.step: line for line in log if line.is_applied}


def _rank(path: Path) -> int:
    number = path.stem.removeprefix("rank_")
    return int(number) if number.isdecimal() else -1


def _log(path: Path) -> DigestLog:
    return tuple(_line(data) for data in lines_of(path))


def _line(data: Mapping[str, Any]) -> DigestLine:
    return DigestLine(
        attempt=int(data["attempt"]),
        generation=int(data["generation"]),
        incarnation=str(data["incarnation"]),
        process=(int(data["pid"]), int(data["started"])),
        is_applied=data["kind"] == "applied",
        step=int(data["step"]),
        bits=(data["digest"], data["state"], data["own"]),
        samples=data["samples"],
        rng=data["chance"],
        time=float(data["time"]),
    )
