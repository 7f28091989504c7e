"""`-l`: the resources a job asks for, by the grammar of pbs_resources(7B)."""

import re
from dataclasses import dataclass
from math import ceil

from ..batch.job import Chunk
from .words import (
    BADATVAL,
    DUPRESC,
    INVALJOBRESC,
    INVALNODEPLACE,
    INVALSELECTRESC,
    PLACENOSELECT,
    UNKRESC,
    Rejected,
)

NUMBER = re.compile(r"\d+")
TIME = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+)(?:\.\d+)?")
SIZE = re.compile(r"(\d+)([kmgtp]?)([bw]?)", re.IGNORECASE)
TEXT = re.compile(r"[^\s]+")
IN_CHUNK = {
    "ncpus": NUMBER,
    "ngpus": NUMBER,
    "mpiprocs": NUMBER,
    "ompthreads": NUMBER,
    "naccelerators": NUMBER,
    "mem": SIZE,
    "vmem": SIZE,
    "host": TEXT,
    "vnode": TEXT,
    "arch": TEXT,
}
JOB_WIDE = {
    "walltime": TIME,
    "cput": TIME,
    "pcput": TIME,
    "soft_walltime": TIME,
    "pmem": SIZE,
    "pvmem": SIZE,
    "file": SIZE,
    "nice": NUMBER,
    "software": TEXT,
    "filesystems": TEXT,  # a site's own
}
ARRANGEMENTS = ("free", "pack", "scatter", "vscatter")
SHARING = ("excl", "shared", "exclhost")
UNITS = " kmgtp"


class IllegalList(Exception):
    """Not even `name=value[,name=value ...]`."""


@dataclass(frozen=True)
class Wanted:
    """What `-l` said, and what it means."""

    listed: dict[str, str]  # Resource_List, as qstat shows it
    chunks: list[Chunk]
    arrange: str
    exclusive: bool
    walltime: float | None


def split(value: str) -> dict[str, str]:
    """Part one `-l` in names and values; of a name that comes twice the last counts."""
    found = {}
    for item in value.split(","):
        name, sign, text = item.strip().partition("=")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or not sign or not text:
            raise IllegalList(value)
        found[name] = text
    return found


def understand(asked: dict[str, str]) -> Wanted:
    """Check every resource as the server does, and add what it adds."""
    listed = dict(asked)
    modern = {"select", "place"} & asked.keys()
    if "nodes" in listed:
        if modern:
            raise Rejected(INVALNODEPLACE)
        listed |= {"select": _select_of(listed["nodes"]), "place": "scatter"}
        modern = {"select"}
    for name, value in asked.items():
        if name in ("select", "place", "nodes"):
            continue
        if name in IN_CHUNK and modern:
            raise Rejected(INVALJOBRESC, f": {name}")
        _check(name, value, {**JOB_WIDE, **IN_CHUNK}.get(name))
    if "place" in listed and "select" not in listed:
        raise Rejected(PLACENOSELECT)
    if "select" not in listed:
        old = {name: value for name, value in listed.items() if name in IN_CHUNK}
        listed["select"] = ":".join(["1", *(f"{n}={v}" for n, v in {"ncpus": "1", **old}.items())])
    chunks = _chunks(listed["select"])
    arrange, exclusive = _place(listed.setdefault("place", "free" if modern else "pack"))
    listed |= {"nodect": str(len(chunks)), "ncpus": str(sum(chunk.cpus for chunk in chunks))}
    if gpus := sum(chunk.gpus for chunk in chunks):
        listed["ngpus"] = str(gpus)
    if ranks := sum(chunk.ranks for chunk in chunks if "mpiprocs" in listed["select"]):
        listed["mpiprocs"] = str(ranks)
    walltime = seconds(listed["walltime"]) if "walltime" in listed else None
    if walltime is not None:
        listed["walltime"] = clock(walltime)
    return Wanted(listed, chunks, arrange, exclusive, walltime)


def seconds(text: str) -> float:
    """Return a duration `[[hours:]minutes:]seconds` in seconds."""
    match = TIME.fullmatch(text)
    if not match:
        raise Rejected(BADATVAL, " Resource_List.walltime")
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + rest)


def clock(duration: float) -> str:
    """Return seconds as PBS shows them, HH:MM:SS."""
    whole = int(duration)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def _check(name: str, value: str, form: re.Pattern[str] | None) -> None:
    if form is None:
        raise Rejected(UNKRESC, f" Resource_List.{name}")
    if not form.fullmatch(value):
        raise Rejected(BADATVAL, f" Resource_List.{name}")


def _select_of(nodes: str) -> str:
    match = re.fullmatch(r"(\d+)(?::ppn=(\d+))?", nodes)
    if not match:
        raise Rejected(BADATVAL, " Resource_List.nodes")
    ppn = match[2] or "1"
    return f"{match[1]}:ncpus={ppn}:mpiprocs={ppn}"


def _chunks(select: str) -> list[Chunk]:
    chunks: list[Chunk] = []
    for part in select.split("+"):
        words = part.split(":")
        count = words.pop(0) if NUMBER.fullmatch(words[0]) else "1"
        if not int(count):
            raise Rejected(BADATVAL, " Resource_List.select")
        chunks += [_chunk(words)] * int(count)
    return chunks


def _chunk(words: list[str]) -> Chunk:
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise Rejected(BADATVAL, " Resource_List.select")
        if name in JOB_WIDE:
            raise Rejected(INVALSELECTRESC, f": {name}")
        if name not in IN_CHUNK:
            raise Rejected(UNKRESC, f": {name}")
        if name in found:
            raise Rejected(DUPRESC, f": {name}")
        if not IN_CHUNK[name].fullmatch(value):
            raise Rejected(BADATVAL, " Resource_List.select")
        found[name] = value
    cpus = int(found.get("ncpus", 1))
    return Chunk(
        cpus=cpus,
        gpus=int(found.get("ngpus", 0)),
        memory_mb=_megabytes(found.get("mem", "0")),
        ranks=int(found.get("mpiprocs", 1 if cpus else 0)),
        host=found.get("host", found.get("vnode", "")),
    )


def _megabytes(size: str) -> int:
    match = SIZE.fullmatch(size)
    assert match
    scale: int = 1024 ** UNITS.index(match[2].lower() or " ")
    return ceil(int(match[1]) * scale * (8 if match[3].lower() == "w" else 1) / 1024**2)


def _place(text: str) -> tuple[str, bool]:
    arrange, exclusive = "free", False
    for word in text.split(":"):
        if word in ARRANGEMENTS:
            arrange = "scatter" if word == "vscatter" else word
        elif word in SHARING:
            exclusive = word != "shared"
        elif word != "group=host":
            raise Rejected(BADATVAL, " Resource_List.place")
    return arrange, exclusive
