"""A weaver, an agent and a launch process in one, for tests: strict, and with one simple plan.

It hears ranks on a unix socket, has those that die replaced, and knows the protocol only as far as
one loss after the other needs it. Whatever does not fit is an error of the test.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchloom.bus.codec import Frames, decode, frame
from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    Given,
    Go,
    JoinGeneration,
    LetStand,
    MembershipReport,
    NotRestored,
    Release,
    Restored,
    Training,
    Transfer,
)
from torchloom.messages.plane import (
    VERSION,
    Decided,
    FromRank,
    Head,
    Kept,
    Message,
    Outcome,
    Prepare,
    RankRefusal,
    Ready,
    Register,
    Welcome,
    Write,
)
from torchloom.rules.membership.election import (
    Facts,
    GenerationPlan,
    Holding,
    MemberPosition,
    RecoveryMode,
    roll_forward,
)

from ...harness.forked_ranks import free_port, seats

LIMIT = 60.0
FORKING = Path(__file__).with_name("forking.py")
SCRIPT = Path(__file__).parents[2] / "live/script.py"


class Forker:
    """The process that has torch, asked to fork."""

    def __init__(self) -> None:
        words = [sys.executable, str(FORKING)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self._answers: queue.Queue[int] = queue.Queue()
        self.exits: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._read()
        threading.Thread(target=self._listen, daemon=True).start()

    def fork(self, env: dict[str, str], out: Path, script: Path) -> int:
        assert self._process.stdin is not None
        told = {"env": env, "out": str(out), "script": str(script)}
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=LIMIT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> list[int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        found: list[int] = json.loads(line)
        return found

    def _listen(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                said = self._read()
                if len(said) == 1:
                    self._answers.put(said[0])
                else:
                    self.exits.put(("exited", *said))


class Weaver:
    """One job of so many ranks, from its start to its end."""

    def __init__(
        self, forker: Forker, folder: Path, world: int, script: Path = SCRIPT, **env: str
    ) -> None:
        self.folder = folder
        self.world = world
        self.generation = 0
        self.said: list[Message] = []
        self.pids: dict[int, int] = {}  # by rank
        self.lives = dict.fromkeys(range(world), 0)
        self.codes: dict[int, list[int]] = {rank: [] for rank in range(world)}
        self.on_go: Callable[[int], None] = lambda generation: None
        self.is_away = False  # answers nothing
        self.changes: list[tuple[dict[str, Any], int]] = []  # of knobs, with their steps
        self._ready: dict[str, set[int]] = {}
        self._registers: dict[int, Register] = {}
        self._phase = "starting"
        self._arrived: dict[int, Arrived] = {}
        self._given_up: set[int] = set()
        self._done: set[int] = set()
        self._plan: GenerationPlan | None = None
        self._forker = forker
        self._script = script
        self._env = env
        self._kept: Counter[str] = Counter()
        self._heads: dict[int, Head] = {}
        self._lines: dict[int, socket.socket] = {}
        self._events = forker.exits
        while not self._events.empty():
            self._events.get()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "agent"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        self._seats = seats(
            world,
            free_port(),
            f"file://{folder}/store",
            LOOM_JOB="job",
            LOOM_ROLE="trainer",
            LOOM_NODE="here",
            LOOM_AGENT=str(folder / "agent"),
            LOOM_ATTEMPT="0",
            LOCAL_WORLD_SIZE=str(world),
            OUT=str(folder),
            **env,
        )

    # What happens.

    def run(self, limit: float = LIMIT) -> None:
        """Have the job done; every rank ends well in the end."""
        for rank in range(self.world):
            self._start(rank)
        deadline = time.monotonic() + limit
        while len([1 for codes in self.codes.values() if codes[-1:] == [0]]) < self.world:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(self.report())
            with contextlib.suppress(queue.Empty):
                self._take(*self._events.get(timeout=left))

    def report(self) -> str:
        """Return what there is to know when it did not go well."""
        texts = [path.read_text() for path in sorted(self.folder.glob("out-*"))]
        talk = [m for m in self.said if isinstance(m, MembershipReport)]
        return f"{self._phase} {self.codes} {talk[-12:]}\n" + "\n".join(texts)

    def close(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._listener.close()

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    def _start(self, rank: int) -> None:
        self.lives[rank] += 1
        life = self.lives[rank]
        env = dict(self._seats[rank])
        env |= {"LOOM_LIFE": str(life), "LOOM_GENERATION": str(self.generation)}
        env["LOOM_PAGE"] = str(self.folder / f"page-{rank}-{life}")
        if life > 1:
            env["LOOM_STANDIN"] = "1"
        out = self.folder / f"out-{rank}-{life}"
        self.pids[rank] = self._forker.fork(env, out, self._script)

    def _take(self, kind: str, one: Any, two: Any) -> None:
        if kind == "exited":
            self._exited(one, two)
        elif kind == "given up":
            self._given_up.add(one)
            self._form()
        elif not self.is_away:
            self._hear(one, two)

    def _exited(self, pid: int, code: int) -> None:
        rank = next((rank for rank, its in self.pids.items() if its == pid), None)
        if rank is None:
            return
        del self.pids[rank]
        self.codes[rank].append(code)
        if rank in self._given_up:
            self._given_up.remove(rank)
            self._start(rank)
            return
        if code == 0 and self._phase in ("released", "training"):
            return
        assert code < 0 or self._phase != "starting", self.report()
        self._form(rank)

    def give_up(self, rank: int) -> None:
        """Do without a rank that lives; it is killed when the others have left it."""
        self._events.put(("given up", rank, None))

    def _form(self, *gone: int) -> None:
        """End the generation; call the others, and have newcomers started."""
        self.generation += 1
        self._phase, self._arrived, self._done = "gathering", {}, set()
        for rank in range(self.world):
            if rank in self.pids and rank not in self._given_up:
                self._say(rank, JoinGeneration, 1)
        for rank in gone:
            self._start(rank)

    def _hear(self, rank: int, message: Message) -> None:
        self.said.append(message)
        generation = message.head.generation
        match message:
            case Register():
                self._registers[rank] = message
                self._offer()
            case Ready():
                self._ready[message.command].add(rank)
                if len(self._ready[message.command]) == self.world:
                    _, step = self.changes[int(message.command[1:])]
                    self._say(0, Write, message.command, step, 1)
            case Decided():
                assert message.effective is not None
                self._tell(Outcome, message.command, message.effective, "", 1)
                if message.command == f"c{len(self.changes) - 1}":
                    (self.folder / "go").touch()
            case RankRefusal():
                raise AssertionError(message.why)
            case Training() if self._phase == "starting" and not message.why:
                self._done.add(rank)
                if len(self._done) == self.world:
                    self._train()
            case Broke() if generation == self.generation and self._phase == "training":
                pass  # a death explains it, or the test says what to do
            case Broke():
                self._say(rank, JoinGeneration, 1)
            case Arrived() if generation == self.generation and self._phase == "gathering":
                assert not message.why, self.report()
                self._arrived[rank] = message
                if self._given_up and len(self._arrived) == self.world - len(self._given_up):
                    for one in self._given_up:
                        os.kill(self.pids[one], signal.SIGKILL)
                self._move()
            case Arrived() if generation < self.generation:
                self._say(rank, JoinGeneration, 1)
            case Restored() if generation == self.generation and self._phase == "moving":
                self._done.add(rank)
                if len(self._done) == self.world:
                    self._train()
                    self._tell(Go, 1, self._start_step)
                    self.on_go(self.generation)
            case NotRestored() if generation == self.generation and self._phase == "moving":
                self._form()
            case Finished() if generation == self.generation and self._phase == "training":
                self._done.add(rank)
                if len(self._done) == self.world:
                    self._phase = "released"
                    (self.folder / "released").touch()
                    self._tell(Release, 1)
            case Finished() if generation < self.generation:
                self._say(rank, JoinGeneration, 1)
            case Finished() if self._phase == "released":
                self._say(rank, Release, 1)

    def _train(self) -> None:
        """Note that all are in the loop; those at the gate pass when nothing is to be changed."""
        self._phase, self._done = "training", set()
        if not self.changes:
            (self.folder / "go").touch()

    def _offer(self) -> None:
        """Have knobs changed, once all ranks have them: then they wait for a file."""
        known = [{knob.name for knob in one.knobs} for one in self._registers.values()]
        if self._ready or len(known) < self.world or not all("lr" in names for names in known):
            return
        for at, (payload, _) in enumerate(self.changes):
            self._ready[f"c{at}"] = set()
            self._tell(Prepare, f"c{at}", "knob", payload, None, 1)

    def let_stand(self, rank: int) -> None:
        self._say(rank, LetStand, 1)

    @property
    def _start_step(self) -> int:
        assert self._plan is not None
        return self._plan.start

    def _move(self) -> None:
        if len(self._arrived) < self.world:
            return
        nodes = dict.fromkeys(range(self.world), "here")
        standings = {
            rank: MemberPosition(one.applied, frozenset(one.pages))
            for rank, one in self._arrived.items()
        }
        plan = roll_forward(standings, Facts(Holding.REPLICATED, RecoveryMode.LIVE, nodes))
        assert isinstance(plan, GenerationPlan), (plan, standings, self.report())
        self._plan, self._phase = plan, "moving"
        given = tuple(
            Given(move.target, str(move.what), move.step, move.source) for move in plan.moves
        )
        store = f"file://{self.folder}/store-g{self.generation}"
        self._tell(Transfer, 1, store, plan.start, given, ("here",) * self.world)

    # How it speaks.

    def _tell(self, kind: type[Message], *words: Any) -> None:
        for rank in range(self.world):
            self._say(rank, kind, *words)

    def _say(self, rank: int, kind: Callable[..., Message], *words: Any) -> None:
        if rank not in self._heads:
            return
        life = self._heads[rank].incarnation
        head = Head(VERSION, "job", self.generation, rank, life, "trainer")
        with contextlib.suppress(OSError):
            self._lines[rank].sendall(frame(kind(head, *words)))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def _listen(self, line: socket.socket) -> None:
        frames = Frames()
        with contextlib.suppress(OSError):
            while data := line.recv(1 << 16):
                for whole in frames.feed(data):
                    self._receive(line, decode(whole, FromRank | MembershipReport))

    def _receive(self, line: socket.socket, message: Message) -> None:
        rank, life = message.head.rank, message.head.incarnation
        if isinstance(message, Register):
            is_new = self._lines.get(rank) is not line
            self._lines[rank], self._heads[rank] = line, message.head
            if is_new:
                line.sendall(frame(Welcome(message.head, 1)))
            line.sendall(frame(Kept(message.head, self._kept[life])))
            self._events.put(("said", rank, message))
        elif isinstance(message, MembershipReport):
            self._events.put(("said", rank, message))
        else:
            self._kept[life] += 1
            line.sendall(frame(Kept(message.head, self._kept[life])))
            self._events.put(("said", rank, message))


@contextlib.contextmanager
def weaving(forker: Forker, folder: Path, world: int, **more: Any) -> Iterator[Weaver]:
    weaver = Weaver(forker, folder, world, **more)
    try:
        yield weaver
    finally:
        weaver.close()


def rows(folder: Path, rank: int) -> dict[int, dict[str, Any]]:
    """Return what a rank wrote down of each step, the last time it did it."""
    lines = [json.loads(text) for text in (folder / f"rank-{rank}").read_text().splitlines()]
    return {row["step"]: row for row in lines if "step" in row}
