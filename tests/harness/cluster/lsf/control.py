"""bkill, bstop, bresume, brequeue: what is done to jobs, and what is said where it cannot be."""

import signal
import sys
from collections.abc import Callable

from ..batch.command import Client, Refused
from ..batch.job import Job, State
from .jobs import IDENTIFIER, find, name
from .options import names, part
from .words import FAILED, FINISHED, NO_MATCH, NOT_STARTED, not_done

ON_HOSTS = (State.RUNNING, State.SUSPENDED, State.ENDING)
Act = Callable[[Job], str]  # returns why not, or nothing


def bkill(client: Client, words: list[str]) -> int:
    """Kill jobs, or send them a signal."""
    options, operands = _parse("bkill", words, "l r b d", "app C g J m q s sla stat u")
    sent = _signal(options["s"]) if "s" in options else ""

    def kill(job: Job) -> str:
        if job.state is State.FINISHED:
            return FINISHED
        if sent and sent != "SIGKILL":
            if job.state not in ON_HOSTS:
                return NOT_STARTED
            client.ask("signal", keys=[job.key], signal=sent)
        else:
            client.ask("kill", keys=[job.key], force="r" in options or sent == "SIGKILL")
        return ""

    word = "signaled" if sent and sent != "SIGKILL" else "terminated"
    return _each(client, options, operands, kill, word)


def bstop(client: Client, words: list[str]) -> int:
    """Suspend jobs, running or waiting."""
    options, operands = _parse("bstop", words, "a d", "app C g J m q sla u")

    def stop(job: Job) -> str:
        if job.state is State.FINISHED:
            return FINISHED
        if job.state in ON_HOSTS:
            client.ask("suspend", keys=[job.key])
        else:
            client.ask("holds", keys=[job.key], add=["u"])
        return ""

    return _each(client, options, operands, stop, "stopped")


def bresume(client: Client, words: list[str]) -> int:
    """Resume suspended jobs."""
    options, operands = _parse("bresume", words, "d", "app C g J m q sla u")

    def resume(job: Job) -> str:
        if job.state is State.FINISHED:
            return FINISHED
        client.ask("holds", keys=[job.key], take=["u"])
        client.ask("resume", keys=[job.key])
        return ""

    return _each(client, options, operands, resume, "resumed")


def brequeue(client: Client, words: list[str]) -> int:
    """Kill jobs and put them back in the queue; with `-e` and `-d` those that have ended."""
    options, operands = _parse("brequeue", words, "a d e H p r", "J u")
    for option in options.keys() & {"a", "p"}:
        raise not_done("brequeue", f"-{option}")
    hold = "u" if "H" in options else ""

    def requeue(job: Job) -> str:
        if job.state is State.FINISHED:
            if ("d" if job.exit == 0 else "e") not in options:
                return FINISHED
            client.ask("revive", keys=[job.key], hold=hold)
            return ""
        if job.state not in ON_HOSTS:
            return NOT_STARTED
        client.ask("requeue", keys=[job.key], hold=hold)
        return ""

    return _each(client, options, operands, requeue, "requeued")


def _parse(
    program: str, words: list[str], flags: str, valued: str
) -> tuple[dict[str, str], list[str]]:
    usage = f'Usage: {program} [options] [job_ID | "job_ID[index]" ... | 0]\n'
    found, operands = part(program, words, names(f"h V {flags}"), names(valued), usage)
    options = dict(found)
    for option in options.keys() & {"app", "b", "C", "g", "h", "l", "sla", "stat", "V"}:
        raise not_done(program, f"-{option}")
    for word in operands:
        if not IDENTIFIER.fullmatch(word):
            raise Refused(f"{word}: Illegal job ID.\n", FAILED)
    if not operands and not options.keys() & {"J", "m", "q", "u"}:
        raise Refused(f"Job ID, or -J, -m, -q or -u must be given.\n{usage}", FAILED)
    return options, operands


def _signal(text: str) -> str:
    if text.isdigit():
        named = next((each.name for each in signal.Signals if each.value == int(text)), "")
    else:
        named = text if text.startswith("SIG") else f"SIG{text}"
    if named not in signal.Signals.__members__:
        raise Refused(f"{text}: Illegal signal value\n", FAILED)
    return named


def _each(client: Client, options: dict[str, str], operands: list[str], act: Act, word: str) -> int:
    """Act on each job that is named; say what is done and what is not."""
    jobs = client.jobs()
    chosen = [
        job
        for job in jobs
        if ("J" not in options or options["J"] in (job.name, name(job)))
        and ("q" not in options or job.queue == options["q"])
        and ("m" not in options or options["m"] in job.places)
        and options.get("u", "all") in ("all", job.owner)
    ]
    unfinished = [job for job in chosen if job.state is not State.FINISHED]
    failed = False
    if not operands:  # the one that was submitted last
        return _done(unfinished[-1:], act, word) if unfinished else _nothing()
    for operand in operands:
        found = unfinished if operand == "0" else find(operand, chosen)
        if not found:
            failed = True
            what = f"Job <{operand}>: " if operand != "0" else ""
            sys.stderr.write(f"{what}{NO_MATCH}\n")
        if operand.isdigit() and any(job.index is not None for job in found) and operand != "0":
            found = [job for job in found if job.state is not State.FINISHED] or found
        failed = bool(_done(found, act, word)) or failed
    return FAILED if failed else 0


def _nothing() -> int:
    sys.stderr.write(f"{NO_MATCH}\n")
    return FAILED


def _done(jobs: list[Job], act: Act, word: str) -> int:
    failed = 0
    for job in jobs:
        why = act(job)
        if why:
            failed = FAILED
            sys.stderr.write(f"Job <{job.key}>: {why}\n")
        else:
            print(f"Job <{job.key}> is being {word}")
    return failed
