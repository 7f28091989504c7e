"""LSF: `bsub` in, `bjobs` out. One job an app, our agents by `blaunch` in it."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, UserError, shorten
from torchloom.launch.assembly.launchers import SSH_OPTIONS
from torchloom.launch.records import catalog
from torchloom.launch.records.parcel import Parcel
from torchloom.schedulers.batch.commands import EngineRefused
from torchloom.schedulers.batch.options import add_common, text
from torchloom.schedulers.batch.query import Answer
from torchloom.schedulers.batch.request import BatchRequest
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.lsf_options import add_options, with_folder
from torchloom.schedulers.lsf_script import JOB, TASK, bsub_script, notes
from torchloom.schedulers.lsf_states import after_a_life, question, read
from torchloom.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, runopts

# What commands say when the daemons are busy, restarting or out of reach for a moment.
_SILENT = re.compile(
    r"LIM is down|not responding|try(ing)? again|[Tt]ime(d)? ?out|Connection refused|"
    r"[Cc]annot connect|is down"
)
_NONE = re.compile(r"No (unfinished |matching )?job found")
_QUIET = "BSUB_QUIET"


class LsfScheduler(BatchScheduler):
    """One job over hosts that are alike, a replica on each."""

    reads_script = True  # directives count only in a script that comes by stdin

    def _run_opts(self) -> runopts:
        opts = runopts()
        add_options(opts)
        add_common(opts)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchRequest]:
        info = super()._submit_dryrun(app, with_folder(cfg))
        more = (*info.request.notes, *notes(app, cfg))
        info.request = replace(info.request, notes=more)
        return info

    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        return bsub_script(app, cfg, folder, self._python(cfg), cwd)

    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        return ("bsub",)

    def _ready(self) -> None:
        super()._ready()
        if _QUIET in settings.environment():
            raise UserError(f"{_QUIET} keeps bsub from telling a job's number; unset it")

    def _job_of(self, printed: str) -> str:
        found = re.search(r"Job <(\d+)> is submitted", printed)
        if not found:
            raise Failure(f"bsub did not tell the job's number but {shorten(printed)!r}")
        return found[1]

    def _parcel(self, parcel: Parcel) -> Parcel:
        return replace(parcel, job_variable=JOB, task_variable=TASK, requeue=("brequeue",))

    def _ask_all(self) -> Answer:
        jobs = read(self._asked())
        waiting = [job for job in jobs.values() if job.state is AppState.PENDING]
        again = {job.id: after_a_life(job) for job in waiting if self._has_lived(job.id)}
        return {**jobs, **again}

    def _asked(self) -> str:
        words = question(settings.user_name())
        try:
            return self._commands.ask(words, lambda said: bool(_SILENT.search(said)))
        except EngineRefused as error:
            if _NONE.search(error.said):
                return ""
            raise

    def _has_lived(self, job: str) -> bool:
        """Tell whether a job has run before: LSF forgets that when it is queued again."""
        entry = self._index.get(job)
        return entry is not None and catalog.record(entry.run_id) is not None

    def _cancel_words(self, job: str) -> tuple[str, ...]:
        return ("bkill", job)

    def _polite_words(self, job: str) -> tuple[str, ...]:
        """A signal comes to every process of a job; this one ends none but our launch."""
        return ("bkill", "-s", "WINCH", job)

    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        """LSF starts nothing in a running job from outside it; its hosts are reached by ssh."""
        return ("ssh", *SSH_OPTIONS, "--", host)

    def inside(self, app_id: str, words: Sequence[str]) -> tuple[str, ...] | None:
        """Return what runs a command on the job's first host; ssh has a shell read its words."""
        found = super().inside(app_id, words)
        if found is None:
            return None
        ahead = len(self._inside_words(app_id, ""))
        return (*found[:ahead], shlex.join(found[ahead:]))


def create_scheduler(session_name: str, **kwargs: Any) -> LsfScheduler:
    """Return LSF as a scheduler; nothing is asked of it before it must be."""
    return LsfScheduler("lsf", session_name)
