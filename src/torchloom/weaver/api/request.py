"""What somebody asks at the door, read with care: what does not fit is refused in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.errors import Ambiguous, NotFound, UserError, shorten
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.store.rows import JobRow

LAST = "@"
_LONGEST = 10_000  # characters of a text


class NoJob(UserError):
    """No job was named, and not exactly one is active."""

    code = "no_job"


def job_named(jobs: JobRegistry, name: str) -> JobRow:
    """Return the job that somebody means, or say in words why none is."""
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


class BadRequest(UserError):
    """The question is not of the form that this door understands."""

    code = "bad_question"


@dataclass(frozen=True, slots=True)
class WeaverRequest:
    """The facts of a question, by name."""

    facts: Mapping[str, Any]

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        value = self.facts.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > _LONGEST:
            raise BadRequest(f"{name} must be a text, not {_shown(value)}")
        return value

    def named(self, name: str) -> "WeaverRequest":
        """Return the same for a command of this id."""
        return WeaverRequest({**self.facts, "id": name})

    def because(self, reason: str) -> "WeaverRequest":
        """Return the same with this reason."""
        return WeaverRequest({**self.facts, "reason": reason})

    def needed(self, name: str) -> str:
        """Return a text that must be there."""
        value = self.text(name)
        if not value:
            raise BadRequest(f"{name} is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number."""
        value = self.facts.get(name)
        if value is None:
            return default
        if type(value) is not int or not -(2**62) < value < 2**62:
            raise BadRequest(f"{name} must be a whole number, not {_shown(value)}")
        return value

    def count(self, name: str, default: int, most: int) -> int:
        """Return how many of something are wanted, at most so many."""
        value = self.number(name, default)
        assert value is not None
        return max(0, min(value, most))

    def seconds(self, name: str, default: float, most: float) -> float:
        """Return a time to wait."""
        value = self.facts.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise BadRequest(f"{name} must be seconds, not {_shown(value)}")
        return min(float(value), most)

    def flag(self, name: str) -> bool:
        """Return yes or no; no when it is not said."""
        value = self.facts.get(name, False)
        if not isinstance(value, bool):
            raise BadRequest(f"{name} must be true or false, not {_shown(value)}")
        return value

    def texts(self, name: str) -> frozenset[str] | None:
        """Return some texts; nothing when they are not said."""
        value = self.facts.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise BadRequest(f"{name} must be a list of texts, not {_shown(value)}")
        return frozenset(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return values by name."""
        value = self.facts.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise BadRequest(f"{name} must map names to values, not {_shown(value)}")
        return value


def _shown(value: Any) -> str:
    return shorten(repr(value))
