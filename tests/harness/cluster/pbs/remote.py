"""pbs_tmrsh and pbsdsh: tasks on the other hosts of a job."""

import os
import pwd
import socket
import sys
from pathlib import Path

from ..batch.command import Client, Refused
from ..batch.options import BadOption, getopt
from ..batch.task import NoTask, Task
from ..batch.wire import Address

ERROR = 255  # what pbs_tmrsh exits with that did not start its command
TMRSH = """\
usage: {id} [-n][-l username] host [-n][-l username] command
       {id} --version
"""
DSH = """\
Usage: pbsdsh [-c copies][-s][-v][-o] -- program [args...]
       pbsdsh [-n nodenumber][-s][-v][-o] -- program [args...]
       pbsdsh --version
Where -c copies =  run  copy of "args" on the first "copies" nodes,
      -n nodenumber = run a copy of "args" on the "nodenumber"-th node,
      -s = forces synchronous execution,
      -v = forces verbose output,
      -o = no obits are waited for.
"""


def pbs_tmrsh(client: Client, words: list[str]) -> int:
    """Run a command as a task of the job on one of its hosts."""
    name = sys.argv[0]
    host, command = _tmrsh_words(name, words)
    if "PBS_ENVIRONMENT" not in os.environ:
        raise Refused(f"{name}: not executing under PBS\n", ERROR)
    if "PBS_JOBID" not in os.environ:
        raise Refused(f"{name}: PBS jobid not in environment\n", ERROR)
    lines = _node_file(name)
    here = [number for number, line in enumerate(lines) if _is(line, host)]
    if not here:
        job = os.environ["PBS_JOBID"]
        raise Refused(f'{name}: host "{host}" is not a node in job <{job}>\n', ERROR)
    try:
        task = _spawn(client, lines[here[0]], here[0], command)
    except (NoTask, OSError):
        raise Refused(f'{name}: tm_poll(spawn): host "{host}" err TM_ESYSTEM\n', ERROR) from None
    return _code(task.wait())


def pbsdsh(client: Client, words: list[str]) -> int:
    """Run a program once for each line of the node file, or for some of them."""
    try:
        parsed = getopt("pbsdsh", words, "c:n:osv")
    except BadOption as bad:
        raise Refused(f"{bad}\n{DSH}", 1) from None
    options = dict(parsed.options)
    numeric = all(options.get(option, "0").isdigit() for option in "cn")
    if not parsed.operands or not numeric or {"c", "n"} <= options.keys():
        raise Refused(DSH, 1)
    if "PBS_ENVIRONMENT" not in os.environ:
        raise Refused("pbsdsh: not executing under PBS\n", 1)
    lines = _node_file("pbsdsh")
    numbers = _numbers(options, len(lines))
    tasks: list[Task] = []
    codes = []
    for number in numbers:
        try:
            task = _spawn(client, lines[number], number, parsed.operands)
        except (NoTask, OSError):
            raise Refused(f"pbsdsh: spawn failed on node {number} err TM_ESYSTEM\n", 1) from None
        if "s" in options and "o" not in options:
            codes.append(_code(task.wait()))
        else:
            tasks.append(task)
    codes += [_code(task.wait()) for task in tasks if "o" not in options]
    return max(codes, default=0)


def _numbers(options: dict[str, str], lines: int) -> list[int]:
    if "n" in options:
        if int(options["n"]) >= lines:
            raise Refused(f"pbsdsh: only {lines} nodes available\n", 1)
        return [int(options["n"])]
    return [number % lines for number in range(int(options.get("c", lines)))]


def _tmrsh_words(name: str, words: list[str]) -> tuple[str, list[str]]:
    usage = Refused(TMRSH.format(id=name), ERROR)
    host, rest = "", list(words)
    while rest:
        word = rest[0]
        if not word.startswith("-"):
            if host:
                break
            host = rest.pop(0)
            continue
        rest.pop(0)
        if word == "-n":
            continue
        if not word.startswith("-l"):
            raise usage
        user = word[2:] or (rest.pop(0) if rest else "")
        if user != pwd.getpwuid(os.getuid()).pw_name:
            text = f'{name}: bad user "{user}"\n'
            raise Refused(text + TMRSH.format(id=name), ERROR)
    if not host or not rest:
        raise usage
    return host, rest


def _node_file(name: str) -> list[str]:
    path = os.environ.get("PBS_NODEFILE")
    if path is None:
        raise Refused(f"{name}: cannot find PBS_NODEFILE\n", ERROR)
    try:
        return Path(path).read_text().split()
    except OSError as error:  # only the first host has it
        raise Refused(f"{path}: {error.strerror}\n", ERROR) from None


def _is(line: str, host: str) -> bool:
    if line == host:
        return True
    try:
        return socket.gethostbyname(line) == host
    except OSError:
        return False


def _spawn(client: Client, host: str, number: int, command: list[str]) -> Task:
    key = os.environ["PBS_JOBID"].partition(".")[0]
    nodes = {node["name"]: node["address"] for node in client.ask("list")["nodes"]}
    address: Address = (nodes[host][0], nodes[host][1])
    extra = {"PBS_NODENUM": str(number), "PBS_TASKNUM": str(os.getpid())}
    return Task(address, key, command, None, extra)


def _code(status: int) -> int:
    return 128 - status if status < 0 else status
