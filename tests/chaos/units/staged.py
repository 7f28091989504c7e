"""A small job that was killed once and recovered, as it lies on disk: made here, file by file."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from blake3 import blake3

from torchloom.chaos.checker.case import Case, case_of
from torchloom.chaos.checker.judgement import Checker, Judged
from torchloom.chaos.checker.promises import PromiseAnswer

JOB, WORLD, STEPS, HIT = "job-1", 2, 12, 1
BEGAN, KILLED, AGAIN = 1000.0, 1006.5, 1007.0  # unix seconds
STATE = """
create table jobs (id text, state text, reason text);
create table events (seq integer primary key, time real, job text, kind text, rank integer,
    step integer, author text, reason text, facts text);
create table commands (id text, number integer, job text, state text, payload text);
create table checkpoints (job text, step integer, generation integer, attempt integer, state text,
    root text, committed_at real, shards text, metrics text);
create table ranks (job text, rank integer, incarnation text);
"""
RECORDS = """
create table events (id integer primary key, job text, rank integer, generation integer,
    incarnation text, number integer, kind text, step integer, time real, facts text);
"""
LIVES = {0: (("a0", 100, 5),), 1: (("a1", 101, 6), ("b1", 201, 9))}  # of each rank, in order


class Stage:
    """The folders of one job; each method changes one thing in them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "loom"
        self.run = self.home / "runs" / JOB
        self.digests, self.against = folder / "ledger", folder / "quiet"
        self.proc, self.shm = folder / "proc", folder / "shm"
        for path in (self.run / "logs", self.home / "plane" / "logs", self.digests, self.proc):
            path.mkdir(parents=True)
        self.shm.mkdir()
        self._write()

    def _write(self) -> None:
        env = {"LOOM_LEDGER": str(self.digests)}
        self.run.joinpath("app.json").write_text(json.dumps({"roles": [{"env": env}]}))
        self.state("SUCCEEDED")
        self.home.joinpath("plane", "admin.token").write_text("a-token-nobody-may-see\n")
        self._base("state", STATE)
        self._base("records", RECORDS)
        self._strike()
        self._books()
        self._history()
        for step in (4, 8):
            self.save(step, 1 if step == 4 else 2)
        self.process(100, 5, "RANK=0")

    # What is there.

    def state(self, state: str) -> None:
        root = str(self.run / "checkpoints")
        status = {"state": state, "checkpoints": root}
        self.run.joinpath("status.json").write_text(json.dumps(status))

    def _strike(self) -> None:
        target = {"what": "rank", "rank": HIT, "pid": 101, "started": "6", "node": "h", "name": ""}
        facts = {"n": 1, "kind": "kill", "planned_at": 6.5, "target": target, "step": 6}
        self.strikes = [
            {"chaos": "c", "job": JOB, "seed": 7, "began": BEGAN, "faults": 1, "plan": []},
            {**facts, "outcome": "planned", "struck_at": None},
            {**facts, "outcome": "struck", "struck_at": KILLED, "recovered_at": AGAIN + 1},
            {"ended": AGAIN + 5, "why": "faults"},
        ]
        self.struck()

    def struck(self) -> None:
        lines = "".join(f"{json.dumps(line)}\n" for line in self.strikes)
        self.run.joinpath("chaos.jsonl").write_text(lines)

    def line(self, rank: int, step: int, **more: Any) -> dict[str, Any]:
        """Return what a rank writes behind a step; life and generation follow from it."""
        is_after = step > 5
        incarnation, pid, started = LIVES[rank][-1 if is_after else 0]
        return {
            "attempt": 0,
            "generation": 2 if is_after else 1,
            "incarnation": incarnation,
            "pid": pid,
            "started": started,
            "kind": "applied",
            "step": step,
            "digest": f"p{step}",
            "state": f"o{step}",
            "own": f"b{rank}.{step}",
            "samples": f"s{rank}.{step}",
            "chance": f"r{rank}.{step}",
            "time": (AGAIN if is_after else BEGAN) + (step - 5 if is_after else step),
            **more,
        }

    def joined(self, rank: int, step: int, of: int) -> dict[str, Any]:
        """Return what a rank begins a generation with, behind a step."""
        bits = {name: self.line(rank, step)[name] for name in ("digest", "state", "own")}
        none = {"samples": None, "chance": None, "kind": "joined", "step": step}
        when = self.line(rank, of)["time"] - 0.5
        return {**self.line(rank, of), **bits, **none, "time": when}

    def _books(self) -> None:
        for rank in range(WORLD):
            first = {**self.joined(rank, -1, 0), "digest": "p-1"}
            before = [self.line(rank, step) for step in range(6)]
            after = [self.line(rank, step) for step in range(6, STEPS)]
            self.book(rank, [first, *before, self.joined(rank, 5, 6), *after])
        shutil.copytree(self.digests, self.against)

    def book(self, rank: int, lines: list[dict[str, Any]]) -> None:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (self.digests / f"rank_{rank}.jsonl").write_text(text)

    def lines(self, rank: int) -> list[dict[str, Any]]:
        text = (self.digests / f"rank_{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def _base(self, name: str, schema: str) -> None:
        with closing(sqlite3.connect(self.home / "plane" / f"{name}.db")) as base:
            base.executescript(schema)

    def sql(self, name: str, words: str, *values: object) -> None:
        """Change one of the databases."""
        with closing(sqlite3.connect(self.home / "plane" / f"{name}.db")) as base, base:
            base.execute(words, values)

    def event(self, time: float, kind: str, reason: str, rank: int = -1, **facts: Any) -> None:
        words = "insert into events (time, job, kind, rank, author, reason, facts)"
        values = (time, JOB, kind, rank, "", reason, json.dumps(facts))
        self.sql("state", f"{words} values (?,?,?,?,?,?,?)", *values)

    def turn(self, time: float, before: str, after: str, reason: str) -> None:
        self.event(time, "job_state", reason, before=before, after=after)

    def told(self, incarnation: str, number: int, kind: str, time: float, **facts: Any) -> None:
        words = "insert into events (job, rank, incarnation, number, kind, step, time, facts)"
        values = (JOB, 0, incarnation, number, kind, 0, time, json.dumps(facts))
        self.sql("records", f"{words} values (?,?,?,?,?,?,?,?)", *values)

    def _history(self) -> None:
        reason = f"exit_signal_9_rank_{HIT}"
        self.sql("state", "insert into jobs values (?,?,?)", JOB, "COMPLETED", "done")
        self.event(BEGAN, "job_started", "")
        self.turn(KILLED + 0.1, "RUNNING", "RECOVERING", reason)
        self.event(KILLED + 0.1, "regrouping", reason, generation=2)
        self.turn(AGAIN, "RECOVERING", "RUNNING", "recovered")
        self.event(AGAIN + 1, "command_applied", "", command="c1")
        self.turn(AGAIN + 8, "RUNNING", "COMPLETED", "done")
        for number, (incarnation, *_) in enumerate((*LIVES[0], *LIVES[1])):
            self.told(incarnation, 1, "init", BEGAN + number)

    def save(self, step: int, generation: int) -> Path:
        """Commit a checkpoint."""
        folder = self.run / "checkpoints" / f"ckpt_step_{step:05d}"
        folder.mkdir(parents=True)
        shards = []
        for rank in range(WORLD):
            name, data = f"worker_{rank}.pt", f"{step} of {rank}".encode()
            (folder / name).write_bytes(data)
            content = f"blake3:{blake3(data).hexdigest()}"
            shards.append({"name": name, "size": len(data), "hash": content, "rank": rank})
        facts = {"step": step, "world_size": WORLD, "generation": generation, "shards": shards}
        (folder / "manifest.json").write_text(json.dumps(facts))
        words = "insert into checkpoints values (?,?,?,?,?,?,?,?,?)"
        root, when = str(self.run / "checkpoints"), self.line(0, step)["time"]
        row = (JOB, step, generation, 0, "committed", root, when, "[]", "{}")
        self.sql("state", words, *row)
        return folder

    def process(self, pid: int, started: int, *env: str, **more: Any) -> None:
        """Have a process live, by this stage's own /proc."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["S", *["0"] * 18, str(started), "0", str(more.get("pages", 1))]
        (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)}")
        (folder / "cmdline").write_bytes("\0".join(more.get("words", ["python"])).encode())
        (folder / "environ").write_bytes("\0".join(env).encode())

    def gone(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    # What is found.

    def case(self, **more: Any) -> Case:
        known = case_of(JOB, self.run, {}, self.against)
        fields = {name: getattr(known, name) for name in known.__slots__}
        return Case(**{**fields, "proc": self.proc, "shm": self.shm, "patience": 0.0, **more})

    def checker(self, **more: Any) -> Checker:
        """Return one that has looked before the fault and behind it."""
        checker = Checker(self.case(**more))
        checker.look(-1)
        checker.look(1)
        return checker

    def judged(self, **more: Any) -> Judged:
        """Have everything judged, behind the job's end."""
        checker = self.checker(**more)
        if (self.proc / "100").exists():
            self.gone(100)
        return checker.judged()

    def broken(self, **more: Any) -> dict[str, str]:
        """Return what is broken, with the fact."""
        found = self.judged(**more).verdicts
        return {one.name: one.fact for one in found if one.answer is PromiseAnswer.BROKEN}


def age(path: Path, seconds: float) -> None:
    """Have something lie there for so long."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
