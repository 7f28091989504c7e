"""This machine: an app's processes under a detached job agent, which outlives its starter."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.errors import LoomError, UserError, shorten
from torchloom.launch.grammar.values import parse_policy
from torchloom.launch.records.request import DEFAULT_GRACE, ORPHAN_LIMIT, Input, LaunchRequest
from torchloom.schedulers import local_request
from torchloom.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchloom.schedulers.local_request import WORKSPACES, make_unique, saving
from torchloom.sealed import seal, seal_in_spec
from torchloom.specs.api import (
    AppDef,
    AppDryRunInfo,
    CfgVal,
    app_to_dict,
    runopts,
)
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:
    import socket

    from torchloom.launch.hosts.joint_launch import JointHead
    from torchloom.launch.records.resumption import Continuation

_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """The request to the job agent, and the app it was made from."""

    launch: LaunchRequest
    app: Mapping[str, Any]

    def __str__(self) -> str:
        return str(self.launch)


class LocalScheduler(Scheduler[LocalRequest]):
    """Processes on this machine. Everything known of them is in files; nothing is kept here."""

    def __init__(
        self, backend: str, session_name: str, inherited: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(backend, session_name)
        self._inherited = inherited  # variables that apps begin with; none: ours

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("log_dir", type_=str, help="folder for logs; default: in the run's own folder")
        opts.add(
            "prepend_cwd",
            type_=bool,
            default=False,
            help="look for commands in the current folder first, not last",
        )
        opts.add(
            "auto_set_cuda_visible_devices",
            type_=bool,
            default=False,
            help="give each replica its own devices, as many as its role asks for",
        )
        opts.add(
            "grace",
            type_=int,
            default=int(DEFAULT_GRACE),
            help="seconds between SIGTERM and SIGKILL when the app is stopped",
        )
        opts.add(
            "orphan_limit",
            type_=int,
            default=int(ORPHAN_LIMIT),
            help="seconds that processes keep running when their supervisor is lost",
        )
        opts.add(
            "idle_timeout",
            type_=int,
            default=0,
            help="seconds without any output after which the app has failed; 0: never",
        )
        opts.add(
            "policy",
            type_=str,
            help="what to do after a failure: live, restart, shrink or fail;"
            " nan=notify|restart|fail; min=N",
        )
        opts.add(
            "checkpoints",
            type_=str,
            help="where to store checkpoints: a folder, s3://bucket/prefix; default: with the run",
        )
        opts.add(
            "resume",
            type_=bool,
            default=False,
            help="resume the ended run with this id",
        )
        opts.add("resume_from", type_=int, help="with resume: the step to resume from")
        opts.add("resume_until", type_=int, help="with resume: the step to train up to")
        opts.add("id", type_=str, help="id of the run; default: its name and a random suffix")
        opts.add("cwd", type_=str, help="working directory; default: the current one")
        opts.add(
            "hosts", type_=list[str], help="hosts of the ranks: HOST:RANKS;..; default: this host"
        )
        opts.add("devices", type_=list[str], help="devices that each replica sees: 0,1;2,3")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[LocalRequest]:
        app_id = _given_id(cfg.get("id")) or make_unique(app.name)
        home = settings.runs_dir() / app_id
        empty = LaunchRequest(
            app_id=app_id,
            name=app.name,
            session=self.session_name,
            cwd=os.path.abspath(str(cfg.get("cwd") or os.getcwd())),
            log_dir=_log_dir(cfg.get("log_dir"), self.session_name, app_id, home),
            roles=(),
            grace=_seconds("grace", cfg),
            orphan_limit=_seconds("orphan_limit", cfg),
            idle_timeout=_seconds("idle_timeout", cfg),
            policy=parse_policy(str(cfg.get("policy") or "")),
            has_plane=settings.wants_plane(),
        )
        env = settings.environment() if self._inherited is None else self._inherited
        launch = local_request.build(app, cfg, empty, env, str(home))
        launch = saving(launch, str(cfg.get("checkpoints") or ""), env)
        if cfg.get("hosts") or cfg.get("devices"):
            from torchloom.schedulers.local_hosts import placed

            launch = placed(launch, cfg)
        if launch.policy.get("recovery") == "fail" and any(r.max_retries for r in launch.roles):
            raise UserError("policy fail never restarts; leave it out, or leave out the retries")
        if cfg.get("resume"):
            launch = _resumed(launch, cfg)
        return AppDryRunInfo(LocalRequest(launch, app_to_dict(app)), str)

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """A role need not state its resources here; but what is copied must exist."""
        for workspace in filter(None, (role.workspace for role in app.roles)):
            from torchloom.workspace import dir_workspace

            dir_workspace.check(workspace.projects)

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:
        self.start(dryrun_info).close()
        return dryrun_info.request.launch.app_id

    def resume(self, app_id: str, asked: "Continuation | None" = None) -> None:
        """Resume an app that has ended, detached, as a new attempt of the same run.

        It resumes from its newest checkpoint, or from that of a step; whether it may is checked by
        the caller.
        """
        self.start(self.resume_dryrun(app_id, asked)).close()

    def resume_dryrun(
        self, app_id: str, asked: "Continuation | None" = None
    ) -> AppDryRunInfo[LocalRequest]:
        """Return the request that would resume an app; raise what prevents it."""
        from torchloom.launch.records import resumption
        from torchloom.launch.records.folder import RunFolder

        launch = resumption.going_on(app_id, asked or resumption.AS_IT_WAS)
        return AppDryRunInfo(LocalRequest(launch, RunFolder.named(app_id).app()), str)

    def start(
        self,
        dryrun_info: AppDryRunInfo[LocalRequest],
        give: Input = "nothing",
        window: bytes = b"",
        head: "JointHead | None" = None,
    ) -> "socket.socket":
        """Start the app with a standard input for its only rank; see `launch.starter`."""
        from torchloom.launch.supervisor import starter

        request = _sealed(dryrun_info.request)
        fill = _no_files if request.launch.generation else partial(_fill, request.launch)
        own = self._inherited
        channel = starter.start(request.launch, request.app, give, window, fill, head, own)
        _have_it_watched()
        return channel

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        from torchloom.schedulers import local_apps

        return local_apps.describe(app_id)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        from torchloom.schedulers import local_apps

        return local_apps.listed(self.backend)

    def wait(self, app_id: str, timeout: float) -> bool:
        """Sleep until the app and its agent are gone; the kernel wakes us."""
        from torchloom.schedulers import local_apps

        if local_apps.is_here(app_id):
            return local_apps.wait_end(app_id, timeout)
        super().wait(app_id, timeout)  # it runs on another host of this state folder
        return local_apps.is_over(app_id)

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
        from torchloom.schedulers import local_apps

        stream = (streams or Stream.COMBINED).value
        tails, labels = local_apps.tails(app_id, role_name, k, stream, since, until)
        wait = partial(self.wait, app_id) if should_tail else None
        return local_apps.lines(tails, labels, regex, wait, until)

    def stop(
        self,
        app_id: str,
        reason: str = "cancelled_by_user",
        signum: int = signal.SIGTERM,
        at_once: bool = False,
    ) -> None:
        """End the app and record why: `signum`, its grace (or none), SIGKILL."""
        from torchloom.schedulers import local_apps

        local_apps.stop(app_id, reason, signum, at_once)

    def _cancel_existing(self, app_id: str) -> None:
        self.stop(app_id)

    def _delete_existing(self, app_id: str) -> None:
        from torchloom.schedulers import local_apps

        local_apps.remove(app_id)


def _resumed(launch: LaunchRequest, cfg: Mapping[str, CfgVal]) -> LaunchRequest:
    """Return a new request as one that resumes the run of its id."""
    from torchloom.launch.records import resumption

    step, until = (
        value if isinstance(value := cfg.get(name), int) else None
        for name in ("resume_from", "resume_until")
    )
    return resumption.anew(launch, resumption.Continuation(step=step, until=until))


def _sealed(request: LocalRequest) -> LocalRequest:
    """Return a request in which secrets are as they may be written into the run's folder."""
    roles = tuple(
        replace(role, replicas=tuple(replace(one, env=seal(one.env)) for one in role.replicas))
        for role in request.launch.roles
    )
    return replace(
        request, launch=replace(request.launch, roles=roles), app=seal_in_spec(request.app)
    )


def create_scheduler(session_name: str, **kwargs: Any) -> LocalScheduler:
    """Return this machine as a scheduler; `inherited` are what apps have of a submitter's shell."""
    return LocalScheduler("local", session_name, kwargs.get("inherited"))


def _have_it_watched() -> None:
    """Start this user's plane unless there is one; the run does not wait for it."""
    if settings.wants_plane():
        from torchloom.client import plane

        with contextlib.suppress(LoomError, OSError):  # a run without a plane is still a run
            plane.find_or_start(wait=False)


def _no_files(_folder: Path) -> None:
    """Copy nothing into the folder of a run that is resumed: it has its files."""


def _fill(request: LaunchRequest, folder: Path) -> None:
    """Copy each role's workspace into the run's folder, before anything starts."""
    from torchloom.workspace import dir_workspace

    for role in request.roles:
        if role.workspace:
            dir_workspace.copy(role.workspace, folder / WORKSPACES / role.name)


def _log_dir(chosen: CfgVal, session: str, app_id: str, home: Path) -> str:
    if not chosen:
        return str(home / "logs")
    return str(Path(str(chosen)).expanduser().absolute() / session / app_id)


def _given_id(chosen: CfgVal) -> str:
    """Return the id that was chosen for a run; it names a folder."""
    if chosen and not re.fullmatch(_ID, str(chosen)):
        raise UserError(f"id: {shorten(str(chosen))!r} is not a run id; use letters, digits, . _ -")
    return str(chosen or "")


def _seconds(name: str, cfg: Mapping[str, CfgVal]) -> float:
    chosen = cfg.get(name)
    if not isinstance(chosen, int) or chosen < 0:
        raise UserError(f"{name}: expected seconds from 0, got {chosen!r}")
    return float(chosen)
