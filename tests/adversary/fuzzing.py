"""The driver of all fuzz tests: hostile inputs from a seed, and a look at the process from outside.

A test hands in how one input is sent and how a normal client is answered. The driver repeats the
first for some seconds and does the second in between. The processes under test are judged by /proc
and by their logs alone. A failure names the seed; `LOOM_FUZZ_SEED=SEED` sends the same inputs once
more. `LOOM_FUZZ_SECONDS` is how long the long forms take, each.
"""

import contextlib
import copy
import json
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ..harness.evidence import ROOT, commit, machine
from ..harness.home import until

SEED_VARIABLE, SECONDS_VARIABLE = "LOOM_FUZZ_SEED", "LOOM_FUZZ_SECONDS"
SHORT, LONG = 1.5, float(os.environ.get(SECONDS_VARIABLE) or 600)
FIRST_SEED = 20_000  # of the short forms, so that one run of them is like another
PATIENCE = 30.0  # seconds in which a normal client is answered, on loaded machines too
EVIDENCE = ROOT / "docs/evidence/adversary-fuzz.json"

_EVERY = 0.5  # seconds between two looks
_WARM_UP = 0.2  # the part of the time after which memory and descriptors must not grow any more
_MOST_GROWTH = 96 << 20  # bytes
_MOST_FDS = 24  # more than there were; connections may still be closing
_CLOSING = 90.0  # seconds for that: a server asks its weaver for up to 30 s, whoever has hung up
_WRONG = ("Traceback (most", "Exception in", "this is a bug", "Unhandled", "never retrieved")

HUGE = (2**31, 2**53, 2**63 - 1, 2**63, 2**64, -1, -(2**63) - 1, 10**400)
WORDS = (
    *("", " ", "\0", "\x1b[2J\x07", "../../etc/passwd", "..%2f..%2f", "%00", "%", "%zz", "//", "."),
    *("'; drop table jobs; --", '"', "{{7*7}}", "${HOME}", "$(id)", "a" * 300, "a" * 70_000),
    *("日本", "\u202e\u0000", "\ud800", "é" * 200, "NaN", "-0", "1e999", "true", "null", "[]", "@"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), [], {}, [[]], {"": None}),
    *HUGE[:-1],
    *WORDS,
)

short_and_long = pytest.mark.parametrize(
    "seconds",
    [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=[pytest.mark.soak])],
)


class Dice(random.Random):
    """Hostile bytes, texts and values; the same for the same seed."""

    def word(self) -> str:
        return self.choice(WORDS)

    def garbage(self, most: int = 4096) -> bytes:
        return self.randbytes(self.randrange(self.choice((4, 64, most))))

    def mutated(self, samples: Sequence[bytes]) -> bytes:
        """Return a sample with some places changed, cut, doubled or taken from another one."""
        data = bytearray(self.choice(samples))
        for _ in range(self.choice((1, 1, 2, 4, 16))):
            at = self.randrange(len(data) + 1)
            match self.randrange(8):
                case 0:
                    data[at : at + 1] = self.randbytes(1)
                case 1:
                    del data[at : at + self.randint(1, 16)]
                case 2:
                    data[at:at] = data[at : at + self.randint(1, 64)]
                case 3:
                    del data[at:]
                case 4:
                    other = self.choice(samples)
                    data[at:] = other[self.randrange(len(other) + 1) :]
                case 5:
                    data[at:at] = self.choice(
                        (b"\0", b"\r\n", b"\xff" * 8, b"[" * 3000, b"9" * 5000)
                    )
                case 6:
                    kind = self.choice((">I", ">Q", "<I", "<Q", ">H"))
                    size = struct.calcsize(kind)
                    data[at : at + size] = self.randbytes(size)
                case 7:
                    data[at:at] = self.word().encode(errors="surrogatepass")
        return bytes(data)

    def changed(self, value: Any) -> Any:
        """Return a value as of JSON with some of its parts replaced, removed, added or renamed."""
        found = copy.deepcopy(value)
        for _ in range(self.choice((1, 1, 2, 5))):
            found = self._change(found)
        return found

    def _change(self, value: Any) -> Any:
        if isinstance(value, dict) and value and self.random() < 0.85:
            name = self.choice(list(value))
            match self.randrange(6):
                case 0:
                    del value[name]
                case 1:
                    value[self.word()] = copy.deepcopy(self.choice(VALUES))
                case 2:
                    value[self.word()] = value.pop(name)
                case _:
                    value[name] = self._change(value[name])
            return value
        if isinstance(value, list) and value and self.random() < 0.85:
            at = self.randrange(len(value))
            value[at] = self._change(value[at])
            return value * (50 if len(value) < 20 and self.random() < 0.25 else 1)
        return copy.deepcopy(self.choice(VALUES))

    def json(self, value: Any) -> bytes:
        """Return a changed value as text, now and then with some of its bytes changed as well."""
        text = json.dumps(self.changed(value)).encode()
        return self.mutated([text]) if self.random() < 0.3 else text


@dataclass(slots=True)
class Watched:
    """A process under test, as the kernel shows it."""

    name: str
    pid: int
    started: str = ""
    first_rss: int = 0
    peak_rss: int = 0
    first_fds: int = 0

    def __post_init__(self) -> None:
        self.started = started(self.pid)
        assert self.started, f"{self.name} ({self.pid}) is not there"

    def look(self) -> None:
        """Fail unless this is the process that it was; note its memory."""
        assert started(self.pid) == self.started, f"{self.name} ({self.pid}) has ended"
        self.peak_rss = max(self.peak_rss, rss(self.pid))

    def settle(self) -> None:
        """Take the memory and the descriptors of now for what it may have."""
        self.first_rss, self.first_fds = rss(self.pid), fds(self.pid)

    def judge(self) -> None:
        grown = rss(self.pid) - self.first_rss
        assert grown < _MOST_GROWTH, f"{self.name} has grown by {grown >> 20} MiB"
        with contextlib.suppress(AssertionError):
            until(lambda: fds(self.pid) <= self.first_fds + _MOST_FDS, _CLOSING)
        more = fds(self.pid) - self.first_fds
        assert more <= _MOST_FDS, f"{self.name} has {more} more descriptors: {kinds(self.pid)}"


@dataclass(slots=True)
class Fuzz:
    """One run: what was tried, on whom."""

    target: str
    seconds: float
    processes: Sequence[Watched]
    logs: Sequence[Path] = ()
    seed: int = 0
    inputs: int = 0
    _read: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = FIRST_SEED if self.seconds <= SHORT else random.SystemRandom().randrange(2**32)
        self.seed = int(os.environ.get(SEED_VARIABLE) or chance)
        self._read = {log: log.stat().st_size for log in self.logs if log.exists()}

    def run(self, attempt: Callable[[Dice], None], answers: Callable[[], None]) -> None:
        """Send inputs until the time is over; in between all processes must be well."""
        answers()
        began = looked = time.monotonic()
        is_settled = False
        try:
            while (now := time.monotonic()) < began + self.seconds:
                attempt(Dice(f"{self.seed}/{self.inputs}"))
                self.inputs += 1
                if now - looked >= _EVERY:
                    self._look(answers)
                    looked = now
                if not is_settled and now - began >= self.seconds * _WARM_UP:
                    is_settled = not [one.settle() for one in self.processes]
            self._look(answers)
            for one in self.processes:
                one.judge()
        except BaseException as error:
            error.add_note(f"input {self.inputs} of {SEED_VARIABLE}={self.seed} ({self.target})")
            raise
        if self.seconds > SHORT:
            self._keep()

    def _look(self, answers: Callable[[], None]) -> None:
        for one in self.processes:
            one.look()
        began = time.monotonic()
        answers()
        assert time.monotonic() - began < PATIENCE, "a normal client waited too long"
        for log in self.logs:
            self._read_on(log)

    def _read_on(self, log: Path) -> None:
        with log.open("rb") as file:
            file.seek(self._read.get(log, 0))
            text = file.read().decode(errors="replace")
            self._read[log] = file.tell()
        places = [text.find(word) for word in _WRONG if word in text]
        assert not places, (
            f"{log.name}: ...{text[max(0, min(places) - 500) : min(places) + 12_000]}"
        )

    def _keep(self) -> None:
        """Add the figures of this run to the evidence, in place of older ones of its target."""
        before = json.loads(EVIDENCE.read_text())["samples"] if EVIDENCE.exists() else []
        shown = [
            {key: value for key, value in asdict(one).items() if key not in ("pid", "started")}
            for one in self.processes
        ]
        sample = {"target": self.target, "seed": self.seed, "seconds": self.seconds}
        sample |= {"inputs": self.inputs, "commit": commit(), "processes": shown}
        kept = [one for one in before if one["target"] != self.target]
        samples = sorted([*kept, sample], key=lambda one: str(one["target"]))
        row = {"suite": "adversary-fuzz", "machine": machine(), "commit": commit()}
        EVIDENCE.write_text(json.dumps({**row, "samples": samples}, indent=1) + "\n")


def exchange(channel: socket.socket, data: bytes) -> bytes:
    """Send bytes and an end, and return all that comes back until the other end closes, too.

    Whoever hangs up early is done; one that neither answers nor closes in time is a failure.
    """
    heard = b""
    try:
        channel.sendall(data)
        channel.shutdown(socket.SHUT_WR)
        while more := channel.recv(1 << 16):
            heard += more
    except TimeoutError:
        raise
    except OSError:
        pass
    return heard


def started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; nothing for one that is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def rss(pid: int) -> int:
    """Return how many bytes of memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fds(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def kinds(pid: int) -> Counter[str]:
    """Return what the descriptors of a process are: sockets, pipes, files by their names."""
    found: Counter[str] = Counter()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found[os.readlink(entry.path).partition("[")[0][-60:]] += 1
    return found


def sample_of(schema: Mapping[str, Any], known: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value that a JSON schema describes, for requests that are almost right."""
    if "$ref" in schema:
        return sample_of(known[schema["$ref"].rpartition("/")[2]], known, depth + 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return sample_of(schema[several][0], known, depth + 1)
    if "default" in schema or "enum" in schema or "const" in schema:
        return schema.get("default", schema.get("const", schema.get("enum", [None])[0]))
    match schema.get("type"):
        case "object":
            properties: Iterable[tuple[str, Any]] = schema.get("properties", {}).items()
            return {k: sample_of(v, known, depth + 1) for k, v in properties} if depth < 8 else {}
        case "array":
            return [sample_of(schema.get("items", {}), known, depth + 1)] if depth < 8 else []
        case "integer" | "number":
            return 1
        case "boolean":
            return True
    return "word"
