"""Ranks without a launcher: forks of one process that has imported torch, as a zygote's are.

Run as a program it is that process: a request a line on stdin, an answer a line on stdout.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LIMIT = 180.0  # seconds, for loaded machines; ranks that take longer are stuck


class Zygote:
    """The process that forks ranks for tests, asked by them."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(
        self, script: str, seats: Sequence[Mapping[str, str]], install: bool = True
    ) -> list[tuple[int, str]]:
        """Run the script in a fork for each seat; return exit codes and what each printed."""
        request = {"script": script, "seats": [dict(seat) for seat in seats], "install": install}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return [(code, text) for code, text in json.loads(self._process.stdout.readline())]


@contextlib.contextmanager
def started_zygote(program: str | Path = __file__) -> Iterator[Zygote]:
    """Start the process, this or one that has more imported, and end it afterwards."""
    words = [sys.executable, str(program)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        try:
            yield Zygote(one)
        finally:
            one.kill()


@contextlib.contextmanager
def warm_zygote(program: Path) -> Iterator[Zygote]:
    """Start one and wait for its imports, which take longer than a test may."""
    with started_zygote(program) as zygote:
        zygote.run("", [{}])
        yield zygote


def seats(world: int, port: int, store: str = "", **more: str) -> list[dict[str, str]]:
    """Return what a launcher tells each rank of a world on this host."""
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if store:
        common["LOOM_STORE"] = store
    return [{**common, "RANK": str(rank), **more} for rank in range(world)]


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """Hold a port, so that no rank can serve a store there."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def free_port() -> int:
    with taken_port() as port:
        return port


def _serve_requests() -> None:
    import torch
    import torch.distributed  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            outs = [Path(folder, str(at)) for at in range(len(request["seats"]))]
            pids = [
                _fork(seat, out, request["script"], request["install"])
                for seat, out in zip(request["seats"], outs, strict=True)
            ]
            codes = _reap(pids)
            answer = [(codes[pid], out.read_text()) for pid, out in zip(pids, outs, strict=True)]
        print(json.dumps(answer), flush=True)


def _fork(seat: Mapping[str, str], out: Path, script: str, install: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    import torch

    code = 1
    try:
        with open(out, "w") as target, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(target.fileno(), 1)
            os.dup2(target.fileno(), 2)
        os.environ.update(seat)
        torch.set_num_threads(1)
        if install:
            from torchloom.worker.process import rendezvous

            rendezvous.install()
        exec(compile(script, "<rank>", "exec"), {"__name__": "__main__"})  # noqa: S102
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # as an interpreter does
    finally:
        sys.stdout.flush()
        os._exit(code)


def _reap(pids: Sequence[int]) -> dict[int, int]:
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            if time.monotonic() > deadline:
                os.kill(pid, 9)
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return codes


if __name__ == "__main__":
    _serve_requests()
