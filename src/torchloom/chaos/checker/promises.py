"""What a judge may say of a promise: it held, it was broken by this fact, or nobody can know."""

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
    last_word,
)

PROMISES = {
    "I1": "a committed checkpoint is whole and readable",
    "I2": "the latest checkpoint never goes back, none is half",
    "I3": "each step is applied once in the run that counts",
    "I4": "the bits are those of an undisturbed run",
    "I5": "the job went along edges that exist, each noted",
    "I6": "a rank has one life at a time",
    "I7": "what is said twice counts once",
    "I8": "nothing is left behind",
    "I9": "nothing grows without limit",
    "I10": "answers are well-formed, no secret is in a log",
}
MEBI = 1 << 20
SPOOL = 272 * MEBI  # an agent's own limit is 256
MEMORY = 512 * MEBI  # that a part of the plane may grow by
LOGS, LOGS_EACH = 64 * MEBI, MEBI  # of the plane in all, and more for each fault
EVENTS, EVENTS_EACH = 2000, 200  # of the job in the database, and more for each fault
SKEW = 1.0  # seconds that the clocks of hosts may differ
_GOING_ON = {"QUEUED", "FAILED", "CANCELLED"}
EDGES = {  # written down a second time, so that a mistake in the first shows
    "QUEUED": {"RUNNING", "FAILED", "CANCELLED"},
    "RUNNING": {"COMPLETED", "RECOVERING", "PAUSED", *_GOING_ON},
    "RECOVERING": {"RUNNING", "PAUSED", *_GOING_ON},
    "PAUSED": {"RUNNING", "RECOVERING", *_GOING_ON},
}
_RESUMED = ("resumed", "generation_", "started_again")


class PromiseAnswer(StrEnum):
    """The three things that can be said."""

    HELD = "held"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PromiseVerdict:
    """What became of one promise."""

    name: str
    answer: PromiseAnswer
    fact: str = ""


def held(name: str, fact: str = "") -> PromiseVerdict:
    """Say that a promise was kept, and how far that is known where there is a limit to it."""
    return PromiseVerdict(name, PromiseAnswer.HELD, fact)


def broken(name: str, fact: str) -> PromiseVerdict:
    """Say that a promise was broken, and by what."""
    return PromiseVerdict(name, PromiseAnswer.BROKEN, fact)


def unknown(name: str, why: str) -> PromiseVerdict:
    """Say that nobody can know, and why."""
    return PromiseVerdict(name, PromiseAnswer.UNKNOWN, why)


def first(name: str, *facts: str) -> PromiseVerdict:
    """Say that a promise was broken by the first of some facts that is one; else it held."""
    found = next(filter(None, facts), "")
    return broken(name, found) if found else held(name)


def nothing_left(found: JobEvidence) -> PromiseVerdict:
    """I8: no process, no shared memory, no half checkpoint that is old."""
    if found.left is None:
        return unknown("I8", "it was not looked for yet")
    verdict = first("I8", *found.left)
    if verdict.answer is PromiseAnswer.HELD and not found.is_over:
        return held("I8", "of lives that have ended; the job still runs")
    return verdict


def within_limits(found: JobEvidence) -> PromiseVerdict:
    """I9: spools, memory, logs and tables, from the first look to each later one."""
    if len(found.looks) < 2:
        return unknown("I9", "nobody looked twice while the job ran")
    grown = (fact for look in found.looks[1:] for fact in _grown(found.looks[0], look))
    return first("I9", *grown, *_rows(found))


def _grown(start: Observation, look: Observation) -> Iterator[str]:
    if look.spool > SPOOL:
        yield f"behind fault {look.n} spools have {look.spool // MEBI} MiB"
    room = LOGS + LOGS_EACH * max(1, look.n)
    if look.logs - start.logs > room:
        yield f"behind fault {look.n} the plane's logs have grown to {look.logs // MEBI} MiB"
    before = dict(start.memory)
    for part, memory in look.memory:
        if memory > before.get(part, memory) + MEMORY:
            yield f"behind fault {look.n} the {part} has {memory // MEBI} MiB of memory"


def _rows(found: JobEvidence) -> Iterator[str]:
    most = EVENTS + EVENTS_EACH * len(found.faults)
    if len(found.base.events) > most:
        yield f"{len(found.base.events)} events of {len(found.faults)} faults"


def nothing_let_out(found: JobEvidence) -> PromiseVerdict:
    """I10: no secret in a log, a record or an event; answers have the shape they should."""
    asked = [look.answers for look in found.looks if look.answers is not None]
    wrong = (fact for facts in asked for fact in facts)
    verdict = first("I10", *found.leaks, *wrong)
    if verdict.answer is PromiseAnswer.HELD and not asked:
        return unknown("I10", "no secret in a log; nobody asked the API")
    return verdict


def stays_whole(found: JobEvidence) -> PromiseVerdict:
    """I1: all that is committed can be read; what was damaged on purpose is never loaded."""
    if found.saved is None:
        return unknown("I1", f"the checkpoints are in {found.root}, no folder of this host")
    if not found.saved:
        return unknown("I1", "no checkpoint was committed")
    damaged = (why for name, why in found.damage if name not in found.hit)
    return first("I1", *damaged, *_loaded(found))


def _loaded(found: JobEvidence) -> Iterator[str]:
    """Yield what was loaded while it was damaged, and before it was written anew."""
    restored = [told for told in found.base.told if told["kind"] == "restored"]
    for fault in (one for one in found.faults if one.kind == "corrupt-shard"):
        for told in restored:
            if _is_of(fault, told) and not _is_anew(found, fault):
                yield f"rank {told['rank']} loaded {_name(fault)}, which was damaged before"


def _is_of(fault: Struck, told: Row) -> bool:
    place = str(told["facts"].get("checkpoint") or "").rstrip("/").rpartition("/")[2]
    end = float("inf") if fault.undone is None else fault.undone
    return place == _name(fault) and fault.at < told["time"] < end


def _is_anew(found: JobEvidence, fault: Struck) -> bool:
    step = int(_name(fault).removeprefix("ckpt_step_"))
    rows = (row for row in found.base.checkpoints if row["step"] == step)
    return any((row["committed_at"] or 0.0) > fault.at for row in rows)


def _name(fault: Struck) -> str:
    return Path(fault.name).parent.name.partition(".")[0]


def never_goes_back(found: JobEvidence) -> PromiseVerdict:
    """I2: from look to look, in the databases, and none is half."""
    if found.saved is None:
        return unknown("I2", f"the checkpoints are in {found.root}, no folder of this host")
    if not found.looks:
        return unknown("I2", "nobody looked while the job ran")
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
            yield f"the newest was step {newest}, behind fault {after.n} it is {after.newest}"


def _gone(found: JobEvidence) -> Iterator[str]:
    """Yield what a database calls committed and nobody finds."""
    there = found.there | found.hit
    root = found.root.rstrip("/")
    for row in found.base.checkpoints:
        name, is_here = f"ckpt_step_{row['step']:05d}", row["root"].rstrip("/") == root
        if row["state"] == "committed" and is_here and name not in there:
            yield f"{name} is committed by the database, and is not there"


def one_life(found: JobEvidence) -> PromiseVerdict:
    """I6: by `/proc`, by the ledgers, and by who committed checkpoints."""
    if found.silent:
        return unknown("I6", found.silent)
    own = (fact for rank, book in enumerate(found.books) for fact in _came_back(rank, book))
    return first("I6", *_at_once(found), *own, *_late(found), *_zombies(found))


def _at_once(found: JobEvidence) -> Iterator[str]:
    for look in found.looks:
        for rank, lives in look.lives:
            if len(lives) > 1:
                yield f"behind fault {look.n} rank {rank} had {len(lives)} lives at once"


def _came_back(rank: int, book: DigestLog) -> Iterator[str]:
    seen: list[str] = []
    for line in book:
        if line.incarnation in seen[:-1]:
            yield f"rank {rank}: a life wrote step {line.step} after its successor had"
        if line.incarnation not in seen:
            seen.append(line.incarnation)
    for before, after in pairwise(book):
        if after.generation < before.generation:
            yield f"rank {rank} went from generation {before.generation} to {after.generation}"


def _late(found: JobEvidence) -> Iterator[str]:
    """Yield a step of an older generation behind one of a newer; not where clocks were moved."""
    if any(fault.kind == "clock-step" for fault in found.faults):
        return
    began: dict[int, float] = {}
    for line in (line for book in found.books for line in applied_steps(book)):
        began[line.generation] = min(line.time, began.get(line.generation, line.time))
    for rank, book in enumerate(found.books):
        for line in applied_steps(book):
            newer = [time for generation, time in began.items() if generation > line.generation]
            if newer and line.time > min(newer) + SKEW:
                yield f"rank {rank} applied step {line.step} in generation {line.generation}, late"


def _zombies(found: JobEvidence) -> Iterator[str]:
    """Yield a checkpoint that somebody of another generation has committed."""
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
    """I3: nothing twice in a generation, nothing left out, the same when it was done again."""
    if found.silent:
        return unknown("I3", found.silent)
    books = enumerate(found.books)
    own = (fact for rank, book in books for fact in _of_one(rank, book, found.begins))
    return first("I3", *own, *_apart(found.books))


def _of_one(rank: int, book: DigestLog, begins: int | None) -> Iterator[str]:
    times = Counter((line.generation, line.incarnation, line.step) for line in applied_steps(book))
    for (generation, _, step), count in times.items():
        if count > 1:
            yield f"rank {rank} applied step {step} {count} times in generation {generation}"
    done: dict[int, DigestLine] = {}
    for line in applied_steps(book):
        before = done.setdefault(line.step, line)
        if before.incarnation == line.incarnation and before is not line:
            yield f"rank {rank} lived on and applied step {line.step} again"
        if (before.bits, before.samples) != (line.bits, line.samples):
            yield f"rank {rank}: step {line.step} was another when it was done again"
    had = {line.step for line in book}
    start = min(had, default=0) if begins is None else begins
    if missing := set(range(start, max(had, default=-1))) - had:
        yield f"rank {rank} never had step {min(missing)}"


def _apart(books: Sequence[DigestLog]) -> Iterator[str]:
    """Yield a step behind which ranks that share their parameters had different ones."""
    words = [last_word(book) for book in books]
    both = sorted(set.intersection(*(set(word) for word in words)))
    bits = {step: {word[step].bits[0] for word in words} for step in both}
    if both and len(bits[both[0]]) > 1:
        return  # each rank has a part of its own
    for step in both:
        if len(bits[step]) > 1:
            yield f"behind step {step} ranks had different parameters"


def same_bits(found: JobEvidence) -> PromiseVerdict:
    """I4: parameters, optimizers, buffers, samples and chance are those of another run."""
    if found.silent:
        return unknown("I4", found.silent)
    if found.expected is None or not any(found.expected):
        return unknown("I4", "no ledger of an undisturbed run was given: --against DIR")
    if len(found.books) != len(found.expected):
        facts = f"{len(found.books)} ranks here, {len(found.expected)} there"
        return unknown("I4", f"the other run is not the same: {facts}")
    pairs = enumerate(zip(found.books, found.expected, strict=True))
    return first("I4", *(fact for rank, (mine, its) in pairs for fact in _other(rank, mine, its)))


def _other(rank: int, book: DigestLog, expected: DigestLog) -> Iterator[str]:
    known = last_word(expected)
    for line in book:
        its = known.get(line.step)
        if its is None:
            if line.is_applied:
                yield f"rank {rank} applied step {line.step}, which the other run has not"
        elif what := _difference(line, its):
            yield f"rank {rank}: other {what} behind step {line.step}"


def _difference(line: DigestLine, its: DigestLine) -> str:
    names = ("parameters", "optimizer states", "buffers")
    for name, mine, theirs in zip(names, line.bits, its.bits, strict=True):
        if mine != theirs:
            return name
    for name, one, other in (
        ("samples", line.samples, its.samples),
        ("random numbers", line.chance, its.chance),
    ):
        if one is not None and one != other:
            return name
    return ""


def is_exact(found: JobEvidence) -> bool | None:
    """Tell whether the whole run, to its last step, is the other one; nothing if nobody knows."""
    if found.expected is None or not any(found.expected) or not any(found.books):
        return None
    if len(found.books) != len(found.expected):
        return False
    pairs = list(zip(found.books, found.expected, strict=True))
    ends = all(_end(mine) == _end(its) for mine, its in pairs)
    return ends and not any(fact for mine, its in pairs for fact in _other(0, mine, its))


def _end(book: DigestLog) -> int:
    return max((line.step for line in book), default=-1)


def along_edges(found: JobEvidence) -> PromiseVerdict:
    """I5: each change is one event, along an edge that exists; together they give the row."""
    if found.base.why or not found.base.jobs:
        return unknown("I5", found.base.why or "no database knows the job")
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
            yield f"it was {after}, and the next event goes from {before} to {to}"


def _replayed(found: JobEvidence, steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    state = found.base.jobs[0]["state"]
    begun = {row["kind"] for row in found.base.events} & {"job_started", "submitted"}
    if steps and steps[-1][1] != state:
        yield f"the job is {state}, its events end with {steps[-1][1]}"
    if not steps and begun and state not in ("RUNNING", "QUEUED"):
        yield f"the job is {state}, and no event says so"


def counts_once(found: JobEvidence) -> PromiseVerdict:
    """I7: a command acts once, a record is stored once, a life begins once."""
    if found.base.why or not found.base.jobs:
        return unknown("I7", found.base.why or "no database knows the job")
    applied = (row for row in found.base.events if row["kind"] == "command_applied")
    return first(
        "I7",
        *_twice("command {} was applied {} times", [row["facts"]["command"] for row in applied]),
        *_twice("command {} is stored {} times", [row["id"] for row in found.base.commands]),
        *_twice("record {} is stored {} times", [_key(row) for row in found.base.told]),
        *_twice("life {} began {} times", _begun(found.base.told)),
    )


def _twice(words: str, names: Sequence[object]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield words.format(name, count)


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("rank", "incarnation", "number"))


def _begun(told: Sequence[Row]) -> list[str]:
    return [row["incarnation"] for row in told if row["kind"] == "init"]
