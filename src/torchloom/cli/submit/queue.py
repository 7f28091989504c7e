"""Submit a job to the queue of this user's plane, wait for its start and follow it."""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

from torchloom.cli.command import WaitNotice, repeat_in_words
from torchloom.cli.jobs.job_shapes import with_both_states
from torchloom.cli.output import echo, echo_json, say
from torchloom.cli.submit.submission import LocalSubmission, SubmissionInterrupted
from torchloom.cli.submit.target import TargetRequest, python_of_caller, variables_of
from torchloom.client import plane
from torchloom.client.errors import NoPlane, PlaneLost, PlaneNotStarted
from torchloom.errors import UserError
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import catalog
from torchloom.runner.api import Runner
from torchloom.schedulers import LOCAL
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.settings import user_name, wants_plane
from torchloom.specs.api import AppDryRunInfo, CfgVal, make_app_handle
from torchloom.specs.jobspec import JobSpec, Policy
from torchloom.specs.jobspec_shape import job_from_dict, job_in_short

_POLL = 0.2  # seconds between two checks of a waiting job
_AT_ONCE, _PATIENCE = 5000, 120.0  # jobs per request, and seconds for its reply
_REPEATED = "the request is repeated; Ctrl-C prints how to repeat it by hand"
_OVER = ("COMPLETED", "FAILED", "CANCELLED")


class NeverRan(Exception):
    """The job ended before it had a run."""


def goes_through_the_queue(request: TargetRequest, spec: JobSpec) -> bool:
    """Tell whether the plane's queue can run this: a local job without a workspace."""
    is_local = request.scheduler in LOCAL and spec.scheduler in LOCAL
    return wants_plane() and is_local and not request.workspace


def as_asked(spec: JobSpec, request: TargetRequest, cfg: dict[str, CfgVal]) -> JobSpec:
    """Return a job with the options of the command line applied."""
    recovery = spec.recovery
    if request.max_retries is not None:
        recovery = replace(recovery, attempts=request.max_retries)
    options: dict[str, Any] = {**spec.options, **cfg}
    policy = str(options.get("policy") or "")
    if policy in list(Policy):
        recovery = replace(recovery, policy=Policy(policy))
        del options["policy"]
    return replace(
        spec,
        name=request.name or spec.name,
        env={**spec.env, **_plain(variables_of(request.env))},
        recovery=recovery,
        options=options,
    )


def _plain(env: dict[str, str]) -> dict[str, str]:
    """Return variables without the escapes that protect `$` from macros."""
    return {name: value.replace("$$", "$") for name, value in env.items()}


class QueuedSubmission(LocalSubmission):
    """A job in the queue; once started it is followed like any other."""

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        request: TargetRequest,
        info: AppDryRunInfo[Any],
        spec: JobSpec,
        key: str | None = None,
    ) -> None:
        super().__init__(runner, scheduler, request, info)
        self._key = key or uuid.uuid4().hex
        self._waiting = WaitNotice(_REPEATED)
        self._spec = job_in_short(spec)
        job_from_dict(self._spec)  # validates the options of the command line too
        self._shape: dict[str, Any] = {}

    def submit_json(self) -> None:
        self._schedule()
        shape = {name: value for name, value in self._shape.items() if name != "created"}
        echo_json(with_both_states(shape))

    def _schedule(self) -> None:
        self._ask()
        self._started = self._detached = True

    def _ask(self) -> None:
        """Submit the job to the plane, once, and take its id."""
        plane.find_or_start()
        try:
            self._shape = self._settled()
        except (SubmissionInterrupted, KeyboardInterrupt, PlaneLost, NoPlane, PlaneNotStarted):
            say(repeat_in_words(self._key))
            raise
        self._app_id = self._shape["id"]
        self._handle = make_app_handle(self._scheduler.backend, self._runner.name(), self._app_id)

    def _settled(self) -> dict[str, Any]:
        me, python = user_name(), python_of_caller()
        found: dict[str, Any] = plane.settle(
            "submit",
            self._on_wait,
            key=self._key,
            spec=self._spec,
            owner=me,
            author=me,
            cwd=os.getcwd(),
            python=shutil.which(python) or python,
            shell=asdict(shell) if (shell := ProcessIdentity.of_session()) else None,
        )
        return found

    def _on_wait(self, why: str) -> None:
        """Print that the reply is pending; an earlier signal ends the wait."""
        if self._early is not None:
            raise SubmissionInterrupted(self._early)
        self._waiting(why)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if not self._started and self._waiting.is_shown and signum in self.ending:
            raise SubmissionInterrupted(signum)
        super()._on_signal(signum, frame)

    def _start_and_show(self) -> None:
        self._starting = True
        self._ask()
        self._announce()
        self._started = True
        if self._early is not None:
            self._on_signal(self._early, None)
        self._await_run()
        self._relay()

    def _until_over(self, show: Callable[[], None]) -> int:
        def show_run() -> None:
            if self._started:
                self._await_run()
            show()

        try:
            return super()._until_over(show_run)
        except NeverRan as never:
            say(f"{self._app_id} {never}")
            return 128 + self._stopped_by if self._stopped_by else 1

    def _await_run(self) -> None:
        """Wait until the job has a run; print why it is waiting."""
        shown = ""
        while catalog.record(self._app_id) is None:
            job = plane.ask("job", job=self._app_id)
            if job["state"] in _OVER and catalog.record(self._app_id) is None:
                raise NeverRan(f"{job['state']} ({job['reason']})")
            if job["state"] == "QUEUED" and job["reason"] != shown:
                shown = job["reason"]
                say(f"{self._app_id} {shown}")
            time.sleep(_POLL)

    def _stop(self, signum: int) -> None:
        if catalog.record(self._app_id) is not None:
            super()._stop(signum)
            return
        self._stopping = True
        self._stopped_by = signum
        cancel(self._app_id)


def cancel(job: str, reason: str = "") -> dict[str, Any]:
    """Cancel a queued job; after a repeated request it may have been cancelled already."""
    waiting = WaitNotice(f"the request is repeated; `loom show {job}` shows its state")
    try:
        done: dict[str, Any] = plane.settle(
            "cancel", waiting, job=job, reason=reason, author=user_name()
        )
    except UserError as error:
        if error.code != "job_over" or not waiting.is_shown:
            raise
        done = plane.ask("job", job=job)
    return done


def cancel_many(jobs: Sequence[str], reason: str = "") -> list[dict[str, Any]]:
    """Cancel queued jobs together; return the outcome of each, in order.

    After a repeated request, a job that was cancelled already is returned as it is.
    """
    found: list[dict[str, Any]] = []
    waiting = WaitNotice("the request is repeated; `loom ls` shows the states")
    for begin in range(0, len(jobs), _AT_ONCE):
        part = list(jobs[begin : begin + _AT_ONCE])
        facts: dict[str, Any] = {"jobs": part, "reason": reason, "author": user_name()}
        found += plane.settle("cancel_many", waiting, _PATIENCE, **facts)["items"]
    if not waiting.is_shown:
        return found
    return [_as_it_is(*pair) for pair in zip(jobs, found, strict=True)]


def _as_it_is(job: str, item: dict[str, Any]) -> dict[str, Any]:
    is_over = item.get("code") == "job_over"
    return {"job": job, "ok": plane.ask("job", job=job)} if is_over else item


def waited(job: str) -> dict[str, Any]:
    """Wait until a job has ended and return it."""
    while True:
        found: dict[str, Any] = plane.ask("job", job=job)
        if found["state"] in _OVER:
            return found
        time.sleep(_POLL)


def show_spec(job: dict[str, Any], as_json: bool) -> None:
    """Print a job as it was submitted."""
    if as_json:
        echo_json(job["spec"])
        return
    import yaml

    echo(yaml.safe_dump(job["spec"], sort_keys=False).rstrip())
