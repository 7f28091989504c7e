"""What a bench hands to the runner: things that can be sampled, and which stands beside which."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class CannotMeasure(Exception):
    """A sample could not be taken; the message says why."""


@dataclass(frozen=True)
class Subject:
    """One thing to measure: its command as a person would type it, and how to take samples."""

    command: str
    sample: Callable[[], float]
    name: str = "loom"
    version: str = ""
    most: int | None = None  # samples, spread over the rounds; what takes long is asked less often
    take_all: Callable[[], Sequence[float]] | None = None  # where they all come from one run


def series(command: str, take_all: Callable[[], Sequence[float]], name: str = "loom") -> Subject:
    """Return what takes all of its samples in one run of its own, after the rounds."""
    return Subject(command, _no_turn, name, take_all=take_all)


def once(take: Callable[[], T]) -> Callable[[], T]:
    """Return what takes something once and hands it out again; a failure is handed out, too."""
    kept: list[T | CannotMeasure] = []

    def taken() -> T:
        if not kept:
            try:
                kept.append(take())
            except CannotMeasure as error:
                kept.append(error)
        if isinstance(kept[0], CannotMeasure):
            raise kept[0]
        return kept[0]

    return taken


def asked(process: "subprocess.Popen[str]", line: str, excuse: str) -> float:
    """Have a process do what a line says, and return the number it answers with."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise CannotMeasure(excuse)
    return float(answer)


def _no_turn() -> float:
    raise CannotMeasure("this is not sampled by turns")


@dataclass(frozen=True)
class Figure:
    """One row to be: ours, and the peer it is measured beside."""

    name: str
    unit: str
    ours: Subject
    peer: Subject | None = None


@dataclass(frozen=True)
class Lab:
    """Where a bench works: our environment, the peers', a folder to fill, how many samples.

    What a bench starts for longer than one sample ends through `at_end`.
    """

    ours: Path
    peers: Path
    scratch: Path
    n: int
    env: Mapping[str, str] = field(default_factory=dict)
    at_end: ExitStack = field(default_factory=ExitStack)

    def timed(self, program: Path, *words: str) -> Callable[[], float]:
        """Return a sampler: run the command once, give its wall time in milliseconds."""
        command = [str(program), *words]

        def sample() -> float:
            if not program.exists():
                raise CannotMeasure(f"{program} is not there; `make bench` installs the peers")
            began = time.perf_counter()
            code = subprocess.run(
                command,
                cwd=self.scratch,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            ).returncode
            took = time.perf_counter() - began
            if code:
                raise CannotMeasure(f"`{' '.join(command)}` ended with code {code}")
            return took * 1000

        return sample
