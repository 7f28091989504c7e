"""Judge what is around the job: nothing left behind, nothing without limit, nothing let out."""

from collections.abc import Iterator

from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.looking import Look
from torchloom.cli.chaos.checking.verdicts import Answer, Verdict, first, held, unknown

MEBI = 1 << 20
SPOOL = 272 * MEBI  # an agent's own limit is 256
MEMORY = 512 * MEBI  # that a part of the plane may grow by
LOGS, LOGS_EACH = 64 * MEBI, MEBI  # of the plane in all, and more for each fault
EVENTS, EVENTS_EACH = 2000, 200  # of the job in the database, and more for each fault


def nothing_left(found: Evidence) -> Verdict:
    """I8: no process, no shared memory, no half checkpoint that is old."""
    if found.left is None:
        return unknown("I8", "it was not looked for yet")
    verdict = first("I8", *found.left)
    if verdict.answer is Answer.HELD and not found.is_over:
        return held("I8", "of lives that have ended; the job still runs")
    return verdict


def within_limits(found: Evidence) -> Verdict:
    """I9: spools, memory, logs and tables, from the first look to each later one."""
    if len(found.looks) < 2:
        return unknown("I9", "nobody looked twice while the job ran")
    grown = (fact for look in found.looks[1:] for fact in _grown(found.looks[0], look))
    return first("I9", *grown, *_rows(found))


def _grown(start: Look, look: Look) -> Iterator[str]:
    if look.spool > SPOOL:
        yield f"behind fault {look.n} spools have {look.spool // MEBI} MiB"
    room = LOGS + LOGS_EACH * max(1, look.n)
    if look.logs - start.logs > room:
        yield f"behind fault {look.n} the plane's logs have grown to {look.logs // MEBI} MiB"
    before = dict(start.memory)
    for part, memory in look.memory:
        if memory > before.get(part, memory) + MEMORY:
            yield f"behind fault {look.n} the {part} has {memory // MEBI} MiB of memory"


def _rows(found: Evidence) -> Iterator[str]:
    most = EVENTS + EVENTS_EACH * len(found.faults)
    if len(found.base.events) > most:
        yield f"{len(found.base.events)} events of {len(found.faults)} faults"


def nothing_let_out(found: Evidence) -> Verdict:
    """I10: no secret in a log, a record or an event; answers have the shape they should."""
    asked = [look.answers for look in found.looks if look.answers is not None]
    wrong = (fact for facts in asked for fact in facts)
    verdict = first("I10", *found.leaks, *wrong)
    if verdict.answer is Answer.HELD and not asked:
        return unknown("I10", "no secret in a log; nobody asked the API")
    return verdict
