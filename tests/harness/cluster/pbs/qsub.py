"""qsub: options, directives, script; then the job is sent to the server."""

import os
import pwd
import socket
import sys
import time
from pathlib import Path
from typing import Any

from ..batch.command import Client, Refused
from ..batch.job import State
from .attributes import USAGE, Attributes, BadOption, Illegal, array, understand_date, variables
from .depend import dependencies
from .directives import directives
from .jobs import array_identifier, exit_status, find
from .resources import understand
from .words import UNKQUE, VERSION, Rejected

PASSED = ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ")  # as PBS_O_*


def main(client: Client, words: list[str]) -> int:
    """Submit a job and print its identifier."""
    if words == ["--version"]:
        print(f"pbs_version = {VERSION}")
        return 0
    attributes = Attributes()
    operands, dashes = _take_line(attributes, words)
    script, name = _script(operands, dashes)
    prefix = attributes.values.get("C", os.environ.get("PBS_DPREFIX", "#PBS"))
    for line in directives(script, prefix):
        _take_directive(attributes, line)
    try:
        jobs = _jobs(client, attributes, script, name, operands if dashes else None)
        number = client.ask("submit", jobs=jobs)["number"]
    except Rejected as rejected:
        raise rejected.by("qsub") from None
    except OSError as error:
        server = client.site["server"]
        text = f"{error.strerror}\nqsub: cannot connect to server {server} (errno={error.errno})\n"
        raise Refused(text, 1) from None
    server = client.site["server"]
    if "z" not in attributes.values:
        is_array = "J" in attributes.values
        print(array_identifier(number, server) if is_array else f"{number}.{server}", flush=True)
    if attributes.extra.get("block", "").lower() == "true":
        return _wait(client, number)
    return 0


def _take_line(attributes: Attributes, words: list[str]) -> tuple[list[str], bool]:
    try:
        operands, dashes = attributes.take(words, from_line=True)
    except BadOption as bad:
        raise Refused(f"{bad}\n{USAGE}", 2) from None
    except Illegal as illegal:
        raise Refused(illegal.text + USAGE, 2) from None
    except Rejected as rejected:
        raise rejected.by("qsub") from None
    if (dashes and not operands) or (not dashes and len(operands) > 1):
        raise Refused(USAGE, 2)
    return operands, dashes


def _take_directive(attributes: Attributes, words: list[str]) -> None:
    said = ""
    try:
        operands, _ = attributes.take(words, from_line=False)
        if not operands:
            return
    except BadOption as bad:
        said = f"{bad}\n"
    except Illegal as illegal:
        said = illegal.text
    except Rejected as rejected:
        raise rejected.by("qsub") from None
    raise Refused(f"{said}qsub: directive error: {' '.join(words)} \n", 1)


def _script(operands: list[str], dashes: bool) -> tuple[str, str]:
    """Return the script's text and the name that a job gets from it."""
    if dashes:
        return "", "STDIN"
    if not operands or operands == ["-"]:
        return sys.stdin.read(), "STDIN"
    path = Path(operands[0])
    if not path.exists():
        raise Refused("qsub: script file:: No such file or directory\n", 1)
    if not path.is_file():
        raise Refused("qsub: script not a file\n", 1)
    return path.read_text(), path.name[:236]


def _jobs(
    client: Client, attributes: Attributes, script: str, name: str, command: list[str] | None
) -> list[dict[str, Any]]:
    values = attributes.values
    wanted = understand(attributes.resources)
    queue, _, _server = values.get("q", "").partition("@")
    if queue and queue not in client.site["queues"]:
        raise Rejected(UNKQUE)
    user = pwd.getpwuid(os.getuid())
    record: dict[str, Any] = {
        "index": None,
        "name": values.get("N", name),
        "owner": user.pw_name,
        "queue": queue or client.site["queues"][0],
        "script": script,
        "cwd": user.pw_dir,
        "env": _environment(values),
        "chunks": [vars(chunk) for chunk in wanted.chunks],
        "from_host": socket.gethostname(),
        "arrange": wanted.arrange,
        "exclusive": wanted.exclusive,
        "limit": wanted.walltime,
        "rerunnable": values.get("r", "y") == "y",
        "holds": ["u"] if "h" in values else [],
        "depend": dependencies(attributes.extra.get("depend", ""), client.jobs()),
        "after": understand_date(values["a"], time.time()) if "a" in values else 0.0,
        "vendor": _own(attributes, wanted.listed, command, user.pw_shell),
    }
    if "J" not in values:
        return [record]
    indices, at_once = array(values["J"])
    extra = attributes.extra.get("max_run_subjobs")
    at_once = int(extra) if extra else at_once
    record["vendor"]["subjobs"] = len(indices)
    return [{**record, "index": index, "at_once": at_once} for index in indices]


def _own(
    attributes: Attributes, listed: dict[str, str], command: list[str] | None, shell: str
) -> dict[str, Any]:
    values = attributes.values
    paths = {stream: values[stream] for stream in "oe" if stream in values}
    return {
        "resources": listed,
        "paths": paths,
        "workdir": os.getcwd(),
        "join": values.get("j", "n"),
        "keep": values.get("k", "n"),
        "remove": values.get("R", ""),
        "mail": values.get("m", "a"),
        "priority": values.get("p", "0"),
        "project": values.get("P", "_pbs_project_default"),
        "account": values.get("A", ""),
        "shell": values.get("S", "").partition("@")[0],
        "login_shell": shell or "/bin/sh",
        "command": command,
        "array": values.get("J", ""),
        "tolerates": attributes.extra.get("tolerate_node_failures", "none"),
        "umask": attributes.extra.get("umask", ""),
        "arguments": sys.argv[1:],
    }


def _environment(values: dict[str, str]) -> dict[str, str]:
    here = os.environ
    given = {f"PBS_O_{name}": here[name] for name in PASSED if name in here}
    if "V" in values:
        given |= {name: text for name, text in here.items() if not name.startswith("PBS_O_")}
    if "v" in values:
        given |= variables(values["v"], here)
    given |= {
        "PBS_O_WORKDIR": os.getcwd(),
        "PBS_O_SYSTEM": os.uname().sysname,
        "PBS_O_HOST": socket.gethostname(),
        "PBS_O_QUEUE": values.get("q", "workq"),
    }
    return given


def _wait(client: Client, number: int) -> int:
    """Stay until the job has ended; exit as it did."""
    while True:
        jobs = [job for job in client.jobs() if job.number == number]
        if all(job.state is State.FINISHED for job in jobs):
            return max((exit_status(job) or 0) % 256 for job in find(f"{number}[]", jobs) or jobs)
        time.sleep(0.05)
