"""Decide when the shards that ranks write are a checkpoint, and which checkpoints are kept.

A shard is a rank's report that its bytes are durable in a draft. What a rank reports is validated
here before it is used.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from torchloom.rules.control.command import CommandEntry, CommandKind, Status

_MOST = 1 << 62  # beyond it a number is no count
_LARGEST = 1 << 53  # bytes of a shard; beyond it readers of JSON round
_RANKS = 1 << 20
_ENTRIES = 256  # of metrics, and of versions
_LONGEST = 256  # letters of a text
_LONGEST_PLACES = 1 << 19  # letters
_HASH = re.compile("blake3:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A committed checkpoint, as far as this is about it."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeepRules:
    """What a job keeps: the last ones, every one whose step is a multiple, the best by a metric.

    Without `last` everything is kept.
    """

    last: int | None = None
    every: int | None = None
    best: str = ""
    mode: Literal["min", "max"] = "min"


def keep_rules_of(facts: Mapping[str, Any]) -> KeepRules:
    """Return what a job keeps, as a rank reported it; an invalid value keeps more, not less."""
    mode = facts.get("mode")
    best = facts.get("best")
    return KeepRules(
        _keep_count(facts.get("keep_last")),
        _keep_count(facts.get("keep_every")),
        best if isinstance(best, str) else "",
        "max" if mode == "max" else "min",
    )


def excess(
    saved: Iterable[KeptCheckpoint], rules: KeepRules, held: Collection[int] = frozenset()
) -> tuple[int, ...]:
    """Return the steps that may be removed, oldest first; `held` are still needed."""
    by_step = {each.step: each for each in saved}
    steps = sorted(by_step)
    if rules.last is None or not steps:
        return ()
    kept = {steps[-1], *steps[max(0, len(steps) - rules.last) :], *held}
    if rules.every is not None:
        kept |= {step for step in steps if step % rules.every == 0}
    kept |= _best(by_step.values(), rules)
    return tuple(step for step in steps if step not in kept)


def sound(steps: Iterable[int], bad: int | None, tainted: Collection[int]) -> frozenset[int]:
    """Return the checkpoints to return to while a loss is not finite: the newest before it.

    `bad` is the first step whose loss was not finite. What was saved before that very step may
    hold what made it so, then the one before stays, too. `tainted` was saved with such a loss.
    """
    if bad is None and not tainted:
        return frozenset()
    fine = sorted(step for step in steps if step not in tainted and (bad is None or step <= bad))
    return frozenset(fine[-2:] if fine and fine[-1] == bad else fine[-1:])


def _best(saved: Iterable[KeptCheckpoint], rules: KeepRules) -> set[int]:
    """Return the step of the best one, of several the newest; what has no number is not best."""
    if not rules.best:
        return set()
    sign = 1.0 if rules.mode == "max" else -1.0
    scores = [(each.metrics.get(rules.best), each.step) for each in saved]
    known = [
        (sign * value, step) for value, step in scores if value is not None and math.isfinite(value)
    ]
    return {max(known)[1]} if known else set()


def _keep_count(value: Any) -> int | None:
    return value if type(value) is int and value >= 1 else None


class CheckpointPhase(StrEnum):
    """How one writing of a checkpoint stands."""

    WRITING = "writing"  # shards are coming
    COMMITTING = "committing"  # all are there, and it is decided
    COMMITTED = "committed"
    FAILED = "failed"
    REMOVING = "removing"  # its removal is decided
    REMOVED = "removed"
    DAMAGED = "damaged"  # a rank could not read what was committed


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """One rank's part of one draft, and what the rank reports of the whole."""

    step: int
    generation: int
    attempt: int
    rank: int
    world_size: int
    size: int
    hash: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    places: str = ""  # where divided tensors are, packed; the manifest checks it

    @property
    def key(self) -> tuple[int, int, int]:
        """Return which writing of its job's this belongs to."""
        return self.step, self.generation, self.attempt


@dataclass(frozen=True, slots=True)
class Collected:
    """What there is of a draft; the facts of its lowest rank hold for all.

    Ranks are texts, as JSON wants its keys. A rank that failed may still write.
    """

    world_size: int = 0
    parts: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # size and hash by rank
    failed: Mapping[str, str] = field(default_factory=dict)
    lowest: int = -1
    facts: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)  # of divided tensors, by reporting rank

    def take(self, shard: WrittenShard) -> "Collected | None":
        """Return this with another shard; None for one of another number of ranks.

        The same shard again changes nothing.
        """
        if self.parts and shard.world_size != self.world_size:
            return None
        rank = str(shard.rank)
        is_lowest = self.lowest in (-1, shard.rank) or shard.rank < self.lowest
        facts = shard.facts if is_lowest else self.facts
        flags = (self.facts.get("not_finite"), shard.facts.get("not_finite"))
        return Collected(
            shard.world_size,
            {**self.parts, rank: (shard.size, shard.hash)},
            {other: why for other, why in self.failed.items() if other != rank},
            shard.rank if is_lowest else self.lowest,
            {**facts, "not_finite": True} if any(flags) else facts,
            {**self.places, **({rank: shard.places} if shard.places else {})},
        )

    def fail(self, rank: int, why: str) -> "Collected":
        """Return this with a rank marked as failed; a shard that is there stays."""
        if str(rank) in self.parts:
            return self
        return replace(self, failed={**self.failed, str(rank): why[:_LONGEST]})

    @property
    def is_whole(self) -> bool:
        """Return whether every rank has written its part."""
        return self.world_size > 0 and len(self.parts) == self.world_size

    @property
    def size(self) -> int:
        """Return the bytes of all parts."""
        return sum(size for size, _ in self.parts.values())

    @property
    def why(self) -> str:
        """Return why it cannot become whole; empty while it can."""
        return next((f"rank {rank}: {why}" for rank, why in sorted(self.failed.items())), "")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Collected":
        """Read back what `to_dict` wrote."""
        if not row:
            return cls()
        parts = {rank: (size, content) for rank, (size, content) in row["parts"].items()}
        return cls(**{**row, "parts": parts})


def shard_of(facts: Mapping[str, Any], rank: int, generation: int) -> WrittenShard | None:
    """Return the shard that a rank of a generation reports; None where that is not its own."""
    step, attempt = _count(facts.get("step")), _count(facts.get("attempt"))
    world_size, size = _count(facts.get("world_size")), _count(facts.get("size"))
    if step is None or attempt is None or world_size is None or size is None or size > _LARGEST:
        return None
    whose = (facts.get("rank"), facts.get("generation"), facts.get("name"))
    if whose != (rank, generation, f"worker_{rank}.pt") or not 0 <= rank < world_size <= _RANKS:
        return None
    content = facts.get("hash")
    if not isinstance(content, str) or not _HASH.fullmatch(content):
        return None
    places = facts.get("places", "")
    if not isinstance(places, str) or len(places) > _LONGEST_PLACES:
        return None
    return WrittenShard(
        step, generation, attempt, rank, world_size, size, content, _facts_of(facts), places
    )


def knob_position(entries: Iterable[CommandEntry], step: int) -> int:
    """Return the place in the log of knobs of a state before a step: the last that acted by it."""
    acted = (Status.COMMITTED, Status.APPLIED)
    numbers = [
        entry.number
        for entry in entries
        if entry.command.kind is CommandKind.KNOB
        and entry.status in acted
        and entry.step is not None
        and entry.step <= step
    ]
    return max(numbers, default=0)


def is_due(every: Any, times: Iterable[float], now: float) -> bool:
    """Return whether a checkpoint is due that is wanted every so many seconds.

    `times` are when one was begun or asked for. One that is further ahead than the interval was
    noted before the clock was set back, and is no evidence of how long ago that was.
    """
    is_number = type(every) in (int, float)
    return is_number and every > 0 and not any(abs(now - at) < every for at in times)


def _facts_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a manifest can hold of a rank's other facts."""
    texts = {name: _text(facts.get(name)) for name in ("strategy", "backend", "trigger")}
    flags = {name: facts.get(name) is True for name in ("optimizer_state", "rng_state")}
    trainer = facts.get("trainer")
    of_trainer = {"trainer": trainer} if isinstance(trainer, dict) else {}
    return {
        **texts,
        **flags,
        **of_trainer,  # what the program's trainer saved; the manifest checks it
        "epoch": _count(facts.get("epoch")) or 0,
        "not_finite": facts.get("not_finite") is True,  # a loss, when this was saved
        "versions": {_text(name): _text(text) for name, text in _items(facts.get("versions"))},
        "metrics": {
            _text(name): float(value)
            for name, value in _items(facts.get("metrics"))
            if type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
        },
    }


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())[:_ENTRIES] if isinstance(value, dict) else []


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return "".join(letter for letter in text[:_LONGEST] if letter.isprintable())


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None
