"""The subjects of the bus; no other module spells one."""

import re
from functools import lru_cache

PREFIX = "torchLoom.v1"

HELLOS = f"{PREFIX}.agent.*.hello"  # Hello, a request; the reply is a Greeting
HEARTBEATS = f"{PREFIX}.agent.*.beat"  # Heartbeat
RECORDS = f"{PREFIX}.agent.*.records"  # Batch
ACTS = f"{PREFIX}.agent.*.acts"  # what a rank answers to a command, at once
STACKS = f"{PREFIX}.agent.*.stacks"  # Stacks
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
    """Return the subject on which an agent registers."""
    return _of(agent, "hello")


def heartbeat(agent: str) -> str:
    """Return the subject of an agent's heartbeat, once a second."""
    return _of(agent, "beat")


def records(agent: str) -> str:
    """Return the subject of an agent's batches of records."""
    return _of(agent, "records")


def acts(agent: str) -> str:
    """Return the subject on which an agent forwards what ranks answer to commands."""
    return _of(agent, "acts")


def stacks(agent: str) -> str:
    """Return the subject on which an agent reports the stacks of its ranks."""
    return _of(agent, "stacks")


def devices(agent: str) -> str:
    """Return the subject on which an agent reports the devices of its node."""
    return _of(agent, "devices")


def checkpoints(agent: str) -> str:
    """Return the subject on which an agent reports checkpoints it committed or removed."""
    return _of(agent, "checkpoints")


def down(agent: str) -> str:
    """Return the subject that an agent subscribes to: Stored, Kill, messages to its ranks."""
    return _of(agent, "down")


def door(name: str) -> str:
    """Return the subject of a request to the weaver over the bus."""
    return f"{PREFIX}.door.{_checked(name)}"


def inbox(agent: str) -> str:
    """Return the prefix of the subjects on which an agent alone receives replies."""
    return f"{PREFIX}.inbox.{_checked(agent)}"


def agent_of(subject: str) -> str | None:
    """Return which agent a subject belongs to; None for a subject of another kind."""
    found = _OF_AGENT.fullmatch(subject)
    return found[1] if found else None


def agent_of_job(node: str, job: str) -> str:
    """Return the name of a job's own agent on a node, unique to both.

    It ends with a digest of the job, by which the weaver knows which job the agent may report on.
    """
    tag = _digest(f"{node}\0{job}")[:8]
    end = f"-{tag}_job_{_digest(job)}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{node}-{job}")
    return f"{name[: _LONGEST - len(end)]}{end}"


def job_mark(agent: str) -> str:
    """Return what all agents of one job have in their names; empty for a plane's node agent."""
    found = _OF_JOB.fullmatch(agent)
    return found[1] if found else ""


def may_report_job(agent: str, job: str) -> bool:
    """Return whether an agent may report on a job: its own agent, or a plane's node agent."""
    return job_mark(agent) in ("", _digest(job))


def agent_of_account(node: str, account: str) -> str:
    """Return the name of the agent on a node for the jobs of one unix account."""
    end = f"_account_{_digest(account)}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{node}-{account}")
    return f"{name[: _LONGEST - len(end)]}{end}"


def account_mark(agent: str) -> str:
    """Return what the agents of one account have in their names; empty for all others."""
    found = _OF_ACCOUNT.fullmatch(agent)
    return found[1] if found else ""


def may_report_account(agent: str, account: str) -> bool:
    """Return whether an agent may report on an account's jobs; without one, on all other jobs."""
    return account_mark(agent) == (_digest(account) if account else "")


@lru_cache(4096)
def _digest(job: str) -> str:
    from hashlib import blake2b  # a launch on one host needs none, and loads this module

    return blake2b(job.encode(errors="replace"), digest_size=8).hexdigest()


def may_publish(agent: str) -> tuple[str, ...]:
    """Return the subjects that an agent's user may publish on."""
    return (f"{PREFIX}.agent.{_checked(agent)}.>",)


def may_subscribe(agent: str) -> tuple[str, ...]:
    """Return the subjects that an agent's user may subscribe to."""
    return (down(agent), f"{inbox(agent)}.>")


def _of(agent: str, what: str) -> str:
    return f"{PREFIX}.agent.{_checked(agent)}.{what}"


def _checked(name: str) -> str:
    if not _AGENT.fullmatch(name):
        raise ValueError(f"{name!r} cannot be part of a subject: letters, digits, _ and - only")
    return name
