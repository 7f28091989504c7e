"""From what agents saw of a role's ranks to a verdict, and how both look at the doors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchloom.bus import messages
from torchloom.bus.messages import Stacks
from torchloom.rules import verdict
from torchloom.rules.hang import Finding
from torchloom.rules.verdict import Frame, Look, Standing, Verdict
from torchloom.weaver.store.rows import Rank

_GROUPS, _DEPTH = 32, 24  # of the stacks that an event keeps


@dataclass(frozen=True, slots=True)
class Evidence:
    """The ranks of one role, what was seen of them, and what that means."""

    role: str
    ranks: tuple[Rank, ...]
    standings: Mapping[int, Standing]
    stacks: Mapping[str, Stacks]  # by incarnation
    verdict: Verdict

    @property
    def finding(self) -> Finding:
        return verdict.finding(self.verdict, self.standings)

    def silent(self) -> list[int]:
        """Return the ranks whose threadlet did not answer."""
        lives = {rank.rank: self.stacks.get(rank.incarnation) for rank in self.ranks}
        return [rank for rank, seen in lives.items() if seen is not None and seen.is_silent]


def weigh(
    role: str, ranks: Sequence[Rank], steps: Mapping[int, int | None], stacks: Mapping[str, Stacks]
) -> Evidence:
    """Return the verdict on a role's ranks with all that it rests on."""
    looks = {rank.rank: _looks(stacks.get(rank.incarnation)) for rank in ranks}
    standings = {rank: Standing(_step(its, steps.get(rank)), its) for rank, its in looks.items()}
    return Evidence(role, tuple(ranks), standings, stacks, verdict.judge(standings))


def verdict_shape(found: Verdict) -> dict[str, Any]:
    return {
        "culprits": list(found.culprits),
        "awaited": list(found.awaited),
        "kind": str(found.kind),
        "words": found.words,
    }


def folded(evidence: Evidence) -> list[dict[str, Any]]:
    """Return each stack of a main thread once, with the ranks that have it; the fewest first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, standing in evidence.standings.items():
        frames = standing.looks[-1].frames if standing.looks else ()
        groups.setdefault(tuple(map(str, frames)), []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    return [{"ranks": ranks, "frames": list(frames)} for frames, ranks in ordered]


def kept_shape(evidence: Evidence) -> dict[str, Any]:
    """Return what an event keeps: enough to see why, and no more than that."""
    stacks = [{**one, "frames": one["frames"][:_DEPTH]} for one in folded(evidence)[:_GROUPS]]
    return {"role": evidence.role, **verdict_shape(evidence.verdict), "stacks": stacks}


def role_shape(evidence: Evidence) -> dict[str, Any]:
    """Return all that is known, as a door shows it."""
    return {
        "role": evidence.role,
        "verdict": verdict_shape(evidence.verdict),
        "stacks": folded(evidence),
        "ranks": [_rank_shape(evidence, rank) for rank in evidence.ranks],
    }


def _rank_shape(evidence: Evidence, rank: Rank) -> dict[str, Any]:
    seen, standing = evidence.stacks.get(rank.incarnation), evidence.standings[rank.rank]
    last = seen.looks[-1] if seen and seen.looks else messages.Look(0.0, 0.0, "")
    sight = verdict.see(standing.looks)
    return {
        "rank": rank.rank,
        "node": rank.node,
        "pid": rank.pid,
        "step": standing.step,
        "kind": str(sight.kind),
        "moved": sight.has_moved,
        "state": last.state,
        "waits_in": last.waits_in,
        "source": last.source,
        "note": last.note if seen else "its agent did not answer",
        "threadlet": bool(seen and not seen.is_silent),
        "threads": [_thread_shape(thread) for thread in last.threads],
    }


def _thread_shape(thread: messages.Thread) -> dict[str, Any]:
    frames = [
        {"function": one.function, "file": one.file, "line": one.line, "text": one.text}
        for one in thread.frames
    ]
    return {"name": thread.name, "main": thread.is_main, "frames": frames}


def _looks(seen: Stacks | None) -> tuple[Look, ...]:
    if seen is None or any(not look.state for look in seen.looks):
        return ()
    return tuple(_look(look) for look in seen.looks)


def _look(look: messages.Look) -> Look:
    main = next((thread for thread in look.threads if thread.is_main), None)
    frames = tuple(Frame(f.function, f.file, f.line, f.text) for f in main.frames) if main else ()
    seen = Look(look.at, look.cpu, look.state, look.waits_in, frames)
    if look.step < 0:
        return seen
    step, phase = look.step, look.phase
    return replace(seen, step=step, phase=phase, still=look.still, lasted=look.lasted)


def _step(looks: Sequence[Look], beaten: int | None) -> int | None:
    """Return the step in which a rank was seen; the last beat's, which may be older, if in none."""
    return looks[-1].step if looks and looks[-1].step is not None else beaten
