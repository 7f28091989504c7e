"""This machine: an app's processes under a detached agent, which outlives whoever started it."""

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.errors import NotFound, UserError
from torchloom.launch import catalog
from torchloom.launch.folder import RunFolder
from torchloom.launch.handshake import Input
from torchloom.launch.record import RankRecord, Record
from torchloom.launch.request import DEFAULT_GRACE, LaunchRequest
from torchloom.schedulers import local_request
from torchloom.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchloom.schedulers.ids import make_unique
from torchloom.schedulers.local_request import WORKSPACES
from torchloom.schedulers.local_status import role_statuses
from torchloom.specs.api import (
    AppDef,
    AppDryRunInfo,
    CfgVal,
    app_from_dict,
    app_to_dict,
    make_app_handle,
    runopts,
)
from torchloom.workspace import dir_workspace

if TYPE_CHECKING:
    import socket


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """What the agent will be asked, and the app it was made from."""

    launch: LaunchRequest
    app: Mapping[str, Any]

    def __str__(self) -> str:
        return str(self.launch)


class LocalScheduler(Scheduler[LocalRequest]):
    """Processes on this machine. Everything known of them is in files; nothing is kept here."""

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
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[LocalRequest]:
        app_id = make_unique(app.name)
        home = settings.runs_dir() / app_id
        empty = LaunchRequest(
            app_id=app_id,
            name=app.name,
            session=self.session_name,
            cwd=os.getcwd(),
            log_dir=_log_dir(cfg.get("log_dir"), self.session_name, app_id, home),
            roles=(),
            grace=_grace(cfg.get("grace")),
        )
        launch = local_request.build(app, cfg, empty, settings.environment(), str(home))
        return AppDryRunInfo(LocalRequest(launch, app_to_dict(app)), str)

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Processes take what they need, a role need not say; but what is copied must exist."""
        for role in app.roles:
            if role.workspace:
                dir_workspace.check(role.workspace.projects)

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:
        self.start(dryrun_info).close()
        return dryrun_info.request.launch.app_id

    def start(
        self, dryrun_info: AppDryRunInfo[LocalRequest], give: Input = "nothing"
    ) -> "socket.socket":
        """Start the app with a standard input for its only rank; see `launch.starter`."""
        from torchloom.launch import starter

        request = dryrun_info.request
        return starter.start(request.launch, request.app, give, partial(_fill, request.launch))

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        record = catalog.record(app_id)
        if record is None:
            return None
        try:
            app = app_from_dict(RunFolder.named(app_id).app())
        except FileNotFoundError:  # removed since the line before
            return None
        return DescribeAppResponse(
            app_id=app_id,
            state=record.state,
            num_restarts=record.restarts,
            msg=record.reason,
            structured_error_msg=record.error,
            metadata=app.metadata,
            roles_statuses=role_statuses(record),
            roles=app.roles,
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return [
            ListAppResponse(
                app_id=record.id,
                state=record.state,
                app_handle=make_app_handle(self.backend, record.session, record.id),
                name=record.name,
            )
            for record in catalog.records()
        ]

    def wait(self, app_id: str, timeout: float) -> bool:
        """Sleep until the app and its agent are gone; the kernel wakes us."""
        record = catalog.record(app_id)
        if record is None or record.is_over() or all(o.is_here() for o in record.owners()):
            return record is None or record.wait_end(timeout)
        super().wait(app_id, timeout)  # it runs on another host of this state folder
        later = catalog.record(app_id)
        return later is None or later.is_over()

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
        """Yield a replica's lines; where it has several ranks, each behind its `[rank N]:`."""
        from torchloom.launch import logreader
        from torchloom.launch.logreader import Span, Tail

        record = catalog.record(app_id)
        if record is None:
            raise NotFound("app", app_id, remedy="`loom ls` lists what there is")
        ranks = _replica_ranks(record, role_name, k)
        stream = (streams or Stream.COMBINED).value
        tails = [Tail(record.log_path(rank), stream, Span(since, until)) for rank in ranks]
        labels = [f"[rank{rank.rank}]: " for rank in ranks] if len(ranks) > 1 else None
        wait = logreader.ending(partial(self.wait, app_id), until) if should_tail else None
        return logreader.lines(tails, labels, regex, wait)

    def _cancel_existing(self, app_id: str) -> None:
        """Tell the agent to stop its app: SIGTERM, the app's grace, SIGKILL."""
        self.stop(app_id)

    def stop(
        self,
        app_id: str,
        reason: str = "cancelled_by_user",
        signum: int = signal.SIGTERM,
        at_once: bool = False,
    ) -> None:
        """Ask the app to end and leave word why: `signum`, its grace (or none), SIGKILL."""
        record = catalog.record(app_id)
        if record is None or record.is_over() or record.agent is None:
            return
        if not record.agent.is_here():
            raise UserError(
                f"{app_id} runs on host {record.host}; stop it there: `loom stop {app_id}`"
            )
        RunFolder.named(app_id).ask_cancel(settings.user_name(), reason, signum)
        record.agent.send(signal.SIGQUIT if at_once else signal.SIGTERM)

    def _delete_existing(self, app_id: str) -> None:
        record = catalog.record(app_id)
        if record is not None and not record.is_over():
            raise UserError(f"{app_id} is {record.state.name}; stop it first: `loom stop {app_id}`")
        RunFolder.named(app_id).remove()


def create_scheduler(session_name: str, **kwargs: Any) -> LocalScheduler:
    """Return this machine as a scheduler; it has no settings of its own."""
    return LocalScheduler("local", session_name)


def _fill(request: LaunchRequest, folder: Path) -> None:
    """Copy each role's workspace into the run's folder, before anything starts."""
    for role in request.roles:
        if role.workspace:
            dir_workspace.copy(role.workspace, folder / WORKSPACES / role.name)


def _log_dir(chosen: CfgVal, session: str, app_id: str, home: Path) -> str:
    if not chosen:
        return str(home / "logs")
    return str(Path(str(chosen)).expanduser().absolute() / session / app_id)


def _grace(chosen: CfgVal) -> float:
    if not isinstance(chosen, int) or chosen < 0:
        raise UserError(f"grace: expected seconds from 0, got {chosen!r}")
    return float(chosen)


def _replica_ranks(record: Record, role: str, index: int) -> list[RankRecord]:
    """Return the ranks of one replica, or say which roles and replicas there are."""
    roles = dict.fromkeys(rank.role for rank in record.ranks)
    if role not in roles:
        raise NotFound("role", role, roles, f"{record.id} has: {', '.join(roles)}")
    ranks = [rank for rank in record.ranks if (rank.role, rank.replica) == (role, index)]
    if not ranks:
        count = len({rank.replica for rank in record.ranks if rank.role == role})
        raise NotFound("replica", f"{role}/{index}", remedy=f"{role} has replicas 0 to {count - 1}")
    return ranks
