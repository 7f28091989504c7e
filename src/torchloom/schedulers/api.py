"""The interface of every scheduler: it turns an app into a request, submits and describes it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from torchloom.errors import UserError
from torchloom.specs.api import (
    NONE,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    Role,
    Workspace,
    runopts,
)

if TYPE_CHECKING:
    from torchloom.specs.api import RoleStatus

T = TypeVar("T")


class Stream(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """The output streams of a replica."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


@dataclass
class DescribeAppResponse:
    """What an engine reports about one app; what it does not know has its default."""

    app_id: str = "<NOT_SET>"
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = NONE
    structured_error_msg: str = NONE
    ui_url: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    roles_statuses: "list[RoleStatus]" = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)


@dataclass
class ListAppResponse:
    """One line of an engine's list."""

    app_id: str
    state: AppState
    app_handle: str = "<NOT_SET>"
    name: str = ""


class Scheduler(ABC, Generic[T]):
    """One engine, the base class of all schedulers.

    `_submit_dryrun` is pure; only `schedule` and the methods after it act on the engine.
    """

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

    def close(self) -> None:
        """Close connections; apps keep running."""

    def submit(
        self, app: AppDef, cfg: Mapping[str, CfgVal], workspace: str | Workspace | None = None
    ) -> str:
        """Build the request and submit it; return the app's id."""
        if workspace and app.roles:
            given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
            app.roles[0].workspace = given
        return self.schedule(self.submit_dryrun(app, cfg))

    def submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Return what would be submitted, with the options filled in."""
        resolved = self.run_opts().resolve(cfg)
        info = self._submit_dryrun(app, resolved)
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        info.app, info.cfg, info._scheduler = app, resolved, self.backend
        return info

    def run_opts(self) -> runopts:
        """Return the options this engine takes."""
        return self._run_opts()

    def exists(self, app_id: str) -> bool:
        """Tell whether the engine knows the app."""
        return self.describe(app_id) is not None

    def cancel(self, app_id: str) -> None:
        """Cancel the app; one that has ended or is unknown is left alone."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def delete(self, app_id: str) -> None:
        """Remove the records of the app; an unknown app is left alone."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def wait(self, app_id: str, timeout: float) -> bool:
        """Wait until the app has ended, at most `timeout` seconds; tell whether it may have ended.

        This implementation only sleeps, for engines that cannot report the end.
        """
        import time

        time.sleep(timeout)
        return True

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[T]) -> str:
        """Submit a request; return the app's id."""

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Translate the app into this engine's request."""

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what the engine knows of the app; None if it does not know it."""

    @abstractmethod
    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Return the apps that the engine knows, newest first."""

    @abstractmethod
    def _cancel_existing(self, app_id: str) -> None: ...

    def _delete_existing(self, app_id: str) -> None:
        raise UserError(f"{self.backend} cannot delete apps")

    def _run_opts(self) -> runopts:
        return runopts()

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
        """Yield the lines of a replica's log, with their newlines."""
        raise UserError(f"{self.backend} keeps no logs that can be read from here")

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Refuse what cannot run here before any image is built."""

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Refuse what cannot run here; most engines want to know what a role needs."""
        for role in app.roles:
            if role.resource == NULL_RESOURCE:
                raise UserError(
                    f"role {role.name!r} names no resource; {scheduler} needs one: "
                    "set resource=, or cpu, gpu, memMB or h of the component"
                )


def filter_regex(regex: str, data: Iterable[str]) -> Iterable[str]:
    """Return the lines in which the regex is found."""
    return filter(re.compile(regex).search, data)


def split_lines(text: str) -> "list[str]":
    """Return the lines of a text with their newlines; other line breaks do not count."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def split_lines_iterator(chunks: Iterable[str]) -> Iterable[str]:
    """Yield whole lines out of chunks cut anywhere."""
    partial = ""
    for chunk in chunks:
        whole = split_lines(partial + chunk)
        partial = whole.pop() if whole and not whole[-1].endswith("\n") else ""
        yield from whole
    if partial:
        yield partial
