"""The processes that simulate the scale bench's agents, and how they are told what to do."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.figure import CannotMeasure
from benchmarks.planes import Plane

PROCESSES = 4  # that simulate
TOGETHER = 500  # agents that come at once; the next ones when these have been greeted
LIMIT = 120.0


class Fleet:
    """The processes that simulate agents."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self.living: set[int] = set()
        self._processes = processes
        self._there = 0
        self.missing: list[str] = []  # some of those who wait for a greeting, and why
        self._complaints: set[str] = set()
        for process in processes:
            self._hear(process)

    def grow_to(self, count: int) -> float:
        """Have more agents come; return how long it took until all were greeted."""
        began = time.monotonic()
        while self._there < count:
            some = range(self._there, min(count, self._there + TOGETHER))
            self.tell("come", list(some))
            self.living |= set(some)
            self._there = some.stop
            self.wait_for_greetings(0.0)
        return self.last_greeting() - began

    def wait_for_greetings(self, since: float) -> None:
        """Come back when all who live are greeted, the last of them after a moment."""
        try:
            until(lambda: self.greeted_since(since))
        except CannotMeasure as error:
            raise CannotMeasure(f"{error}; nobody greets {', '.join(self.missing)}") from None

    def end(self, *numbers: int) -> dict[str, tuple[float, float]]:
        """Have agents die; return when each did, and when it beat last."""
        self.living -= set(numbers)
        return {name: (at, beat) for name, (at, beat) in self.tell("die", list(numbers)).items()}

    def greeted_since(self, moment: float) -> bool:
        """Tell whether all who live are greeted, the last of them after a moment."""
        said = self._all({"do": "report"})
        for words in {words for one in said for words in one["complaints"]} - self._complaints:
            self._complaints.add(words)
            note(f"the server complains: {words}")
        self.missing = [words for one in said for words in one["missing"]]
        last = max(float(one["last"]) for one in said)
        return last > moment and sum(int(one["greeted"]) for one in said) == len(self.living)

    def last_greeting(self) -> float:
        return max(float(one["last"]) for one in self._all({"do": "report"}))

    def tell(self, do: str, numbers: list[int]) -> Any:
        """Give an order to those who have these agents; return what all of them say."""
        said = self._all({"do": do, "agents": numbers})
        return {name: value for one in said if isinstance(one, dict) for name, value in one.items()}

    def _all(self, order: dict[str, Any]) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        return [self._hear(process) for process in self._processes]

    def pids(self) -> list[int]:
        """Return the processes."""
        return [process.pid for process in self._processes]

    @staticmethod
    def _hear(process: "subprocess.Popen[str]") -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CannotMeasure("a process that simulates agents has ended; see above")
        return json.loads(line)


@contextlib.contextmanager
def fleet(running: Plane, most: int) -> Iterator[Fleet]:
    """Start the simulation of so many agents at most; nobody has come yet."""
    host, port = running.server
    each = most // PROCESSES
    words = [sys.executable, "-m", "benchmarks.scale_agents", host, str(port), str(running.keys)]
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):
            command = [*words, str(number * each), str(each)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.kill)
            processes.append(process)
        yield Fleet(processes)


def until(condition: Callable[[], bool]) -> None:
    """Come back when the condition holds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise CannotMeasure(f"nothing more happened for {LIMIT:.0f} s")
        time.sleep(0.1)


def note(words: str) -> None:
    """Tell whoever waits how far it is."""
    print(f"scale: {words}", file=sys.stderr, flush=True)
