"""bsub: options, script or command; then the job is sent to mbatchd."""

import os
import pwd
import re
import signal
import socket
import sys
import time
from typing import Any

from ..batch.command import Client
from ..batch.job import State
from .depend import dependencies
from .jobs import exit_code, indices
from .options import names, part
from .resreq import chunks, gpus, megabytes, requirement, slots
from .script import command_line, embedded, is_empty
from .words import (
    BAD_ACTION,
    BAD_HOST,
    BAD_TIME,
    INDEX_TOO_LARGE,
    NO_QUEUE,
    bad_argument,
    not_done,
    not_submitted,
)

USAGE = "Usage: bsub [options] command [argument ...]\n       bsub [-h | -V]\n"
FLAGS = names("B H K N r rn x ul h V I Ip Is IS ISp ISs IX XF Zs ar ti tty datachk csm")
VALUED = names(
    "a app alloc_flags b C c clusters cn_cu cn_mem core_isolation cwd D data datagrp E Ep e env eo "
    "eptl ext extsched F f freq G g gpu hostfile i is J Jd jobaff jsdl jsm json k L Lp ln_mem "
    "ln_slots M m mig n network nnodes notify o oo outdir P p pack ptl Q q R rcacct rnc S s sla "
    "smt sp stage step_cgroup T t tag U u v W We w wa wt yaml"
)
DONE = names("B H K N r rn x cwd e env eo gpu i J Jd L M m n o oo P Q q R sp u W We w wa wt b G")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ARRAY_SIZE = 1000  # MAX_JOB_ARRAY_SIZE
LONGEST_NAME = 4094  # letters


def main(client: Client, words: list[str]) -> int:
    """Submit a job and say its number."""
    given, command = part("bsub", words, FLAGS, VALUED, USAGE)
    text = command_line(command) if command else sys.stdin.read()
    options = _merge(given, [] if command else embedded(text))
    if is_empty(text):
        redirected = not sys.stdin.isatty() and not command
        raise not_submitted(f"No command is specified{' in the script file' * redirected}")
    jobs = _jobs(client, options, text)
    try:
        number = client.ask("submit", jobs=jobs)["number"]
    except OSError:
        why = "Failed in an LSF library call: LIM is down; try again later"
        raise not_submitted(why) from None
    queue = jobs[0]["queue"]
    default = "" if "q" in options else "default "
    print(f"Job <{number}> is submitted to {default}queue <{queue}>.", flush=True)
    return _wait(client, number) if "K" in options else 0


def _merge(given: list[tuple[str, str]], inside: list[str]) -> dict[str, list[str]]:
    """Return the options by name; what the command line has is not taken from the script."""
    options: dict[str, list[str]] = {}
    for name, value in given:
        options.setdefault(name, []).append(value)
    if inside:
        found, _ = part("bsub", inside, FLAGS, VALUED, USAGE)
        ours = set(options)
        for name, value in found:
            if name not in ours:
                options.setdefault(name, []).append(value)
    for name in options:
        if name not in DONE:
            raise not_done("bsub", f"-{name}")
    return {name: values if name == "R" else values[-1:] for name, values in options.items()}


def _jobs(client: Client, options: dict[str, list[str]], text: str) -> list[dict[str, Any]]:
    one = {name: values[0] for name, values in options.items()}
    minute = client.site["settings"]["minute"]
    user = pwd.getpwuid(os.getuid())
    wanted = requirement(options.get("R", []))
    least, _ = slots(one.get("n", "1"))
    name, elements, at_once = _name(one.get("J", ""), text)
    limit = _minutes(one["W"], f"{one['W']}: Bad RUNLIMIT specification") if "W" in one else None
    record: dict[str, Any] = {
        "index": None,
        "name": name,
        "owner": user.pw_name,
        "queue": _queue(client, one.get("q")),
        "script": text if text.endswith("\n") else f"{text}\n",
        "cwd": os.path.join(os.getcwd(), one.get("cwd", "")).rstrip("/") or "/",
        "env": _environment(one.get("env", "all")),
        "chunks": [vars(chunk) for chunk in chunks(least, wanted, _gpu(one), _hosts(client, one))],
        "from_host": socket.gethostname(),
        "arrange": "scatter" if wanted.ptile else "free",
        "exclusive": "x" in one,
        "limit": None if limit is None else limit * minute,
        "warning": _warning(one, minute),
        "rerunnable": "r" in one,
        "holds": ["u"] if "H" in one else [],
        "depend": dependencies(one["w"], client.jobs()) if "w" in one else [],
        "after": _begin(one["b"]) if "b" in one else 0.0,
        "requeue_on": _requeue(one["Q"]) if "Q" in one else [],
        "vendor": _own(one, text, user),
    }
    if not elements:
        return [record]
    return [{**record, "index": index, "at_once": at_once} for index in elements]


def _own(one: dict[str, str], text: str, user: pwd.struct_passwd) -> dict[str, Any]:
    if "M" in one and megabytes(one["M"]) is None:
        raise bad_argument("M")
    if "sp" in one and not re.fullmatch(r"[1-9]\d*", one["sp"]):
        raise not_submitted(f"{one['sp']}: Illegal job priority")
    return {
        "command": text.strip(),
        "out": one.get("oo", one.get("o", "")),
        "out_mode": "wb" if "oo" in one else "ab",
        "err": one.get("eo", one.get("e", "")),
        "err_mode": "wb" if "eo" in one else "ab",
        "in": one.get("i", ""),
        "shell": one.get("L", user.pw_shell or "/bin/sh"),
        "home": user.pw_dir,
        "project": one.get("P", "default"),
        "description": one.get("Jd", ""),
        "resreq": one.get("R", ""),
        "gpu": one.get("gpu", ""),
        "warning": [one.get("wa", ""), one.get("wt", "")],
        "limit": one.get("W", ""),
    }


def _name(asked: str, text: str) -> tuple[str, list[int], int | None]:
    """Return the name, the indices of an array and how many may run side by side."""
    if not asked:
        return text.strip().splitlines()[0][:LONGEST_NAME], [], None
    match = re.fullmatch(r"([^\[\]%]*)(?:\[([^\[\]]*)\](?:%(\d+))?)?", asked)
    if not match or len(asked) > LONGEST_NAME:
        raise bad_argument("J")
    if match[2] is None:
        return match[1], [], None
    elements = indices(match[2])
    if not elements or match[3] == "0":
        raise bad_argument("J")
    if max(elements) > ARRAY_SIZE:
        raise not_submitted(INDEX_TOO_LARGE)
    return match[1], elements, int(match[3]) if match[3] else None


def _queue(client: Client, asked: str | None) -> str:
    if asked is not None and asked not in client.site["queues"]:
        raise not_submitted(f"{asked}: {NO_QUEUE}")
    queue: str = asked or client.site["queues"][0]
    return queue


def _hosts(client: Client, one: dict[str, str]) -> str:
    for host in one.get("m", "").split():
        if host not in client.site["nodes"]:
            raise not_submitted(f"{host}: {BAD_HOST}")
    return one.get("m", "")


def _gpu(one: dict[str, str]) -> tuple[int, bool]:
    return gpus(one["gpu"]) if "gpu" in one else (0, False)


def _minutes(text: str, why: str) -> float:
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(?:/\S+)?", text)
    if not match:
        raise not_submitted(why)
    return float(int(match[1] or 0) * 60 + int(match[2]))


def _warning(one: dict[str, str], minute: float) -> tuple[str, float] | None:
    """Return the signal and how long before the limit it comes; neither counts alone."""
    name = one.get("wa", "")
    if name:
        name = name if name.startswith("SIG") else f"SIG{name}"
        if name not in signal.Signals.__members__:
            raise not_submitted(BAD_ACTION)
    before = _minutes(one["wt"], BAD_TIME) if "wt" in one else 0.0
    return (name, before * minute) if name and "wt" in one else None


def _begin(text: str) -> float:
    match = re.fullmatch(r"(\d{1,2}):(\d{1,2})", text)
    if not match or int(match[1]) > 23 or int(match[2]) > 59:
        raise not_submitted(f"{text}: {BAD_TIME}")
    here = time.localtime()
    at = time.mktime((*here[:3], int(match[1]), int(match[2]), 0, 0, 0, -1))
    return at if at > time.time() else at + 86400


def _requeue(text: str) -> list[int]:
    if not re.fullmatch(r"\d+( +\d+)*", text.strip()) or any(int(n) > 255 for n in text.split()):
        raise bad_argument("Q")
    return [int(number) for number in text.split()]


def _environment(asked: str) -> dict[str, str]:
    """Return what `-env` passes on: all, none, or some, with what is set or left out by name."""
    words = asked.split(",")
    here = dict(os.environ)
    chosen = here if "all" in words else {}
    for word in words:
        name, sign, text = word.strip().removeprefix("~").partition("=")
        if word in ("all", "none"):
            continue
        if not ENV_NAME.fullmatch(name) or (word.startswith("~") and sign):
            raise bad_argument("env")
        if word.startswith("~"):
            chosen.pop(name, None)
        elif sign:
            chosen[name] = text
        elif name in here:
            chosen[name] = here[name]
    return chosen


def _wait(client: Client, number: int) -> int:
    """Stay until the job has ended, and say how it goes; exit as it did."""
    sys.stderr.write("<<Waiting for dispatch ...>>\n")
    started = False
    while True:
        job = next(job for job in client.jobs() if job.number == number)
        if job.places and not started:
            started = True
            sys.stderr.write(f"<<Starting on {job.places[0]}>>\n")
        if job.state is State.FINISHED:
            sys.stderr.write("<<Job is finished>>\n")
            return exit_code(job) or 0
        time.sleep(0.05)
