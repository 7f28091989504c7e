"""Where things are said: every subject of the bus is spelled here and nowhere else."""

import re
from functools import lru_cache

PREFIX = "torchLoom.v1"

HELLOS = f"{PREFIX}.agent.*.hello"  # Hello, a request; the answer is a Greeting
BEATS = f"{PREFIX}.agent.*.beat"  # Beat
RECORDS = f"{PREFIX}.agent.*.records"  # Batch
ACTS = f"{PREFIX}.agent.*.acts"  # what a rank says in answer to a command, at once
STACKS = f"{PREFIX}.agent.*.stacks"  # Stacks, what an agent saw of its ranks
AGENT_DEVICES = f"{PREFIX}.agent.*.devices"  # DeviceEvent, of a device on the agent's node
CHECKPOINTS = f"{PREFIX}.agent.*.checkpoints"  # Committed and Removed
DEVICE_EVENTS = f"{PREFIX}.devices.events"  # DeviceEvent
DEVICE_ALERTS = f"{PREFIX}.devices.alerts"  # Alertmanager's JSON
EVERYTHING = f"{PREFIX}.>"

_AGENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST = 64  # letters of an agent's name
_OF_JOB = re.compile(r".*_job_([0-9a-f]{16})")
_OF_ACCOUNT = re.compile(r".*_account_([0-9a-f]{16})")
_OF_AGENT = re.compile(rf"{re.escape(PREFIX)}\.agent\.([A-Za-z0-9_-]{{1,64}})\.[a-z]+")


def hello(agent: str) -> str:
    """Return where an agent asks to be taken in."""
    return _of(agent, "hello")


def beat(agent: str) -> str:
    """Return where an agent says once a second that it lives."""
    return _of(agent, "beat")


def records(agent: str) -> str:
    """Return where an agent sends batches of records."""
    return _of(agent, "records")


def acts(agent: str) -> str:
    """Return where an agent passes on what ranks answer to commands."""
    return _of(agent, "acts")


def stacks(agent: str) -> str:
    """Return where an agent says what it saw of ranks that it was to look at."""
    return _of(agent, "stacks")


def devices(agent: str) -> str:
    """Return where an agent says that a device of its node failed or is to be left."""
    return _of(agent, "devices")


def checkpoints(agent: str) -> str:
    """Return where an agent says what became of a checkpoint that it was to commit or remove."""
    return _of(agent, "checkpoints")


def down(agent: str) -> str:
    """Return where an agent listens: Stored, Kill, and what is for one of its ranks."""
    return _of(agent, "down")


def door(name: str) -> str:
    """Return where a question to the weaver is asked over the bus."""
    return f"{PREFIX}.door.{_checked(name)}"


def inbox(agent: str) -> str:
    """Return the prefix of the subjects on which an agent, and nobody else, hears answers."""
    return f"{PREFIX}.inbox.{_checked(agent)}"


def agent_of(subject: str) -> str | None:
    """Return which agent a subject belongs to; nothing for a subject of another kind."""
    found = _OF_AGENT.fullmatch(subject)
    return found[1] if found else None


def agent_of_job(node: str, job: str) -> str:
    """Return the name of a job's own agent on a node: no other job's, no other node's.

    It ends with a digest of the job, by which the weaver knows for whom the agent may speak.
    """
    tag = _digest(f"{node}\0{job}")[:8]
    end = f"-{tag}_job_{_digest(job)}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{node}-{job}")
    return f"{name[: _LONGEST - len(end)]}{end}"


def job_mark(agent: str) -> str:
    """Return what all agents of one job have in their names; nothing for one of a plane's node."""
    found = _OF_JOB.fullmatch(agent)
    return found[1] if found else ""


def may_speak_for(agent: str, job: str) -> bool:
    """Tell whether an agent may say something of a job: its own one, or that of a plane's node."""
    return job_mark(agent) in ("", _digest(job))


def agent_of_account(node: str, account: str) -> str:
    """Return the name of the agent on a node that speaks for the jobs of one unix account."""
    end = f"_account_{_digest(account)}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{node}-{account}")
    return f"{name[: _LONGEST - len(end)]}{end}"


def account_mark(agent: str) -> str:
    """Return what the agents of one account have in their names; nothing for all others."""
    found = _OF_ACCOUNT.fullmatch(agent)
    return found[1] if found else ""


def may_speak_as(agent: str, account: str) -> bool:
    """Tell whether an agent may say something of an account's jobs; none: of all other jobs."""
    return account_mark(agent) == (_digest(account) if account else "")


@lru_cache(4096)
def _digest(job: str) -> str:
    from hashlib import blake2b  # a launch on one host needs none, and loads this module

    return blake2b(job.encode(errors="replace"), digest_size=8).hexdigest()


def may_publish(agent: str) -> tuple[str, ...]:
    """Return the rights to speak that an agent's user has."""
    return (f"{PREFIX}.agent.{_checked(agent)}.>",)


def may_subscribe(agent: str) -> tuple[str, ...]:
    """Return the rights to listen that an agent's user has."""
    return (down(agent), f"{inbox(agent)}.>")


def _of(agent: str, what: str) -> str:
    return f"{PREFIX}.agent.{_checked(agent)}.{what}"


def _checked(name: str) -> str:
    if not _AGENT.fullmatch(name):
        raise ValueError(f"{name!r} cannot be part of a subject: letters, digits, _ and - only")
    return name
