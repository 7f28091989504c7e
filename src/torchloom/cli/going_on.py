"""A run that has ended and goes on, as `resume` sees it: start it, and follow it like a new one."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from torchloom.cli.output import echo_json, say
from torchloom.cli.relay import relay_logs
from torchloom.cli.shapes import job_shape, with_both_states
from torchloom.cli.submission import Submission
from torchloom.cli.target import Kind, Request, count
from torchloom.errors import Failure
from torchloom.launch.records.request import LaunchRequest
from torchloom.runner.api import Runner
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import AppDryRunInfo

_LOOK = 0.1  # seconds between two looks at a job that waits for its turn
_OVER = ("COMPLETED", "FAILED", "CANCELLED")


class Resumption(Submission):
    """A run on its way into its next life; what it printed in earlier ones is not shown again."""

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        info: AppDryRunInfo[Any],
        begin: Callable[[], object] | None = None,
    ) -> None:
        """`begin` has somebody else start it, when it is its turn; else it is started here."""
        self._begin = begin
        super().__init__(runner, scheduler, Request((), kind=Kind.SCRIPT), info)
        self._since = datetime.now(UTC)
        self._attempt: int = info.request.launch.attempt

    def _in_words(self, request: Request, launch: LaunchRequest) -> str:
        ranks = "" if self._is_queued else f" with {count(self._ranks)}"
        return f"goes on as attempt {launch.attempt + 1}{ranks}"

    @property
    def _is_queued(self) -> bool:
        return self._begin is not None

    def submit_json(self) -> None:
        self._schedule()
        if self._is_queued:
            from torchloom.client import plane

            echo_json(with_both_states(plane.ask("job", job=self._app_id)))
        else:
            echo_json(job_shape(self._record(), self._scheduler.backend))

    def _schedule(self) -> None:
        self._start_it()
        self._started = self._detached = True

    def _start_and_show(self) -> None:
        self._announce()
        self._starting = True
        self._start_it()
        self._started = self._detached = True
        if self._early is not None:
            self._on_signal(self._early, None)
        self._await_life()
        self._relay()

    def _start_it(self) -> None:
        if self._begin is not None:
            self._begin()
        else:
            self._scheduler.schedule(self._info)

    def _await_life(self) -> None:
        """Come back when the run is in its next life; say what it waits for meanwhile."""
        said = ""
        while self._is_queued and self._record().restarts < self._attempt:
            from torchloom.client import plane

            job = plane.ask("job", job=self._app_id)
            if job["state"] in _OVER and self._record().restarts < self._attempt:
                raise Failure(f"{self._app_id} {job['state']} ({job['reason']})")
            if job["state"] == "QUEUED" and job["reason"] != said:
                said = job["reason"]
                say(f"{self._app_id} {said}")
            time.sleep(_LOOK)

    def _relay(self) -> None:
        wait = partial(self._scheduler.wait, self._app_id)
        relay_logs(self._record(), True, wait, since=self._since)

    def _is_alone(self) -> bool:
        return False


def committed(app_id: str, patience: float = 5.0) -> None:
    """Let what its ranks wrote last become a checkpoint, where a plane is at it."""
    from torchloom.client import places, plane
    from torchloom.errors import LoomError

    deadline = time.monotonic() + patience
    while places.door().exists() and time.monotonic() < deadline:
        try:
            found = plane.ask("checkpoints", job=app_id, limit=3)
        except (LoomError, OSError):
            return
        if not any(one["state"] in ("writing", "committing") for one in found):
            return
        time.sleep(_LOOK)
