"""qdel, qhold, qrls, qsig, qrerun: what is done to jobs, and what is said where it cannot be."""

import re
import signal
from collections.abc import Callable

from ..batch.command import Client, Refused
from ..batch.job import Job, State
from ..batch.options import BadOption, Parsed, getopt
from .jobs import IDENTIFIER, find
from .words import BADSTATE, HISTJOBID, NORERUN, TEXTS, UNKJOBID, UNKSIG

QDEL = """\
usage:
\tqdel [-W force|suppress_email=X] [-x] job_identifier...
\tqdel --version
"""
QHOLD = "usage: qhold [-h hold_list] job_identifier...\n       qhold --version\n"
QRLS = "usage: qrls [-h hold_list] job_identifier...\n       qrls --version\n"
QSIG = "usage: qsig [-s signal] job_identifier...\n       qsig --version\n"
QRERUN = "usage: qrerun [-W force] job_identifier...\n       qrerun --version\n"


def qdel(client: Client, words: list[str]) -> int:
    """Delete jobs; with `-x` their history, too."""
    parsed = _parse("qdel", words, "W:x", QDEL)
    force = False
    for option, value in parsed.options:
        if option == "W" and not re.fullmatch(r"force|suppress_email=-?\d+|\d+", value):
            raise Refused(f"qdel: illegal -W value\n{QDEL}", 2)
        force = force or value == "force"
    history = any(option == "x" for option, _ in parsed.options)

    def delete(jobs: list[Job]) -> int:
        if not history and all(job.state is State.FINISHED for job in jobs):
            return HISTJOBID
        client.ask("kill", keys=[job.key for job in jobs], force=force)
        if history:
            client.ask("forget", keys=[job.key for job in jobs if job.state is State.FINISHED])
        return 0

    return _each("qdel", client, parsed.operands, delete)


def qhold(client: Client, words: list[str]) -> int:
    """Hold jobs that wait."""
    parsed = _parse("qhold", words, "h:", QHOLD)
    holds = _holds("qhold", parsed, QHOLD)

    def hold(jobs: list[Job]) -> int:
        if code := _over(jobs):
            return code
        client.ask("holds", keys=[job.key for job in jobs], add=holds)
        return 0

    return _each("qhold", client, parsed.operands, hold)


def qrls(client: Client, words: list[str]) -> int:
    """Release jobs that are held."""
    parsed = _parse("qrls", words, "h:", QRLS)
    holds = _holds("qrls", parsed, QRLS)

    def release(jobs: list[Job]) -> int:
        if code := _over(jobs):
            return code
        client.ask("holds", keys=[job.key for job in jobs], take=holds)
        return 0

    return _each("qrls", client, parsed.operands, release)


def qsig(client: Client, words: list[str]) -> int:
    """Send running jobs a signal; `suspend` and `resume` are the server's own."""
    parsed = _parse("qsig", words, "s:", QSIG)
    asked = dict(parsed.options).get("s", "SIGTERM")

    def send(jobs: list[Job]) -> int:
        keys = [job.key for job in jobs]
        if asked in ("suspend", "resume"):
            wanted = State.RUNNING if asked == "suspend" else State.SUSPENDED
            if code := _over(jobs) or (0 if jobs[0].state is wanted else BADSTATE):
                return code
            client.ask(asked, keys=keys)
            return 0
        name = _signal(asked)
        if name is None:
            return UNKSIG
        if code := _over(jobs) or (0 if jobs[0].state is State.RUNNING else BADSTATE):
            return code
        client.ask("signal", keys=keys, signal=name)
        return 0

    return _each("qsig", client, parsed.operands, send)


def qrerun(client: Client, words: list[str]) -> int:
    """Kill running jobs and put them back in the queue."""
    parsed = _parse("qrerun", words, "W:", QRERUN)
    if any(value != "force" for _, value in parsed.options):
        raise Refused(f"qrerun: illegal -W value\n{QRERUN}", 2)

    def rerun(jobs: list[Job]) -> int:
        if code := _over(jobs):
            return code
        if not any(job.state in (State.RUNNING, State.SUSPENDED) for job in jobs):
            return BADSTATE
        if not jobs[0].rerunnable:
            return NORERUN
        client.ask("requeue", keys=[job.key for job in jobs])
        return 0

    return _each("qrerun", client, parsed.operands, rerun)


def _parse(program: str, words: list[str], known: str, usage: str) -> Parsed:
    try:
        parsed = getopt(program, words, known)
    except BadOption as bad:
        raise Refused(f"{bad}\n{usage}", 2) from None
    if not parsed.operands:
        raise Refused(usage, 2)
    return parsed


def _holds(program: str, parsed: Parsed, usage: str) -> list[str]:
    asked = dict(parsed.options).get("h", "u")
    if not re.fullmatch(r"[uosp]+|n", asked):
        raise Refused(f"{program}: illegal -h value\n{usage}", 2)
    return [letter for letter in asked if letter != "n"]


def _signal(text: str) -> str | None:
    name = text if text.startswith("SIG") else f"SIG{text}"
    if text.isdigit():
        return next((each.name for each in signal.Signals if each.value == int(text)), None)
    return name if name in signal.Signals.__members__ else None


def _over(jobs: list[Job]) -> int:
    return HISTJOBID if all(job.state is State.FINISHED for job in jobs) else 0


def _each(
    program: str, client: Client, operands: list[str], act: Callable[[list[Job]], int]
) -> int:
    """Act on each job that is named; say what went wrong and exit with the last of it."""
    jobs, said, code, server = client.jobs(), "", 0, client.site["server"]
    for operand in operands:
        match = IDENTIFIER.fullmatch(operand)
        if not match:
            said, code = f"{said}{program}: illegally formed job identifier: {operand}\n", 1
            continue
        found = find(operand, jobs)
        if failed := act(found) if found else UNKJOBID:
            name = f"{match[1]}{match[2] or ''}.{server}"
            said, code = f"{said}{program}: {TEXTS[failed]} {name}\n", failed % 256
    if said:
        raise Refused(said, code)
    return 0
