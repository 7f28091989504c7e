"""What can be asked of a weaver: one frozen dataclass a request, with how each field is read.

The router reads all fields before it calls a handler, each by its type or as its default says. A
field that does not fit is refused with `BadRequest`; one that is left out, or null, has its
default; unknown fields are ignored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from torchloom import settings
from torchloom.errors import Ambiguous, NotFound, UserError, shorten
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.store.rows import JobRow
from torchloom.weaver.users import COOKIE, LONGEST_LIFETIME

LAST = "@"
_LONGEST = 10_000  # characters of a text
_MOST_ROWS = 100_000  # of one reply
_MOST_CHECKPOINTS = 10_000  # of one reply
_MOST_RUNS = 1000  # of one page
_MOST_BUCKETS = 10_000  # of one curve
_WAIT, _LONGEST_WAIT = 30.0, 3600.0  # seconds to wait for the outcome of a command
_LONGEST_REMOVAL = 600.0  # seconds to wait until a checkpoint is removed
_SPAN, _LONGEST_SPAN = 200, 1 << 40  # steps that a guard watches over

Facts = Mapping[str, Any]
_READ = "read"


class NoJob(UserError):
    """No job was named, and not exactly one is active."""

    code = "no_job"


class BadRequest(UserError):
    """A field of the request is missing, or has another type or range."""

    code = "bad_question"


def needed() -> Any:
    """A text that must be there."""
    return _field(_needed, "")


def author() -> Any:
    """The user who asks; without a name, the user of the weaver."""
    return _field(lambda name, value: _text(name, value) or settings.user_name(), "")


def count(default: int, most: int) -> Any:
    """A number of things, at most so many."""
    return _field(lambda name, value: max(0, min(_number(name, value, default), most)), default)


def seconds(default: float, most: float) -> Any:
    """A duration, at most so long."""
    return _field(lambda name, value: min(_seconds(name, value, default), most), default)


def _field(read: Callable[[str, Any], Any], default: Any) -> Any:
    return field(default=default, metadata={_READ: read})


def _text(name: str, value: Any) -> Any:
    if value is not None and (not isinstance(value, str) or len(value) > _LONGEST):
        raise BadRequest(f"{name} must be text, not {_shown(value)}")
    return value


def _needed(name: str, value: Any) -> Any:
    if not _text(name, value):
        raise BadRequest(f"{name} is missing")
    return value


def _number(name: str, value: Any, default: int = 0) -> Any:
    if value is None:
        return default
    if type(value) is not int or not -(2**62) < value < 2**62:
        raise BadRequest(f"{name} must be a whole number, not {_shown(value)}")
    return value


def _seconds(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadRequest(f"{name} must be seconds, not {_shown(value)}")
    return float(value)


def _flag(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {_shown(value)}")
    return value


def _texts(name: str, value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadRequest(f"{name} must be a list of strings, not {_shown(value)}")
    return tuple(value)


def _mapping(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must map names to values, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return shorten(repr(value))


_READERS: Mapping[Any, Callable[[str, Any], Any]] = {
    str: _text,
    str | None: _text,
    int | None: _number,
    bool: _flag,
    bool | None: _flag,
    tuple[str, ...] | None: _texts,
    Mapping[str, Any]: _mapping,
    Mapping[str, Any] | None: _mapping,
    Any: lambda name, value: value,  # the handler reads it
}


@dataclass(frozen=True, slots=True)
class WeaverRequest:
    """A request without fields, and the base of the others."""

    @classmethod
    def read(cls, facts: Facts) -> Self:
        """Return a request with these facts, or refuse the first one that does not fit."""
        given = {}
        for one in fields(cls):
            value = facts.get(one.name)
            if (read := one.metadata.get(_READ)) is not None:
                given[one.name] = read(one.name, value)
            elif value is not None or (one.type is bool and one.name in facts):
                given[one.name] = _READERS[one.type](one.name, value)
        return cls(**given)


@dataclass(frozen=True, slots=True)
class JobRequest(WeaverRequest):
    job: str = ""


@dataclass(frozen=True, slots=True)
class JobsRequest(WeaverRequest):
    limit: int = count(_MOST_ROWS, _MOST_ROWS)
    ids: tuple[str, ...] | None = None
    active: bool = False
    strangers: bool = False  # only jobs without a run of this plane
    named: str = ""  # only jobs of this name, or whose id begins so


@dataclass(frozen=True, slots=True)
class KnobsRequest(WeaverRequest):
    job: str = ""
    wait: float = seconds(0.0, _LONGEST_WAIT)  # for the first knob


@dataclass(frozen=True, slots=True)
class MetricsRequest(WeaverRequest):
    job: str = ""
    metric: str = ""
    rank: int | None = None
    after: int | None = None  # a step
    limit: int = count(1000, _MOST_ROWS)


@dataclass(frozen=True, slots=True)
class EventsRequest(WeaverRequest):
    """Also what a client sends that watches the events."""

    job: str = ""
    limit: int = count(100, 10_000)
    after: Mapping[str, Any] = field(default_factory=dict)  # a cursor, `next` of the last reply


@dataclass(frozen=True, slots=True)
class RunsRequest(WeaverRequest):
    text: str = ""  # in the name, or in any of the others
    owner: str = ""
    project: str = ""
    group: str = ""
    tag: str = ""
    commit: str = ""
    states: tuple[str, ...] | None = None
    where: tuple[str, ...] | None = None
    limit: int = count(100, _MOST_RUNS)
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class RunRequest(WeaverRequest):
    run: str = ""


@dataclass(frozen=True, slots=True)
class CompareRunsRequest(WeaverRequest):
    runs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CurvesRequest(WeaverRequest):
    job: str = ""
    names: tuple[str, ...] | None = None
    buckets: int = count(1000, _MOST_BUCKETS)
    all_ranks: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class JobCommandRequest(WeaverRequest):
    """What every command to the ranks of a job has."""

    job: str = ""
    id: str = ""  # by which a repeated request is recognized
    author: str = author()
    reason: str = ""
    at: int | None = None  # a step
    wait: float = seconds(_WAIT, _LONGEST_WAIT)
    guard: str = ""


@dataclass(frozen=True, slots=True)
class SetRequest(JobCommandRequest):
    values: Mapping[str, Any] = field(default_factory=dict)
    hold: bool = False
    undo: str = ""
    span: int = count(_SPAN, _LONGEST_SPAN)


@dataclass(frozen=True, slots=True)
class UndoRequest(JobCommandRequest):
    command: str = ""


@dataclass(frozen=True, slots=True)
class PauseRequest(JobCommandRequest):
    release: bool = False


@dataclass(frozen=True, slots=True)
class ResumeRequest(JobCommandRequest):
    unpause: bool = False  # the client saw the job paused: an ended one is not resumed
    workers: int | None = None
    from_step: int | None = None
    until: int | None = None
    from_scratch: bool = False
    distributed: Mapping[str, Any] | None = None  # another strategy, or another mesh


@dataclass(frozen=True, slots=True)
class ResizeRequest(JobCommandRequest):
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class DigestRequest(JobCommandRequest):
    log: str = ""


@dataclass(frozen=True, slots=True)
class DeviceEventRequest(WeaverRequest):
    device: str = needed()
    state: str = needed()
    new: bool = False
    source: str = ""
    reason: str = ""
    author: str = author()


@dataclass(frozen=True, slots=True)
class DeviceImpactRequest(WeaverRequest):
    state: str = needed()
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointsRequest(WeaverRequest):
    job: str = ""
    limit: int = count(_MOST_CHECKPOINTS, _MOST_CHECKPOINTS)
    wait: float = seconds(0.0, _LONGEST_WAIT)  # for those that ended ranks have written


@dataclass(frozen=True, slots=True)
class RemoveCheckpointRequest(WeaverRequest):
    job: str = ""
    step: int | None = None
    force: bool = False
    author: str = author()
    reason: str = ""
    wait: float = seconds(_WAIT, _LONGEST_REMOVAL)


@dataclass(frozen=True, slots=True)
class CheckpointVerifiedRequest(WeaverRequest):
    job: str = ""
    step: int | None = None
    generation: int | None = None
    attempt: int | None = None
    author: str = author()
    name: str = ""  # a damaged file, if there is one
    why: str = ""


@dataclass(frozen=True, slots=True)
class RetainRequest(WeaverRequest):
    dry: bool = False


@dataclass(frozen=True, slots=True)
class RemoveJobRequest(WeaverRequest):
    job: str = needed()
    author: str = author()


@dataclass(frozen=True, slots=True)
class PutUserRequest(WeaverRequest):
    author: str = needed()
    user: str = ""
    name: str = ""  # instead of `user`
    role: str = ""
    disabled: bool | None = None
    run_as: str | None = None


@dataclass(frozen=True, slots=True)
class TokensRequest(WeaverRequest):
    user: str = ""


@dataclass(frozen=True, slots=True)
class AddTokenRequest(WeaverRequest):
    user: str = needed()
    author: str = needed()
    label: str = ""
    seconds: float = seconds(0.0, LONGEST_LIFETIME)
    key: str = ""


@dataclass(frozen=True, slots=True)
class RevokeTokenRequest(WeaverRequest):
    id: str = needed()
    author: str = needed()


@dataclass(frozen=True, slots=True)
class AddLinkRequest(WeaverRequest):
    user: str = needed()
    author: str = needed()
    role: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class UseLinkRequest(WeaverRequest):
    code: str = needed()
    kind: str = COOKIE
    label: str = ""


@dataclass(frozen=True, slots=True)
class SubmitRequest(WeaverRequest):
    spec: Any = None
    owner: str = ""
    author: str = author()
    key: str = ""
    cwd: str = ""
    python: str = ""
    shell: Any = None
    user: str = ""


@dataclass(frozen=True, slots=True)
class SubmitManyRequest(WeaverRequest):
    """The fields beside `items` are defaults for each item, and are read with it."""

    items: Any = None
    owner: Any = None
    author: Any = None
    cwd: Any = None
    python: Any = None
    shell: Any = None
    user: Any = None


@dataclass(frozen=True, slots=True)
class CancelJobRequest(WeaverRequest):
    job: str = ""
    author: str = author()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CancelManyRequest(WeaverRequest):
    jobs: tuple[str, ...] | None = None
    states: tuple[str, ...] | None = None
    owner: str = ""
    author: str = author()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SetQuotaRequest(WeaverRequest):
    owner: str = needed()
    workers: int | None = None
    author: str = author()


def job_named(jobs: JobRegistry, name: str) -> JobRow:
    """Return the job of a name, id, handle or the beginning of an id.

    No name is the only active job; `@` is the newest one.
    """
    if name == LAST and (newest := jobs.all()):
        return newest[0]
    if not name or name == LAST:
        return _only(jobs)
    if (exact := jobs.find(name)) is not None:
        return exact
    known = jobs.all()
    for job in known:
        if name in (job.name, job.handle):
            return job  # the newest
    found = [job for job in known if job.id.startswith(name)]
    if len(found) > 1:
        raise Ambiguous("job", name, [job.id for job in found])
    if not found:
        raise NotFound("job", name, [job.id for job in known] + [job.name for job in known])
    return found[0]


def _only(jobs: JobRegistry) -> JobRow:
    active = jobs.active()
    if len(active) == 1:
        return active[0]
    if not active:
        raise NoJob("no job is active; name one of `loom ls`")
    raise NoJob(f"{len(active)} jobs are active; name one: {', '.join(job.id for job in active)}")
