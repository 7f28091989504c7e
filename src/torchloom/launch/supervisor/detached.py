"""Start a run's first process apart from the command that wants it: by a fork, or a new Python.

A fork has our modules already, which saves more time than anything else could. It is safe where
one thread is all there is, as in the command line; a program with more gets a new Python.
"""

import gc
import os
import socket
import sys

TYPE_CHECKING = False  # the rest is imported where it is used: the fork ahead is the first thing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

_MODULE = "torchloom.launch.supervisor.process"
_MOST_ENDS = 8
_ahead: list["PreparedProcess"] = []


class PreparedProcess:
    """A fork that imports what a run's first process needs while the command imports its own.

    It has the zygote look at its files, which takes as long as a dozen imports; then it waits for
    the words and goes when the command does without them.
    """

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._child = os.fork()
        if self._child == 0:
            self._ours.close()
            _wait_and_become(theirs)
        theirs.close()

    def go(
        self,
        words: "Sequence[str]",
        env: "Mapping[str, str]",
        ends: "Sequence[int]",
        stdin: int | None,
        log: int,
    ) -> None:
        """Have it be the run's first process; come back when that has detached itself."""
        import json

        fds = [log, *([] if stdin is None else [stdin]), *ends]
        text = json.dumps([list(words), dict(env), list(ends), stdin]).encode()
        socket.send_fds(self._ours, [len(text).to_bytes(8)], fds)
        self._ours.sendall(text)
        self._ours.close()
        os.waitpid(self._child, 0)


def start_ahead() -> None:
    """Begin with what a run will need; harmless when there is none after all."""
    if _may_fork() and not _ahead:
        _ahead.append(PreparedProcess())


def _wait_and_become(channel: socket.socket) -> "NoReturn":
    try:
        os.setsid()
        import json

        from torchloom.launch.keeper import zygote_client
        from torchloom.launch.keeper.spawn import reset_signals

        reset_signals()
        zygote_client.alert()
        import torchloom.launch.agent.service
        import torchloom.launch.supervisor.process
        import torchloom.launch.supervisor.service  # noqa: F401

        gc.freeze()  # what was imported stays, and its pages shared by the run's processes
        gc.enable()
        head, fds, _, _ = socket.recv_fds(channel, 8, _MOST_ENDS)
        text = b""
        while len(text) < int.from_bytes(head) and (more := channel.recv(1 << 16)):
            text += more
        words, env, ends, stdin = json.loads(text)  # nothing came: there is no run
        log, fds = fds[0], fds[1:]
        if stdin is not None:
            stdin, fds = fds[0], fds[1:]
        numbers = dict(zip(map(str, ends), map(str, fds), strict=True))
        words[1], words[4] = numbers[words[1]], numbers.get(words[4], words[4])
        _become(words, env, fds, stdin, log)
    finally:
        os._exit(0)


def start_process(
    words: "Sequence[str]",
    env: "Mapping[str, str]",
    ends: "Sequence[int]",
    stdin: int | None,
    log: int,
) -> None:
    """Run `supervisor.process` with these words, variables and descriptors; it detaches."""
    if _ahead:
        _ahead.pop().go(words, env, ends, stdin, log)
        return
    if _may_fork():
        if (child := os.fork()) == 0:
            _become(words, env, ends, stdin, log)
        os.waitpid(child, 0)
        return
    import subprocess

    subprocess.run(
        [sys.executable, "-P", "-m", _MODULE, *words],
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=log,
        stderr=log,
        env=dict(env),
        pass_fds=list(ends),
        start_new_session=True,
        check=False,
    )


def _may_fork() -> bool:
    if sys.platform != "linux":
        return False
    return len(os.listdir("/proc/self/task")) == 1


def _become(
    words: "Sequence[str]",
    env: "Mapping[str, str]",
    ends: "Sequence[int]",
    stdin: int | None,
    log: int,
) -> "NoReturn":
    """Forget the command that this was, and be the run's first process."""
    import signal
    import traceback

    from torchloom.launch.keeper import spawn
    from torchloom.launch.keeper.spawn import reset_signals
    from torchloom.settings import replace_environment

    code = 1
    try:
        if os.getsid(0) != os.getpid():
            os.setsid()
        reset_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((null if stdin is None else stdin, log, log)):
            os.dup2(source, target)
        _close_all_but(ends)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        replace_environment(env)
        spawn.show(("loom-launch", words[0]), env)
        from torchloom.launch.supervisor.process import main

        main(list(words))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _close_all_but(ends: "Sequence[int]") -> None:
    below = 3
    for end in sorted(ends):
        os.closerange(below, end)
        below = end + 1
    os.closerange(below, 1 << 20)
