"""blaunch: tasks on the hosts of a job, with their input and output here."""

import os
import signal
import socket
from pathlib import Path

from ..batch.command import Client, Refused
from ..batch.task import NoTask, Task
from ..batch.wire import Address
from .words import FAILED

USAGE = """\
Usage: blaunch [-n] [-u host_file | -z host_name ... | host_name]
               [-use-login-shell | -no-shell] command [argument ... ]
       blaunch [-h | -V]
"""
PASSED_OVER = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")


def main(client: Client, words: list[str]) -> int:
    """Run a command on one host, on some, or once for each slot; exit as it did."""
    key = os.environ.get("LSB_BATCH_JID")
    if key is None or "LSB_MCPU_HOSTS" not in os.environ:
        raise Refused("blaunch: can be used only within an LSF job.\n", FAILED)
    given = os.environ["LSB_MCPU_HOSTS"].split()
    slots = {host: int(count) for host, count in zip(given[::2], given[1::2], strict=True)}
    hosts, command, shell = _words(words, slots)
    for host in hosts:
        if host not in slots:
            text = f"blaunch: Host <{host}> is not one of the hosts of job <{key}>.\n"
            raise Refused(text, FAILED)
    for name in PASSED_OVER:  # each host's daemon sends them to the tasks there
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    argv = [os.environ.get("SHELL", "/bin/sh"), "-c", " ".join(command)] if shell else command
    nodes = {node["name"]: node["address"] for node in client.ask("list")["nodes"]}
    tasks = []
    for host in hosts:
        address: Address = (nodes[host][0], nodes[host][1])
        try:
            task = Task(address, key, argv, dict(os.environ), {}, os.getcwd(), tied=True)
        except (NoTask, OSError) as error:
            raise Refused(f"blaunch: {host}: {command[0]}: {error}\n", FAILED) from None
        tasks.append(task)
    codes = [task.wait() for task in tasks]
    return next((128 - code if code < 0 else code for code in codes if code), 0)


def _words(words: list[str], slots: dict[str, int]) -> tuple[list[str], list[str], bool]:
    """Return hosts, command, and whether a shell reads it."""
    rest, hosts, shell = list(words), None, True
    usage = Refused(USAGE, FAILED)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-u", "-z"):
            if not rest or hosts is not None:
                raise usage
            value = rest.pop(0)
            hosts = value.split() if word == "-z" else _read(value)
        elif word in ("-no-shell", "-use-login-shell"):
            shell = word == "-use-login-shell"
        elif word != "-n":  # all other options of rsh and ssh are silently ignored
            continue
    if hosts is None and len(rest) > 1 and (rest[0] in slots or _is_a_host(rest[0])):
        hosts = [rest.pop(0)]
        while rest and rest[0] in ("-no-shell", "-use-login-shell", "-n"):
            shell = rest.pop(0) == "-use-login-shell"
    if not rest:
        raise usage
    every = [host for host, count in slots.items() for _ in range(count)]
    return every if hosts is None else hosts, rest, shell


def _is_a_host(word: str) -> bool:
    """Say whether a word is the name of a host rather than a command for all of them."""
    try:
        return bool(socket.gethostbyname(word))
    except OSError:
        return False


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError as error:
        raise Refused(f"blaunch: {path}: {error.strerror}\n", FAILED) from None
