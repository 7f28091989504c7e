"""Judge what was saved: a committed checkpoint stays whole, and the newest never goes back."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.rows import Row
from torchloom.cli.chaos.checking.strikes import Struck
from torchloom.cli.chaos.checking.verdicts import Verdict, first, unknown


def stays_whole(found: Evidence) -> Verdict:
    """I1: all that is committed can be read; what was damaged on purpose is never loaded."""
    if found.saved is None:
        return unknown("I1", f"the checkpoints are in {found.root}, no folder of this host")
    if not found.saved:
        return unknown("I1", "no checkpoint was committed")
    damaged = (why for name, why in found.damage if name not in found.hit)
    return first("I1", *damaged, *_loaded(found))


def _loaded(found: Evidence) -> Iterator[str]:
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


def _is_anew(found: Evidence, fault: Struck) -> bool:
    step = int(_name(fault).removeprefix("ckpt_step_"))
    rows = (row for row in found.base.checkpoints if row["step"] == step)
    return any((row["committed_at"] or 0.0) > fault.at for row in rows)


def _name(fault: Struck) -> str:
    return Path(fault.name).parent.name.partition(".")[0]


def never_goes_back(found: Evidence) -> Verdict:
    """I2: from look to look, in the databases, and none is half."""
    if found.saved is None:
        return unknown("I2", f"the checkpoints are in {found.root}, no folder of this host")
    if not found.looks:
        return unknown("I2", "nobody looked while the job ran")
    return first("I2", *_half(found), *_back(found), *_gone(found))


def _half(found: Evidence) -> Iterator[str]:
    problems = (*(one.half for one in found.looks), *(one.problem for one in found.saved or ()))
    for problem in filter(None, problems):
        if problem.partition(":")[0] not in found.hit:
            yield problem


def _back(found: Evidence) -> Iterator[str]:
    hit = {int(name.removeprefix("ckpt_step_")) for name in found.hit}
    for before, after in pairwise(found.looks):
        newest = -1 if before.newest is None or before.newest in hit else before.newest
        if newest > (-1 if after.newest is None else after.newest):
            yield f"the newest was step {newest}, behind fault {after.n} it is {after.newest}"


def _gone(found: Evidence) -> Iterator[str]:
    """Yield what a database calls committed and nobody finds."""
    there = found.there | found.hit
    root = found.root.rstrip("/")
    for row in found.base.checkpoints:
        name, is_here = f"ckpt_step_{row['step']:05d}", row["root"].rstrip("/") == root
        if row["state"] == "committed" and is_here and name not in there:
            yield f"{name} is committed by the database, and is not there"
