"""An engine that takes a script: submit, watch, read, end; a subclass has its commands."""

import contextlib
import json
import os
import shutil
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from torchloom import settings
from torchloom.errors import LoomError, NotFound, UserError, shorten
from torchloom.launch.records import catalog, parcel
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.parcel import END, STOP, Parcel, travelling, write_private
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import DEFAULT_GRACE
from torchloom.launch.records.resumption import (
    AS_IT_WAS,
    Continuation,
    NotResumable,
    newest_checkpoint,
)
from torchloom.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchloom.schedulers.batch import logs, status
from torchloom.schedulers.batch.commands import EngineCommands, EngineMissing, EngineRefused
from torchloom.schedulers.batch.folder import app_of, end_of, entry_of, noted_now, write
from torchloom.schedulers.batch.index import Index, IndexEntry
from torchloom.schedulers.batch.plan import INSIDE, notes, run_id_of, shipped, text
from torchloom.schedulers.batch.script import SCRIPT, BatchRequest, in_folder
from torchloom.schedulers.batch.status import Answer, Query
from torchloom.schedulers.local_request import CHECKPOINTS
from torchloom.specs.api import (
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    app_to_dict,
    is_terminal,
    make_app_handle,
)

_JOBS = "jobs"  # in LOOM_HOME
_POLL = 0.25  # seconds between checks for the file that is written at the end
_PATIENCE = 30.0  # seconds beyond the ranks' grace for a launch to clear up on all hosts


class BatchEngine(Scheduler[BatchRequest]):
    """The commands of one engine."""

    reads_script = False  # the submitting command has the script on stdin, not among its words

    @abstractmethod
    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        """Return the script; pure."""

    @abstractmethod
    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        """Return the words that submit the folder's script."""

    @abstractmethod
    def _job_of(self, printed: str) -> str:
        """Return the number that the engine gave a job it has just taken."""

    @abstractmethod
    def _ask_all(self) -> Answer:
        """Ask the engine for every job of this user, in one question."""

    @abstractmethod
    def _cancel_words(self, job: str) -> tuple[str, ...]:
        """Return the words that end a job."""

    def _polite_words(self, job: str) -> tuple[str, ...]:
        """Return the words that send SIGTERM to a job's script alone; nothing: it cannot be."""
        return ()

    @abstractmethod
    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        """Return the words behind which a command runs on a host of a running job."""

    @abstractmethod
    def _parcel(self, parcel: Parcel) -> Parcel:
        """Return it with what the job needs to know of its engine."""

    # Planning.

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchRequest]:
        run_id = run_id_of(app, cfg)
        self._check_store(cfg, run_id)
        chosen = text(cfg, "job_dir")
        folder = Path(chosen).expanduser() if chosen else settings.loom_home() / _JOBS / run_id
        folder = folder.absolute()
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        parcel = Parcel(
            run_id=run_id,
            session=self.session_name,
            engine=self.backend,
            app=app_to_dict(shipped(app, folder)),
            cfg={name: cfg[name] for name in INSIDE if cfg.get(name) is not None},
            env={**travelling(settings.environment()), "LOOM_HOME": str(settings.loom_home())},
            cwd=cwd,
            job_variable="",
        )
        request = BatchRequest(
            folder=folder,
            script=self._script(app, cfg, folder, run_id),
            argv=self._submit_words(folder),
            reads_script=self.reads_script,
            parcel=self._parcel(parcel),
            workspaces={r.name: r.workspace.projects for r in app.roles if r.workspace},
            notes=notes(app, self.backend, (folder, Path(self._python(cfg)), Path(cwd))),
        )
        return AppDryRunInfo(request, str)

    def _check_store(self, cfg: Mapping[str, CfgVal], run_id: str) -> None:
        """Refuse checkpoints in S3 that our interpreter, which the hosts use too, cannot write."""
        base = text(cfg, "checkpoints") or settings.environment().get(CHECKPOINTS, "")
        if base.startswith("s3://") and not text(cfg, "python"):
            from torchloom.checkpoint import root_of

            root_of(base, run_id, settings.runs_dir())

    def _python(self, cfg: Mapping[str, CfgVal]) -> str:
        return text(cfg, "python") or sys.executable

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Require that what is copied exists; resources have the engine's defaults."""
        from torchloom.workspace import dir_workspace

        for workspace in filter(None, (role.workspace for role in app.roles)):
            dir_workspace.check(workspace.projects)


class BatchScheduler(BatchEngine):
    """One job of the engine an app. What is known of it lies in files; nothing is kept here."""

    def __init__(
        self, backend: str, session_name: str, commands: EngineCommands | None = None
    ) -> None:
        super().__init__(backend, session_name)
        self._commands = commands or EngineCommands(backend)
        self._index = Index(backend)
        self._query = Query(self._ask_all)

    # Submitting.

    def schedule(self, dryrun_info: AppDryRunInfo[BatchRequest]) -> str:
        request = dryrun_info.request
        self._ready()
        write(request)
        try:
            job = self._submitted(request.argv, request.folder)
        except BaseException:
            shutil.rmtree(request.folder, ignore_errors=True)
            raise
        return self._noted(entry_of(request.parcel, request.folder, job), job)

    def resubmit(self, app_id: str, asked: Continuation = AS_IT_WAS) -> str:
        """Submit a job that is over again: its run resumes from its newest checkpoint."""
        entry = self._index.get(app_id)
        if entry is None:
            raise NotFound("job", app_id, remedy="only one submitted from here can be resumed")
        if not self.is_over(app_id):
            raise UserError(f"{app_id} has not ended: nothing to resume; `loom show` shows it")
        _check_resume(entry, asked)
        folder = Path(entry.folder)
        for name in (END, STOP):
            (folder / name).unlink(missing_ok=True)
        if asked.until is not None:
            parcel.change(folder, {"resume_until": asked.until})
        return self._noted(entry, self._submitted(self._submit_words(folder), folder))

    def _submitted(self, words: Sequence[str], folder: Path) -> str:
        script = (folder / SCRIPT).read_text("utf-8") if self.reads_script else None
        return self._job_of(self._commands.run(words, script))

    def _noted(self, entry: IndexEntry, job: str) -> str:
        self._index.add(replace(entry, job=job, **noted_now()))
        self._query.forget()
        return job

    def _ready(self) -> None:
        """Refuse to submit where the engine is not installed, before anything is written."""
        program = self._submit_words(Path())[0]
        if not shutil.which(program):
            raise EngineMissing(self.backend, program)

    # What became of it.

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        entry, job = self._index.get(app_id), self._query.job(app_id)
        if entry is None and job is None:
            return None
        record = catalog.record(entry.run_id) if entry else None
        state, why = status.state_of(job, record, end_of(entry))
        app = app_of(entry)
        return DescribeAppResponse(
            app_id=app_id,
            state=state,
            num_restarts=max(job.restarts if job else 0, record.restarts if record else 0),
            msg=why,
            structured_error_msg=status.error_of(state, record),
            metadata=app.metadata if app else {},
            roles_statuses=status.role_statuses(entry, job, record, state),
            roles=app.roles if app else [],
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Return what was submitted from here and what else the engine has of this user."""
        jobs, entries = self._query.jobs(), self._index.all()
        known = {entry.job for entry in entries}
        others = [job for job in jobs.values() if job.id not in known]
        listed = [self._line(job.id, job.name, job.state) for job in others]
        for entry in entries:
            listed.append(self._line(entry.job, entry.name, self._state(entry, jobs)))
        return sorted(listed, key=lambda line: _number(line.app_id), reverse=True)

    def _state(self, entry: IndexEntry, jobs: Answer) -> AppState:
        """Return a job's state as `describe` has it; its record is read where it may have more."""
        state, _ = status.state_of(jobs.get(entry.job), None, end_of(entry))
        if state is AppState.FAILED:
            record = catalog.record(entry.run_id)
            state, _ = status.state_of(jobs.get(entry.job), record, end_of(entry))
        elif state is AppState.UNKNOWN:
            state, _ = status.state_of(None, catalog.record(entry.run_id), {})
        return state

    def _line(self, job: str, name: str, state: AppState) -> ListAppResponse:
        handle = make_app_handle(self.backend, self.session_name, job)
        return ListAppResponse(app_id=job, state=state, app_handle=handle, name=name)

    def entry(self, app_id: str) -> IndexEntry | None:
        """Return what is known here of a job that was submitted from here."""
        return self._index.get(app_id)

    def is_over(self, app_id: str) -> bool:
        """Tell whether nothing more will come of a job; asks the engine seldom."""
        entry = self._index.get(app_id)
        job = self._query.job(app_id)
        return is_terminal(job.state) if job else bool(end_of(entry)) or entry is not None

    def wait(self, app_id: str, timeout: float) -> bool:
        """Sleep until the job is over, at most so long; it writes its end into its folder.

        One that was queued again has written one too: the engine is asked, seldom.
        """
        entry, deadline = self._index.get(app_id), time.monotonic() + timeout
        has_ended = False
        while time.monotonic() < deadline:
            if end_of(entry):
                if not has_ended:
                    self._query.forget()
                has_ended = True
                if self.is_over(app_id):
                    return True
            time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))
        return False

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterator[str]:
        """Yield a replica's lines; where it has several ranks, each behind its `[rankN]: `."""
        stream = (streams or Stream.COMBINED).value
        return self.log_lines(
            app_id, [(role_name, k)], should_tail, regex, since, until, stream, False
        )

    def log_lines(
        self,
        app_id: str,
        places: Sequence[tuple[str, int]] | None = None,
        follow: bool = False,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        stream: str = "combined",
        labelled: bool = True,
        seconds: float | None = None,
    ) -> Iterator[str]:
        """Yield the lines of some replicas, or of all, by one reader; see `logreader.lines`."""
        entry = self._index.get(app_id)
        if entry is None:
            raise NotFound("job", app_id, remedy=f"only jobs submitted from {self._index.path}")
        if places is None:
            places = [(role, i) for role, many in entry.replicas.items() for i in range(many)]
        over = partial(self.is_over, app_id)
        wanted = (follow, regex, since, until, stream, labelled, seconds)
        return logs.lines(entry, places, over, *wanted)

    def begun(self, app_id: str) -> dict[str, RunRecord]:
        """Return the run of a job, or those of its tasks, once one has begun or all is over."""
        entry = self._index.get(app_id)
        return logs.begun(entry.run_id, partial(self.is_over, app_id)) if entry else {}

    def inside(self, app_id: str, words: Sequence[str]) -> tuple[str, ...] | None:
        """Return what runs a command where the job's own plane is; nothing when it has none.

        The command finds the variables, and the interpreter, that the job has.
        """
        entry = self._index.get(app_id)
        record = catalog.record(entry.run_id) if entry else None
        job = self._query.job(app_id)
        if entry is None or record is None or job is None or job.state is not AppState.RUNNING:
            return None
        return (*self._inside_words(app_id, record.host), *in_folder(Path(entry.folder), words))

    # Its end.

    def stop(self, app_id: str, at_once: bool = False) -> None:
        """Have a job end: its ranks save if they can, within their grace; or at once."""
        job, entry = self._query.job(app_id), self._index.get(app_id)
        polite = self._polite_words(app_id)
        is_launched = job is not None and job.state is AppState.RUNNING and self._has_run(app_id)
        if polite and is_launched and not at_once and entry is not None:
            self._ask_to_end(entry, polite)
        else:
            self._commands.run(self._cancel_words(app_id))
        self._query.forget()

    def _ask_to_end(self, entry: IndexEntry, words: Sequence[str]) -> None:
        """Ask the launch in a job to end it, by a signal and by a file in its folder.

        What ends a job for its engine would end other hosts' agents while their ranks save.
        """
        refused: EngineRefused | None = None
        try:
            self._commands.run(words)
        except EngineRefused as error:
            refused = error
        try:
            write_private(Path(entry.folder) / STOP, json.dumps({"by": settings.user_name()}))
        except OSError:
            if refused is not None:
                raise refused from None

    def stop_limit(self, app_id: str) -> float:
        """Return how many seconds a job has to end that was asked to; then its engine ends it."""
        entry = self._index.get(app_id)
        with contextlib.suppress(LoomError):
            if entry is not None:
                grace = Parcel.read(Path(entry.folder)).cfg.get("grace", DEFAULT_GRACE)
                return float(grace) + _PATIENCE
        return DEFAULT_GRACE + _PATIENCE

    def _has_run(self, app_id: str) -> bool:
        """Tell whether there is a launch in the job that could be asked to end."""
        entry = self._index.get(app_id)
        record = catalog.record(entry.run_id) if entry else None
        return record is not None and not record.is_over()

    def _cancel_existing(self, app_id: str) -> None:
        self.stop(app_id)

    def _delete_existing(self, app_id: str) -> None:
        entry, found = self._index.get(app_id), self.describe(app_id)
        if entry is None:
            raise UserError(f"{shorten(app_id)} was not submitted from here: nothing to remove")
        if found is not None and not is_terminal(found.state) and self._query.job(app_id):
            raise UserError(f"{app_id} is {found.state.name}; stop it first: `loom stop {app_id}`")
        if catalog.record(entry.run_id) is not None:
            RunFolder.named(entry.run_id).remove()
        shutil.rmtree(entry.folder, ignore_errors=True)
        for one in self._index.all():
            if one.run_id == entry.run_id:  # a run that was resumed had several jobs
                self._index.remove(one.job)


def _number(job: str) -> tuple[int, str]:
    digits = "".join(char for char in job.partition("_")[0] if char.isdigit())
    return int(digits or 0), job


def _check_resume(entry: IndexEntry, asked: Continuation) -> None:
    """Refuse what the engine has no option for, and what cannot have been meant."""
    if asked.ranks is not None or asked.step is not None:
        raise NotResumable(
            f"{entry.job} is submitted again as it was, from its newest checkpoint; "
            "leave -n and --from out"
        )
    record = catalog.record(entry.run_id)
    if record is not None and record.started_at is not None:
        is_complete = record.state is AppState.SUCCEEDED
        asked.check(entry.job, is_complete, newest_checkpoint(record))
