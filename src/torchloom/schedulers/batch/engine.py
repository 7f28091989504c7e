"""What an engine that takes a script has to say for itself, and the plan that comes of it. Pure."""

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from torchloom import settings
from torchloom.launch.records.parcel import Parcel, travelling
from torchloom.schedulers.api import Scheduler
from torchloom.schedulers.batch.options import INSIDE, text
from torchloom.schedulers.batch.planning import notes, run_id_of, shipped
from torchloom.schedulers.batch.query import Answer
from torchloom.schedulers.batch.request import BatchRequest
from torchloom.specs.api import AppDef, AppDryRunInfo, CfgVal, app_to_dict

_JOBS = "jobs"  # in LOOM_HOME


class BatchEngine(Scheduler[BatchRequest]):
    """The words of one engine."""

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

    def _python(self, cfg: Mapping[str, CfgVal]) -> str:
        return text(cfg, "python") or sys.executable

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """A role need not say what it needs: the engine has defaults. What is copied must exist."""
        from torchloom.workspace import dir_workspace

        for workspace in filter(None, (role.workspace for role in app.roles)):
            dir_workspace.check(workspace.projects)
