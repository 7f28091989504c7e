"""Runs of unix accounts: each is started, ended and resumed by a process of its account.

`python -m torchloom.weaver.account_runs` is that process. It reads one request from its standard
input, does what `RunnerLauncher` does, and writes one answer. The weaver believes nothing of the
answer but whether the request was carried out.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchloom import accounts, sealed, settings
from torchloom.client import plane
from torchloom.errors import Failure, LoomError, UserError
from torchloom.launch.host.identity import host_name
from torchloom.launch.records.resumption import Continuation
from torchloom.plane.credentials import write_secret
from torchloom.plane.parts import job_environment
from torchloom.unix import make_private
from torchloom.weaver.jobs.launch import (
    Launcher,
    LaunchOrder,
    RunnerLauncher,
    RunSeen,
    Spot,
)
from torchloom.weaver.runs import provenance
from torchloom.weaver.runs.provenance import ProvenanceRequest
from torchloom.weaver.store.rows import DeviceRow, JobRow, RankProcessRow

_PATIENCE = 120.0  # seconds for an account's process to do what it was asked
_LONGEST = 1 << 20  # bytes of its answer
_MODULE = "torchloom.weaver.account_runs"


class AccountFailed(Failure):
    """The process of an account did not do what it was to do."""

    code = "account_failed"


class AccountLauncher:
    """Runs of the plane's own user, and of accounts with the rights of each."""

    def __init__(self, own: Launcher, find: Callable[[str], JobRow | None]) -> None:
        self._own = own
        self._find = find

    def _account_of(self, job: str) -> str:
        known = self._find(job)
        return known.account if known else ""

    def look(self, job: str, left: int | None = None) -> RunSeen:
        return accounts.within(self._account_of(job), self._own.look, job, left)

    def start(self, order: LaunchOrder) -> None:
        name = self._account_of(order.job)
        if not name:
            self._own.start(order)
            return
        if {spot.host for spot in order.spots} - {host_name(), socket.gethostname()}:
            why = "jobs that run as an account run on the plane's own host alone"
            raise UserError(f"{why}; ask for fewer workers, or submit it to a batch system")
        have_agent(name)
        self._note(order.job)
        order_shape = {**asdict(order), "spec": sealed.reveal_in_spec(order.spec)}
        _have_done(name, {"do": "start", "order": order_shape})

    def resume(self, job: str, asked: Continuation) -> None:
        name = self._account_of(job)
        if not name:
            self._own.resume(job, asked)
            return
        have_agent(name)
        self._note(job)
        _have_done(name, {"do": "resume", "job": job, "asked": _shape(asked)})

    def stop(self, job: str, reason: str) -> None:
        name = self._account_of(job)
        if not name:
            self._own.stop(job, reason)
            return
        _have_done(name, {"do": "stop", "job": job, "reason": reason})

    def _note(self, job: str) -> None:
        known = self._find(job)
        if known is not None:
            note_run(known)


# What root remembers of such a run when the database is lost. An account owns the folders of its
# runs and may write anything there, so who it belongs to is not read from them.


def note_run(job: JobRow) -> None:
    """Note which account a job runs as, and whose it is, in a file of the plane."""
    make_private(_notes())
    shape = {name: getattr(job, name) for name in _NOTED}
    write_secret(_notes() / job.id, json.dumps(shape))


def noted_runs() -> list[JobRow]:
    """Return the jobs of accounts that were noted, as they were when they started."""
    found = []
    for path in sorted(_notes().glob("[!.]*")):
        with contextlib.suppress(OSError, ValueError, TypeError):  # removed, or of another version
            words: dict[str, Any] = json.loads(path.read_bytes())
            found.append(JobRow(**words))
    return [job for job in found if job.account]


def forget_run(job: str) -> None:
    """Remove the note about a job."""
    (_notes() / job).unlink(missing_ok=True)


def _notes() -> Path:
    return settings.own_home() / "plane" / "account-runs"


_NOTED = ("id", "name", "owner", "scheduler", "handle", "run_id", "account")


def have_agent(account: str) -> None:
    """See to it that the plane has an agent for the jobs of an account."""
    plane.ask_control("account", account=account)


def recorded(account: str, wanted: ProvenanceRequest) -> dict[str, Any]:
    """Return what surrounds a job, as a process of its account sees it; what it says is checked."""
    shown = {**asdict(wanted), "env": {}, "spec": sealed.hide_in_spec(wanted.spec)}
    found = _have_done(account, {"do": "record", "wanted": shown})
    if not isinstance(found, dict) or found.keys() != _RECORD.keys():
        raise AccountFailed(f"a process of {account} gave no record")
    for name, kind in _RECORD.items():
        if not isinstance(found[name], kind):
            raise AccountFailed(f"a process of {account} returned a record with an invalid {name}")
    brief = found["git"] or {}
    if not all(isinstance(brief.get(name, ""), str | bool | None) for name in _GIT):
        raise AccountFailed(f"a process of {account} returned a record with an invalid git")
    own = {"run_id": wanted.run, "spec": shown["spec"], "world_size": wanted.world_size}
    return {**found, **own, "hardware": provenance.machine(wanted)}


_GIT = ("commit", "branch", "dirty")
_RECORD: Mapping[str, Any] = {
    "run_id": str,
    "recorded_at": str,
    "cwd": str | None,
    "argv": list,
    "interpreter": str | None,
    "env": dict,
    "spec": dict | None,
    "git": dict | None,
    "packages": dict,
    "python": str | None,
    "torch": str | None,
    "seeds": dict,
    "hardware": dict,
    "world_size": int | None,
    "notes": list,
}


def _shape(asked: Continuation) -> dict[str, Any]:
    names = ("ranks", "step", "until", "from_scratch")
    return {name: getattr(asked, name) for name in names}


def _have_done(name: str, request: Mapping[str, Any]) -> Any:
    """Have a process of an account carry a request out; return its answer."""
    account = accounts.find(name)
    accounts.make_folder(account)
    own = {key: value for key, value in settings.environment().items() if key not in _NOT_THEIRS}
    env = accounts.environment(account, job_environment(own))
    words = accounts.command(account, [sys.executable, "-P", "-m", _MODULE])
    said = _answered(words, env, json.dumps(request).encode())
    try:
        answer = json.loads(said)
        if "error" in answer:
            raise AccountFailed(str(answer["error"]))
        return answer["ok"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AccountFailed(f"a process of {name} did not answer; see its error log") from error


_NOT_THEIRS = ("LOOM_CHECKPOINTS",)  # a store in S3 would bring the plane's keys along


def _answered(words: list[str], env: Mapping[str, str], request: bytes) -> bytes:
    """Return what a process prints, at most so much of it, in so much time."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(env),
        cwd=os.sep,
        start_new_session=True,
    )
    late = threading.Timer(_PATIENCE, process.kill)
    late.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.close()
        return process.stdout.read(_LONGEST)
    finally:
        late.cancel()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def main() -> int:
    """Do what is asked for; return the code to exit with."""
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    try:
        answer: dict[str, Any] = {"ok": _do(request)}
    except LoomError as error:
        answer = {"error": str(error), "code": error.code}
    except OSError as error:
        answer = {"error": str(error), "code": "failed"}
    json.dump(answer, out)
    out.close()
    return 0


def _do(request: Mapping[str, Any]) -> Any:
    launcher = RunnerLauncher()
    match request["do"]:
        case "start":
            said = request["order"]
            spots = tuple(
                Spot(spot["host"], spot["workers"], tuple(spot["gpus"])) for spot in said["spots"]
            )
            launcher.start(LaunchOrder(**{**said, "spots": spots}))
        case "resume":
            launcher.resume(request["job"], Continuation(**request["asked"]))
        case "stop":
            launcher.stop(request["job"], request["reason"])
        case "record":
            return provenance.recorded(_wanted(request["wanted"]))
    return None


def _wanted(said: Mapping[str, Any]) -> ProvenanceRequest:
    ranks = tuple(RankProcessRow(**row) for row in said["ranks"])
    devices = tuple(DeviceRow(**row) for row in said["devices"])
    env = settings.environment()
    return ProvenanceRequest(**{**said, "ranks": ranks, "devices": devices, "env": env})


if __name__ == "__main__":
    sys.exit(main())
