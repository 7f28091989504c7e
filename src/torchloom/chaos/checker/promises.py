"""The promises of a job and their judges: a promise held, was broken by a fact, or is unknown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from torchloom.chaos.checker.evidence import JobEvidence, Observation
from torchloom.chaos.checker.readers import (
    DigestLine,
    DigestLog,
    Row,
    Struck,
    applied_steps,
    final_steps,
)

PROMISES = {
    "I1": "a committed checkpoint is whole and readable",
    "I2": "the latest checkpoint never goes back, none is incomplete",
    "I3": "each step is applied once in the run that counts",
    "I4": "the bits equal those of an undisturbed run",
    "I5": "the job took only valid transitions, each recorded",
    "I6": "a rank has one incarnation at a time",
    "I7": "a repeated message counts once",
    "I8": "nothing is left behind",
    "I9": "nothing grows without limit",
    "I10": "replies are well-formed, no secret is in a log",
}
MEBI = 1 << 20
SPOOL = 272 * MEBI  # an agent's own limit is 256
MEMORY = 512 * MEBI  # that a part of the plane may grow by
LOGS, LOGS_EACH = 64 * MEBI, MEBI  # growth of the plane's logs, and more for each fault
EVENTS, EVENTS_EACH = 2000, 200  # events of the job in the database, and more for each fault
SKEW = 1.0  # seconds that the clocks of hosts may differ
_ALWAYS = {"QUEUED", "FAILED", "CANCELLED"}
EDGES = {  # a second copy on purpose: a mistake in the first one shows
    "QUEUED": {"RUNNING", "FAILED", "CANCELLED"},
    "RUNNING": {"COMPLETED", "RECOVERING", "PAUSED", *_ALWAYS},
    "RECOVERING": {"RUNNING", "PAUSED", *_ALWAYS},
    "PAUSED": {"RUNNING", "RECOVERING", *_ALWAYS},
}
_RESUMED = ("resumed", "generation_", "started_again")


class PromiseAnswer(StrEnum):
    """The possible verdicts."""

    HELD = "held"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PromiseVerdict:
    """The verdict on one promise."""

    name: str
    answer: PromiseAnswer
    fact: str = ""


def held(name: str, fact: str = "") -> PromiseVerdict:
    """Return that a promise held, with limits of that knowledge in `fact`."""
    return PromiseVerdict(name, PromiseAnswer.HELD, fact)


def broken(name: str, fact: str) -> PromiseVerdict:
    """Return that a promise was broken, and by which fact."""
    return PromiseVerdict(name, PromiseAnswer.BROKEN, fact)


def unknown(name: str, why: str) -> PromiseVerdict:
    """Return that a promise could not be checked, and why."""
    return PromiseVerdict(name, PromiseAnswer.UNKNOWN, why)


def first(name: str, *facts: str) -> PromiseVerdict:
    """Return that a promise was broken by the first non-empty fact; else that it held."""
    found = next(filter(None, facts), "")
    return broken(name, found) if found else held(name)


def nothing_left(found: JobEvidence) -> PromiseVerdict:
    """I8: no process, no shared memory, no old checkpoint draft is left."""
    if found.left is None:
        return unknown("I8", "not checked yet")
    verdict = first("I8", *found.left)
    if verdict.answer is PromiseAnswer.HELD and not found.is_over:
        return held("I8", "for ended incarnations; the job is still running")
    return verdict


def within_limits(found: JobEvidence) -> PromiseVerdict:
    """I9: spools, memory, logs and tables stay within limits, from the first observation on."""
    if len(found.looks) < 2:
        return unknown("I9", "the job was observed fewer than two times")
    grown = (fact for look in found.looks[1:] for fact in _grown(found.looks[0], look))
    return first("I9", *grown, *_rows(found))


def _grown(start: Observation, look: Observation) -> Iterator[str]:
    if look.spool > SPOOL:
        yield f"after fault {look.n} spools have {look.spool // MEBI} MiB"
    room = LOGS + LOGS_EACH * max(1, look.n)
    if look.logs - start.logs > room:
        yield f"after fault {look.n} the plane's logs have grown to {look.logs // MEBI} MiB"
    before = dict(start.memory)
    for part, memory in look.memory:
        if memory > before.get(part, memory) + MEMORY:
            yield f"after fault {look.n} the {part} has {memory // MEBI} MiB of memory"


def _rows(found: JobEvidence) -> Iterator[str]:
    most = EVENTS + EVENTS_EACH * len(found.faults)
    if len(found.base.events) > most:
        yield f"{len(found.base.events)} events after {len(found.faults)} faults"


def nothing_leaked(found: JobEvidence) -> PromiseVerdict:
    """I10: no secret is in a log, a record or an event; replies have the right fields."""
    asked = [look.answers for look in found.looks if look.answers is not None]
    wrong = (fact for facts in asked for fact in facts)
    verdict = first("I10", *found.leaks, *wrong)
    if verdict.answer is PromiseAnswer.HELD and not asked:
        return unknown("I10", "no secret in a log; the API was not checked")
    return verdict


def stays_whole(found: JobEvidence) -> PromiseVerdict:
    """I1: all committed checkpoints are readable; one damaged on purpose is never loaded."""
    if found.saved is None:
        return unknown("I1", f"the checkpoints are in {found.root}, not in a folder of this host")
    if not found.saved:
        return unknown("I1", "no checkpoint was committed")
    damaged = (why for name, why in found.damage if name not in found.hit)
    return first("I1", *damaged, *_loaded(found))


def _loaded(found: JobEvidence) -> Iterator[str]:
    """Yield checkpoints that were loaded while damaged and not written again."""
    restored = [row for row in found.base.reports if row["kind"] == "restored"]
    for fault in (one for one in found.faults if one.kind == "corrupt-shard"):
        for row in restored:
            if _is_of(fault, row) and not _is_rewritten(found, fault):
                yield f"rank {row['rank']} loaded {_name(fault)}, which was damaged before"


def _is_of(fault: Struck, row: Row) -> bool:
    place = str(row["facts"].get("checkpoint") or "").rstrip("/").rpartition("/")[2]
    end = float("inf") if fault.undone is None else fault.undone
    return place == _name(fault) and fault.at < row["time"] < end


def _is_rewritten(found: JobEvidence, fault: Struck) -> bool:
    step = int(_name(fault).removeprefix("ckpt_step_"))
    rows = (row for row in found.base.checkpoints if row["step"] == step)
    return any((row["committed_at"] or 0.0) > fault.at for row in rows)


def _name(fault: Struck) -> str:
    return Path(fault.name).parent.name.partition(".")[0]


def never_goes_back(found: JobEvidence) -> PromiseVerdict:
    """I2: the newest checkpoint never goes back between observations, and none is incomplete."""
    if found.saved is None:
        return unknown("I2", f"the checkpoints are in {found.root}, not in a folder of this host")
    if not found.looks:
        return unknown("I2", "the job was not observed")
    return first("I2", *_half(found), *_back(found), *_gone(found))


def _half(found: JobEvidence) -> Iterator[str]:
    problems = (*(one.half for one in found.looks), *(one.problem for one in found.saved or ()))
    for problem in filter(None, problems):
        if problem.partition(":")[0] not in found.hit:
            yield problem


def _back(found: JobEvidence) -> Iterator[str]:
    hit = {int(name.removeprefix("ckpt_step_")) for name in found.hit}
    for before, after in pairwise(found.looks):
        newest = -1 if before.newest is None or before.newest in hit else before.newest
        if newest > (-1 if after.newest is None else after.newest):
            yield f"the newest was step {newest}, after fault {after.n} it is {after.newest}"


def _gone(found: JobEvidence) -> Iterator[str]:
    """Yield checkpoints that are committed in the database but do not exist."""
    there = found.there | found.hit
    root = found.root.rstrip("/")
    for row in found.base.checkpoints:
        name, is_here = f"ckpt_step_{row['step']:05d}", row["root"].rstrip("/") == root
        if row["state"] == "committed" and is_here and name not in there:
            yield f"{name} is committed in the database but does not exist"


def one_incarnation(found: JobEvidence) -> PromiseVerdict:
    """I6: a rank has one incarnation at a time, by `/proc`, digest logs and checkpoints."""
    if found.silent:
        return unknown("I6", found.silent)
    own = (fact for rank, log in enumerate(found.digest_logs) for fact in _came_back(rank, log))
    return first("I6", *_at_once(found), *own, *_late(found), *_zombies(found))


def _at_once(found: JobEvidence) -> Iterator[str]:
    for look in found.looks:
        for rank, alive in look.alive:
            if len(alive) > 1:
                yield f"after fault {look.n} rank {rank} had {len(alive)} incarnations at once"


def _came_back(rank: int, log: DigestLog) -> Iterator[str]:
    seen: list[str] = []
    for line in log:
        if line.incarnation in seen[:-1]:
            yield f"rank {rank}: an incarnation wrote step {line.step} after its successor had"
        if line.incarnation not in seen:
            seen.append(line.incarnation)
    for before, after in pairwise(log):
        if after.generation < before.generation:
            yield f"rank {rank} went from generation {before.generation} to {after.generation}"


def _late(found: JobEvidence) -> Iterator[str]:
    """Yield steps of an older generation after one of a newer, unless clocks were moved."""
    if any(fault.kind == "clock-step" for fault in found.faults):
        return
    began: dict[int, float] = {}
    for line in (line for log in found.digest_logs for line in applied_steps(log)):
        began[line.generation] = min(line.time, began.get(line.generation, line.time))
    for rank, log in enumerate(found.digest_logs):
        for line in applied_steps(log):
            newer = [time for generation, time in began.items() if generation > line.generation]
            if newer and line.time > min(newer) + SKEW:
                yield f"rank {rank} applied step {line.step} in generation {line.generation}, late"


def _zombies(found: JobEvidence) -> Iterator[str]:
    """Yield checkpoints that another generation has committed."""
    rows = [row for row in found.base.checkpoints if row["state"] == "committed"]
    for step, count in Counter(row["step"] for row in rows).items():
        if count > 1:
            yield f"the checkpoint of step {step} was committed {count} times"
    known = {row["step"]: row["generation"] for row in rows}
    for saved in found.saved or ():
        its = known.get(saved.step, saved.generation)
        if saved.generation is not None and saved.generation != its:
            yield f"{saved.path.name} is generation {saved.generation}'s, the database has {its}"


def each_once(found: JobEvidence) -> PromiseVerdict:
    """I3: no step twice in a generation, none left out, the same result when repeated."""
    if found.silent:
        return unknown("I3", found.silent)
    digest_logs = enumerate(found.digest_logs)
    own = (fact for rank, log in digest_logs for fact in _of_one(rank, log, found.begins))
    return first("I3", *own, *_apart(found.digest_logs))


def _of_one(rank: int, log: DigestLog, begins: int | None) -> Iterator[str]:
    times = Counter((line.generation, line.incarnation, line.step) for line in applied_steps(log))
    for (generation, _, step), count in times.items():
        if count > 1:
            yield f"rank {rank} applied step {step} {count} times in generation {generation}"
    done: dict[int, DigestLine] = {}
    for line in applied_steps(log):
        before = done.setdefault(line.step, line)
        if before.incarnation == line.incarnation and before is not line:
            yield f"rank {rank} survived and applied step {line.step} again"
        if (before.bits, before.samples) != (line.bits, line.samples):
            yield f"rank {rank}: step {line.step} differed when it was repeated"
    had = {line.step for line in log}
    start = min(had, default=0) if begins is None else begins
    if missing := set(range(start, max(had, default=-1))) - had:
        yield f"rank {rank} never had step {min(missing)}"


def _apart(digest_logs: Sequence[DigestLog]) -> Iterator[str]:
    """Yield steps after which ranks that share their parameters had different ones."""
    finals = [final_steps(log) for log in digest_logs]
    both = sorted(set.intersection(*(set(final) for final in finals)))
    bits = {step: {final[step].bits[0] for final in finals} for step in both}
    if both and len(bits[both[0]]) > 1:
        return  # each rank has its own part of the parameters
    for step in both:
        if len(bits[step]) > 1:
            yield f"after step {step} ranks had different parameters"


def same_bits(found: JobEvidence) -> PromiseVerdict:
    """I4: parameters, optimizers, buffers, samples and RNG state equal those of another run."""
    if found.silent:
        return unknown("I4", found.silent)
    if found.expected is None or not any(found.expected):
        return unknown("I4", "no digests of an undisturbed run were given: --against DIR")
    if len(found.digest_logs) != len(found.expected):
        facts = f"{len(found.digest_logs)} ranks here, {len(found.expected)} there"
        return unknown("I4", f"the other run is not comparable: {facts}")
    pairs = enumerate(zip(found.digest_logs, found.expected, strict=True))
    return first("I4", *(fact for rank, (mine, its) in pairs for fact in _other(rank, mine, its)))


def _other(rank: int, log: DigestLog, expected: DigestLog) -> Iterator[str]:
    known = final_steps(expected)
    for line in log:
        its = known.get(line.step)
        if its is None:
            if line.is_applied:
                yield f"rank {rank} applied step {line.step}, which the other run does not have"
        elif what := _difference(line, its):
            yield f"rank {rank}: different {what} after step {line.step}"


def _difference(line: DigestLine, its: DigestLine) -> str:
    names = ("parameters", "optimizer states", "buffers")
    for name, mine, theirs in zip(names, line.bits, its.bits, strict=True):
        if mine != theirs:
            return name
    for name, one, other in (
        ("samples", line.samples, its.samples),
        ("random numbers", line.rng, its.rng),
    ):
        if one is not None and one != other:
            return name
    return ""


def is_exact(found: JobEvidence) -> bool | None:
    """Tell whether the whole run equals the other one; None if that is not known yet."""
    if found.expected is None or not any(found.expected) or not any(found.digest_logs):
        return None
    if len(found.digest_logs) != len(found.expected):
        return False
    pairs = list(zip(found.digest_logs, found.expected, strict=True))
    if any(fact for mine, its in pairs for fact in _other(0, mine, its)):
        return False
    if all(_end(mine) == _end(its) for mine, its in pairs):
        return True
    return False if found.is_over else None


def _end(log: DigestLog) -> int:
    return max((line.step for line in log), default=-1)


def along_edges(found: JobEvidence) -> PromiseVerdict:
    """I5: each state change is one event along a valid edge; together they give the row's state."""
    if found.base.why or not found.base.jobs:
        return unknown("I5", found.base.why or "the job is in no database")
    changes = [row for row in found.base.events if row["kind"] == "job_state"]
    steps = [(row["facts"]["before"], row["facts"]["after"]) for row in changes]
    return first("I5", *_off_edges(changes), *_gaps(steps), *_replayed(found, steps))


def _off_edges(changes: Sequence[Row]) -> Iterator[str]:
    for row in changes:
        before, after = row["facts"]["before"], row["facts"]["after"]
        is_resumed = after == "QUEUED" and row["reason"].startswith(_RESUMED)
        if after not in EDGES.get(before, set()) and not is_resumed:
            yield f"event {row['seq']}: {before} -> {after} ({row['reason'] or 'no reason'})"
        elif not row["reason"]:
            yield f"event {row['seq']}: {before} -> {after} without a reason"


def _gaps(steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    for (_, after), (before, to) in pairwise(steps):
        if after != before:
            yield f"the job was {after}, but the next event goes from {before} to {to}"


def _replayed(found: JobEvidence, steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    state = found.base.jobs[0]["state"]
    begun = {row["kind"] for row in found.base.events} & {"job_started", "submitted"}
    if steps and steps[-1][1] != state:
        yield f"the job is {state}, but its events end with {steps[-1][1]}"
    if not steps and begun and state not in ("RUNNING", "QUEUED"):
        yield f"the job is {state}, but no event reports it"


def counts_once(found: JobEvidence) -> PromiseVerdict:
    """I7: a command acts once, a record is stored once, an incarnation begins once."""
    if found.base.why or not found.base.jobs:
        return unknown("I7", found.base.why or "the job is in no database")
    applied = (row for row in found.base.events if row["kind"] == "command_applied")
    return first(
        "I7",
        *_twice("command {} was applied {} times", [row["facts"]["command"] for row in applied]),
        *_twice("command {} is stored {} times", [row["id"] for row in found.base.commands]),
        *_twice("record {} is stored {} times", [_key(row) for row in found.base.reports]),
        *_twice("incarnation {} began {} times", _begun(found.base.reports)),
    )


def _twice(words: str, names: Sequence[object]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield words.format(name, count)


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("rank", "incarnation", "number"))


def _begun(rows: Sequence[Row]) -> list[str]:
    return [row["incarnation"] for row in rows if row["kind"] == "init"]
