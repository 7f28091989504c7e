"""The parent of children that die: imports once, forks one for each task it is given.

A task is a line of JSON, `{"scenario", "root", "told", "at", "fault"}`, or with `"endpoint"` for a
store in S3. The answers are the child's id, upon which it waits for a line, and its exit status.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchloom.checkpoint import LocalStorage, S3Storage, Storage
from torchloom.checkpoint.bucket import Bucket

from ..harness import s3_server as s3
from ..harness.http_proxy import MANY
from .faults import Faulty, counted, telling
from .scenarios import LEAST_PART, SCENARIOS

_TOP = Path(__file__).parents[2]


class Sweeper:
    """Such a process, to be told tasks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, task: dict[str, Any], at_start: Callable[[int], None] | None = None) -> int:
        """Have a child do a task; return its exit status, negative for a signal."""
        self._say(json.dumps(task))
        pid = json.loads(self._line())
        if at_start is not None:
            at_start(pid)
        self._say("go")
        return int(json.loads(self._line()))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def sweeping() -> Iterator[Sweeper]:
    """Run a sweeper."""
    words = [sys.executable, "-m", "tests.checkpoint.sweeper"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=_TOP) as process:
        try:
            yield Sweeper(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def main() -> None:
    """Do tasks until the input ends."""
    import blake3  # noqa: F401
    import obstore.store  # noqa: F401  # its threads begin with the first request, in the child

    while line := sys.stdin.readline():
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(theirs)
            os.read(ours, 1)
            os._exit(_child(json.loads(line)))
        print(pid, flush=True)
        sys.stdin.readline()
        os.close(ours)
        os.close(theirs)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _child(task: dict[str, Any]) -> int:
    with telling(task["told"]) as tell:
        try:
            SCENARIOS[task["scenario"]].act(_storage(task, tell), tell)
        except BaseException:
            tell(f"error {traceback.format_exc()!r}")
            return 1
        tell("end")
    return 0


def _storage(task: dict[str, Any], tell: Callable[[str], None]) -> Storage:
    root = task["root"]
    if "endpoint" not in task:
        beside = Path(task["told"]).parent
        return LocalStorage(root, Faulty(task["at"], task["fault"], tell, beside).disk)
    quick = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)}
    store = s3.bucket(
        task["endpoint"], retry={"max_retries": MANY - 1, "backoff": {**quick, "base": 2}}
    )
    told = counted(Bucket, lambda method, place: tell(f"call {place}"))
    return S3Storage(root, told(root, store, part=LEAST_PART))


if __name__ == "__main__":
    main()
