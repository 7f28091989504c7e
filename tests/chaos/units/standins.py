"""A job of stand-ins: real processes that do nothing, and a run folder that says they are ranks."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchloom import settings
from torchloom.chaos.targets import JobSight, Victim
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.specs.api import AppDef, AppState, Role, app_to_dict

IDLE = ("sleep", "600")
LISTENING = r"""
import os, time
from torchloom.worker.run import steps as provoked
provoked.listen(lambda: os.write(1, b"heard\n"))
print("ready", flush=True)
time.sleep(600)
"""


class StandIns:
    """Processes that are taken for the ranks of one job."""

    def __init__(self, job: str = "train-a", owner: str = "", checkpoints: str = "") -> None:
        self.job = job
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._launcher = subprocess.Popen(IDLE)  # what ends the job by force ends this
        self._record = RunRecord(
            id=job,
            name="train",
            session="torchx",
            owner=owner or settings.user_name(),
            host=host_name(),
            log_dir=str(settings.runs_dir() / job / "logs"),
            created_at=now(),
            state=AppState.RUNNING,
            launcher=ProcessIdentity.of(self._launcher.pid),
            checkpoints=checkpoints,
        )
        role = RoleRequest("trainer", (ReplicaRequest(("true",), {}),), 1, False)
        request = LaunchRequest(job, "train", "torchx", "/", self._record.log_dir, (role,))
        app = AppDef("train", [Role("trainer", "", entrypoint="true")])
        self.folder = RunFolder.create(request, app_to_dict(app), self._record).publish()

    @property
    def victim(self) -> Victim:
        return Victim(self.job, self.folder.path)

    def start(self, rank: int, *words: str, **more: object) -> "subprocess.Popen[bytes]":
        """Start a process in the place of a rank, and write that down."""
        if rank in self.processes:
            _end(self.processes[rank])
        one = subprocess.Popen(words or IDLE, **more)  # type: ignore[call-overload]
        self.processes[rank] = one
        self.write()
        return one  # type: ignore[no-any-return]

    def write(self, state: AppState = AppState.RUNNING) -> None:
        """Write the record as a launch process would."""
        ranks = tuple(
            RankRecord(
                "trainer", 0, rank, rank, AppState.RUNNING, process=ProcessIdentity.of(one.pid)
            )
            for rank, one in sorted(self.processes.items())
        )
        self.folder.write_record(replace(self._record, state=state, ranks=ranks))

    def sees(self, state: str = "RUNNING") -> "Seer":
        return Seer(self, state)

    def close(self) -> None:
        for one in (self._launcher, *self.processes.values()):
            _end(one)


class Seer:
    """What a weaver would say: dead stand-ins are replaced, and those that run take steps."""

    def __init__(self, job: StandIns, state: str) -> None:
        self.state = state
        self._job = job
        self._steps = 0

    def __call__(self) -> JobSight:
        self._steps += 1
        for rank, one in self._job.processes.items():
            if one.poll() is not None:
                self._job.start(rank)
        pids = {rank: one.pid for rank, one in self._job.processes.items()}
        steps = dict.fromkeys(pids, self._steps)
        return JobSight(self.state, 1, steps, pids, len(pids))


def state_of(pid: int) -> str:
    """Return what a process does as the kernel says: S sleeps, T is stopped; "" is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def python(text: str) -> Sequence[str]:
    return (sys.executable, "-c", text)


def _end(one: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    one.wait()
    for pipe in (one.stdin, one.stdout):
        if pipe is not None:
            pipe.close()
