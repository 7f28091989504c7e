"""Why a request on a job is refused; also for previews of a request."""

from collections.abc import Iterable, Sequence
from typing import Any

from torchloom.errors import Failure, LoomError, UserError
from torchloom.weaver.jobs.registry import SAVING, is_launched
from torchloom.weaver.store.rows import JobRow

_NOTHING_SAVED = "others would have nothing to resume from; `run.track` sets what it saves"
_NOT_OURS = "they were not launched by torchloom, which cannot launch others"


class JobOver(UserError):
    """The job has ended and cannot be changed."""

    code = "job_over"

    def __init__(self, job: JobRow) -> None:
        super().__init__(f"job {job.id} has ended ({job.state}); `loom resume {job.id}` resumes it")


class JobMoved(UserError):
    """The job has left the state in which it was to be cancelled."""

    code = "job_moved"

    def __init__(self, job: JobRow) -> None:
        super().__init__(
            f"job {job.id} is {job.state} by now and was left alone; name it to end it"
        )


class JobReleased(UserError):
    """The job is paused and has no ranks that could execute a command."""

    code = "job_released"

    def __init__(self, job: JobRow) -> None:
        super().__init__(f"job {job.id} was released; `loom resume {job.id}` resumes it")


class NoBoundary(UserError):
    """No rank of the job has reached a step boundary, where commands take effect.

    `inner` are the jobs that a launcher inside it has started; these have the ranks.
    """

    code = "no_boundary"

    def __init__(self, job: JobRow, waited: float, inner: Sequence[str]) -> None:
        remedy = (
            "if it is still at its set-up, give it time with --wait; if it starts its ranks by a"
            " launcher of its own, have torchloom start them: `loom launch -n N train.py`"
        )
        if inner:
            remedy = f"its ranks are those of {', '.join(inner)}: name that job"
        super().__init__(
            f"no rank of {job.id} has reached a step boundary within {waited:g} s, and nothing was"
            f" changed; {remedy}"
        )


class OtherReplicas(UserError):
    """Other jobs hold replicas of the same training: a change of one would make them diverge."""

    code = "other_replicas"

    def __init__(self, job: JobRow, project: str, others: Iterable[str]) -> None:
        there = ", ".join(others)
        super().__init__(
            f"{job.id} is one of several replica groups of project {project!r}; others run as"
            f" {there} and would not be changed with it. Run the groups as one job (`loom launch`),"
            " or give independent trainings projects of their own"
        )


class CommandRefused(UserError):
    """A rank, or the rules, refused the command."""

    code = "refused"


class NothingToUndo(UserError):
    """No change can be undone, or not this one."""

    code = "nothing_to_undo"


class CommandAborted(Failure):
    """The ranks did not reach an agreement."""

    code = "aborted"


class NotResizable(UserError):
    """The job cannot have another number of ranks."""

    code = "not_resizable"

    def __init__(self, job: JobRow, why: str) -> None:
        super().__init__(f"{job.id} keeps its ranks: {why}")


def refusal(error: LoomError) -> dict[str, Any]:
    """Return an error as both doors send it."""
    reply = {"error": str(error), "code": error.code, "exit_code": error.exit_code}
    more = {name: getattr(error, name, None) for name in ("field", "remedy")}
    return reply | {name: text for name, text in more.items() if isinstance(text, str)}


def check_ranks(job: JobRow, now: int | None, ranks: int) -> None:
    """Refuse another number of ranks for a job that cannot have it."""
    if not is_resizable(job):
        raise NotResizable(job, _NOT_OURS if not is_launched(job) else _NOTHING_SAVED)
    if ranks == now:
        raise NotResizable(job, f"it has {ranks} ranks already")


def is_resizable(job: JobRow) -> bool:
    """Tell whether other ranks could replace those of a job: it saves, and was launched here."""
    return is_launched(job) and SAVING in job.facts
