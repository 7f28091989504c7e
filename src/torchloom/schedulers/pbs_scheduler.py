"""PBS Pro and OpenPBS: `qsub` in, `qstat` out. One job an app, our agents as tasks of it."""

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.launch.assembly.launchers import SSH_OPTIONS
from torchloom.launch.records.parcel import Parcel
from torchloom.schedulers.batch.commands import Commands, EngineRefused
from torchloom.schedulers.batch.options import add_common, text
from torchloom.schedulers.batch.query import Answer, EngineJob
from torchloom.schedulers.batch.request import SCRIPT, BatchRequest
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.pbs_script import JOB_VARIABLE, add_options, name_of, qsub_script
from torchloom.schedulers.pbs_states import number, question, read
from torchloom.specs.api import AppDef, AppDryRunInfo, CfgVal, is_terminal, runopts

# What commands say when the server is busy, restarting or out of reach for a moment.
_SILENT = re.compile(r"cannot connect|[Tt]imed out|Connection refused|End of File|[Bb]usy|retry")
_GONE = re.compile(r"Unknown Job Id|Job has finished")
_MOST = 1000  # jobs that were submitted from here and are asked for, the newest
_MOST_OTHERS = 20  # of them that live no more and are asked for one by one
# Rerunning is an operator's right on some servers: there the same script waits for the job's end.
_RERUN = (
    'qrerun "$PBS_JOBID" && exit; [ -z "$PBS_ARRAY_INDEX" ] && cd "$PBS_O_WORKDIR" '
    '&& qsub -W depend=afterany:"$PBS_JOBID" "$0" && qdel "$PBS_JOBID"'
)


class PbsScheduler(BatchScheduler):
    """One job of as many chunks as there are replicas, each on a host of its own."""

    def __init__(self, backend: str, session_name: str, commands: Commands | None = None) -> None:
        super().__init__(backend, session_name, commands)
        self._ended: dict[str, EngineJob] = {}  # what has ended stays as it is

    def _run_opts(self) -> runopts:
        opts = runopts()
        add_options(opts)
        add_common(opts)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchRequest]:
        info = super()._submit_dryrun(app, cfg)
        notes = (*info.request.notes, *_notes(app))
        request = replace(info.request, notes=notes, parcel=_rerun(info.request))
        return AppDryRunInfo(request, str)

    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        return qsub_script(app, cfg, folder, self._python(cfg), cwd)

    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        return ("qsub", str(folder / SCRIPT))

    def _job_of(self, printed: str) -> str:
        return number(printed.strip().splitlines()[-1])

    def _parcel(self, parcel: Parcel) -> Parcel:
        return replace(parcel, job_variable=JOB_VARIABLE, task_variable="PBS_ARRAY_INDEX")

    def _ask_all(self) -> Answer:
        """Ask which jobs the user has, then for those and for what was submitted from here."""
        mine = self._commands.ask(["qselect", "-u", settings.user_name()], _is_silence)
        active = list(map(number, mine.split()))
        known = [entry.job for entry in self._index.all()[:_MOST]]
        jobs = list(dict.fromkeys([*active, *known]))
        if not jobs:
            return {}
        answered, gone = self._asked([job for job in jobs if job not in self._ended])
        found = {**self._ended, **answered}
        for job in _left_out(jobs, {*found, *gone}, active):
            found |= self._asked([job])[0]
        self._ended = {
            job: answered for job, answered in found.items() if is_terminal(answered.state)
        }
        return {job: answered for job, answered in found.items() if job in jobs}

    def _asked(self, jobs: Sequence[str]) -> tuple[Answer, set[str]]:
        """Ask for some jobs; return the answer, and which of them it says it knows nothing of.

        OpenPBS's main line prints the first alone, without an error for the others.
        """
        if not jobs:
            return {}, set()
        try:
            return read(self._commands.ask(question(jobs), _is_silence)), set()
        except EngineRefused as refused:  # it says of each job that its history is over
            if all(_GONE.search(said) for said in refused.said.split("; ")):
                named = set(map(number, re.split(r"[\s;,]+", refused.said)))
                return read(refused.printed), named.intersection(jobs)
            raise

    def _cancel_words(self, job: str) -> tuple[str, ...]:
        return ("qdel", job)

    def _polite_words(self, job: str) -> tuple[str, ...]:
        """Signal the job's session: SIGTERM would end a shell above the script, and with it the
        job on all hosts; this one ends none but our launch."""
        return ("qsig", "-s", "WINCH", job)

    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        return ("ssh", *SSH_OPTIONS, "--", host)

    def inside(self, app_id: str, words: Sequence[str]) -> tuple[str, ...] | None:
        """PBS lets nobody into a job but its tasks; its hosts let its owner in by ssh, which gives
        all words to a shell as one."""
        found = super().inside(app_id, words)
        before = len(self._inside_words(app_id, ""))
        return found and (*found[:before], shlex.join(found[before:]))


def _left_out(jobs: Sequence[str], found: Collection[str], active: Sequence[str]) -> list[str]:
    """Return which jobs an answer lacks: all that live, and the newest of the others."""
    missing = [job for job in jobs if job not in found]
    others = [job for job in missing if job not in active]
    return [job for job in missing if job in active or job in others[:_MOST_OTHERS]]


def _rerun(request: BatchRequest) -> Parcel:
    return replace(request.parcel, requeue=("/bin/sh", "-c", _RERUN, str(request.folder / SCRIPT)))


def _notes(app: AppDef) -> list[str]:
    """Return what PBS does not take as it was said."""
    notes = []
    if name_of(app) != app.name:
        notes.append(f"PBS calls the job {name_of(app)}: its names have letters, digits, . _ + -")
    notes += [
        f"role {role.name}: PBS gives all {role.num_replicas} hosts or none; min_replicas counts "
        "once it runs"
        for role in app.roles
        if role.min_replicas is not None and role.min_replicas < role.num_replicas
    ]
    return notes


def _is_silence(said: str) -> bool:
    return bool(_SILENT.search(said))


def create_scheduler(session_name: str, **kwargs: Any) -> PbsScheduler:
    """Return PBS as a scheduler; nothing is asked of it before it must be."""
    return PbsScheduler("pbs", session_name)
