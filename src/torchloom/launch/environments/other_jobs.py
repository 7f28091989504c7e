"""Find the user's running job from a second shell, by asking Slurm, PBS or LSF."""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from torchloom.errors import Ambiguous
from torchloom.launch.environments.world import World
from torchloom.launch.hosts.host_lists import BadNodelist, expand, expand_counts, index_of

Run = Callable[[Sequence[str]], str]  # runs words, returns what they print, raises if it cannot

KEPT_SECONDS = 30.0  # a controller of thousands of nodes should not be asked at every command


class JobsElsewhere:
    """Ask each scheduler once, remember the answer for half a minute; in `memory` for the next
    command, too."""

    def __init__(
        self,
        run: Run,
        user: str,
        clock: Callable[[], float] = time.time,
        memory: Path | None = None,
    ) -> None:
        self._run = run
        self._user = user
        self._clock = clock
        self._memory = memory
        self._found: tuple[World, ...] = ()
        self._asked_at: float | None = None

    def all(self) -> tuple[World, ...]:
        """Return the user's running jobs as allocations; none where there is no scheduler."""
        now = self._clock()
        if self._asked_at is None:
            self._recall()
        if self._asked_at is None or not 0 <= now - self._asked_at < KEPT_SECONDS:
            self._found = tuple(job for ask in (_slurm, _pbs, _lsf) for job in self._ask(ask))
            self._asked_at = now
            self._note()
        return self._found

    def _recall(self) -> None:
        """Take over what an earlier command has learnt; whatever cannot be read was not learnt."""
        if self._memory is None:
            return
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            data = json.loads(self._memory.read_text())
            self._found = tuple(World(**{**job, **_tuples(job)}) for job in data["jobs"])
            self._asked_at = float(data["asked_at"])

    def _note(self) -> None:
        if self._memory is None:
            return
        jobs = [asdict(job) for job in self._found]
        partial = self._memory.with_name(f"{self._memory.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps({"asked_at": self._asked_at, "jobs": jobs}))
            partial.replace(self._memory)

    def one(self, own_host: str, job_id: str | None = None) -> World | None:
        """Return the job that was named, else that of this host, else the only one there is."""
        jobs = [job for job in self.all() if job_id in (None, job.job_id)]
        here = [job for job in jobs if index_of(own_host, job.hosts) is not None]
        chosen = here or jobs
        if len(chosen) > 1:
            ids = [f"{job.job_id} ({job.flavour}, {job.nhosts} hosts)" for job in chosen]
            raise Ambiguous("job to join", "yours", ids)
        return chosen[0] if chosen else None

    def _ask(self, ask: Callable[[Run, str], Iterator[World]]) -> tuple[World, ...]:
        try:
            return tuple(ask(self._run, self._user))
        except (OSError, SubprocessError, BadNodelist):
            return ()  # no such scheduler here, or it does not answer: then there is no job to join


def _tuples(job: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(job[name]) for name in ("hosts", "slots", "notes")}


def _slurm(run: Run, user: str) -> Iterator[World]:
    """Heterogeneous jobs print one line a component, `7+0` and `7+1`: their hosts are joined."""
    text = run(["squeue", "-h", "-u", user, "-t", "RUNNING", "-o", "%i|%N"])
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        job, _, nodes = line.strip().partition("|")
        if hosts := expand(nodes):
            found.setdefault(job.partition("+")[0], []).extend(hosts)
    for job, names in found.items():
        yield World("slurm", tuple(names), job_id=job, elsewhere=True)


def _pbs(run: Run, user: str) -> Iterator[World]:
    ids = run(["qselect", "-u", user, "-s", "R"]).split()
    if not ids:
        return
    text = run(["qstat", "-f", *ids])
    whole = re.sub(r"\n\t", "", text)  # long values continue after a tab
    for block in re.split(r"^Job Id: ", whole, flags=re.MULTILINE)[1:]:
        job = block.partition("\n")[0].strip().partition(".")[0]
        match = re.search(r"^\s+exec_host = (\S+)", block, re.MULTILINE)
        hosts = [word.partition("/")[0] for word in match[1].split("+")] if match else []
        if hosts:
            yield World("pbs", tuple(dict.fromkeys(hosts)), job_id=job, elsewhere=True)


def _lsf(run: Run, user: str) -> Iterator[World]:
    text = run(["bjobs", "-noheader", "-u", user, "-r", "-o", "jobid exec_host delimiter='|'"])
    for line in text.splitlines():
        job, bar, places = line.strip().partition("|")
        if bar and job.isdigit():
            counts = _lsf_slots(places)
            hosts, slots = tuple(counts), tuple(counts.values())
            yield World("lsf", hosts, slots, job, elsewhere=True)


def _lsf_slots(places: str) -> dict[str, int]:
    """Read `4*hostA:4*hostB` or `hostA:hostA`."""
    slots: dict[str, int] = {}
    for word in filter(None, places.split(":")):
        count, star, host = word.rpartition("*")
        ranks = sum(expand_counts(count)) if star else 1
        slots[host] = slots.get(host, 0) + ranks
    return slots
