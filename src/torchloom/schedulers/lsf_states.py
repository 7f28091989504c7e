"""What LSF's words for a job's state mean, and how its answers are read. Pure.

`bjobs -json -o FIELDS` prints what was asked for as text, alike in all releases of LSF 10.1. Why a
job ended is told by its termination reason: EXIT is one state for all of them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchloom.errors import Failure
from torchloom.schedulers.batch.arrays import joined
from torchloom.schedulers.batch.query import EngineJob
from torchloom.specs.api import AppState

# What AppState it is, and the word that tells it from the others of that state.
STATES: Mapping[str, tuple[AppState, str]] = {
    "PEND": (AppState.PENDING, ""),
    "PSUSP": (AppState.PENDING, "held"),
    "PROV": (AppState.PENDING, "provisioning"),
    "WAIT": (AppState.PENDING, "waiting_in_chunk"),
    "RUN": (AppState.RUNNING, ""),
    "USUSP": (AppState.PENDING, "suspended"),
    "SSUSP": (AppState.PENDING, "suspended_by_system"),  # load, a window, or one in greater need
    "DONE": (AppState.SUCCEEDED, ""),
    "EXIT": (AppState.FAILED, ""),
    "UNKWN": (AppState.UNKNOWN, "host_unreachable"),  # it may well run on
    "ZOMBI": (AppState.FAILED, "zombie"),  # killed, or run again, while its host was out of reach
}
# Why LSF ended a job that is EXIT.
REASONS: Mapping[str, tuple[AppState, str]] = {
    "TERM_OWNER": (AppState.CANCELLED, "cancelled"),
    "TERM_FORCE_OWNER": (AppState.CANCELLED, "cancelled_by_force"),
    "TERM_ADMIN": (AppState.CANCELLED, "cancelled_by_admin"),
    "TERM_FORCE_ADMIN": (AppState.CANCELLED, "cancelled_by_force_of_admin"),
    "TERM_BUCKET_KILL": (AppState.CANCELLED, "cancelled_in_bulk"),
    "TERM_REQUEUE_OWNER": (AppState.PENDING, "requeued"),
    "TERM_REQUEUE_ADMIN": (AppState.PENDING, "requeued_by_admin"),
    "TERM_MC_RECALL": (AppState.PENDING, "recalled"),
    "TERM_RUNLIMIT": (AppState.FAILED, "time_limit"),
    "TERM_DEADLINE": (AppState.FAILED, "deadline"),
    "TERM_WINDOW": (AppState.FAILED, "run_window_closed"),
    "TERM_PREEMPT": (AppState.FAILED, "preempted"),
    "TERM_LOAD": (AppState.FAILED, "load_threshold"),
    "TERM_ZOMBIE": (AppState.FAILED, "node_failure"),
    "TERM_RMS": (AppState.FAILED, "resource_manager_failure"),
    "TERM_MEMLIMIT": (AppState.FAILED, "out_of_memory"),
    "TERM_SWAP": (AppState.FAILED, "swap_limit"),
    "TERM_CPULIMIT": (AppState.FAILED, "cpu_limit"),
    "TERM_PROCESSLIMIT": (AppState.FAILED, "process_limit"),
    "TERM_THREADLIMIT": (AppState.FAILED, "thread_limit"),
    "TERM_PRE_EXEC_FAIL": (AppState.FAILED, "pre_exec_failed"),
    "TERM_CWD_NOTEXIST": (AppState.FAILED, "no_working_directory"),
    "TERM_CHKPNT": (AppState.FAILED, "ended_after_checkpoint"),
    "TERM_EXTERNAL_SIGNAL": (AppState.FAILED, "external_signal"),
    "TERM_ORPHAN_SYSTEM": (AppState.FAILED, "dependency_in_vain"),
    "TERM_REMOVE_HUNG_JOB": (AppState.FAILED, "hung_and_removed"),
    "TERM_DATA": (AppState.FAILED, "data_staging_failed"),
    "TERM_CSM_ALLOC": (AppState.FAILED, "allocation_failed"),
    "TERM_KUBE": (AppState.FAILED, "kubernetes_failure"),
    "TERM_OTHER": (AppState.FAILED, "ended_by_lsf"),
    "TERM_UNKNOWN": (AppState.FAILED, ""),  # the run may know more
}
FIELDS = (
    *("jobid", "jobindex", "stat", "exit_code", "exit_reason", "exec_host", "pend_reason"),
    "job_name",
)
_NOTHING = ("", "-")


class BadAnswer(Failure):
    """`bjobs` printed something that is not what it was asked for."""

    code = "bad_answer"

    def __init__(self, printed: str) -> None:
        begin = printed[:80]
        super().__init__(f"bjobs -json printed no JSON but {begin!r}; LSF 10.1 or later is needed")


def question(user: str) -> list[str]:
    """Return the words that ask for all jobs of a user, those that have just ended too."""
    return ["bjobs", "-a", "-X", "-json", "-u", user, "-o", " ".join(FIELDS)]


def read(printed: str) -> dict[str, EngineJob]:
    """Return the jobs of an answer; an array is one, of its elements."""
    parts: dict[str, list[EngineJob]] = {}
    for record in _records(printed):
        number = _text(record, "JOBID").partition("[")[0]
        if number.isdecimal() and "ERROR" not in record:
            parts.setdefault(number, []).append(_job(number, record))
    return {number: _joined(number, found) for number, found in parts.items()}


def after_a_life(job: EngineJob) -> EngineJob:
    """Return a job that has run before: when it waits, it was queued again."""
    if job.state is not AppState.PENDING or job.native != "PEND" or job.why.startswith("requeued"):
        return job
    return replace(job, why=f"requeued: {job.why}" if job.why else "requeued")


def _records(printed: str) -> list[dict[str, Any]]:
    if not printed.strip():  # where there is no job, some releases say so on stderr alone
        return []
    try:
        found: list[dict[str, Any]] = json.loads(printed, strict=False)["RECORDS"]
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(printed.strip()) from None
    return found


def _job(number: str, record: Mapping[str, Any]) -> EngineJob:
    native = _text(record, "STAT").upper()
    state, why = STATES.get(native, (AppState.UNKNOWN, native.lower()))
    if native == "EXIT":
        reason = _text(record, "EXIT_REASON").partition(":")[0].strip()
        state, why = REASONS.get(reason, (state, reason.removeprefix("TERM_").lower()))
    if state is AppState.PENDING and (pending := _text(record, "PEND_REASON")):
        why = f"{why}: {pending}" if why else pending
    index = _int(_text(record, "JOBINDEX"))
    return EngineJob(
        id=f"{number}[{index}]" if index else number,
        state=state,
        native=native,
        why=why,
        hosts=_hosts(_text(record, "EXEC_HOST")),
        exit_code=_int(_text(record, "EXIT_CODE")),
        name=_text(record, "JOB_NAME"),
    )


def _joined(number: str, parts: list[EngineJob]) -> EngineJob:
    """Return a job; one of elements has their name without an index."""
    job = joined(number, parts)
    return replace(job, name=job.name.rpartition("[")[0]) if job.tasks else job


def _hosts(places: str) -> tuple[str, ...]:
    """Return the hosts of `4*hostA:4*hostB`, each once."""
    if places in _NOTHING:
        return ()
    return tuple(dict.fromkeys(word.rpartition("*")[2] for word in places.split(":") if word))


def _text(record: Mapping[str, Any], name: str) -> str:
    value = " ".join(str(record.get(name) or "").split())
    return "" if value in _NOTHING else value


def _int(word: str) -> int:
    return int(word) if word.isascii() and word.isdecimal() else 0
