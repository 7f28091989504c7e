"""Checkpoints: ranks report shards, the weaver decides, agents execute.

    writing ──all shards──▶ committing ──agent──▶ committed ──not kept──▶ removing ──▶ removed
       └──────────────────────┴──────▶ failed          └──cannot be read──▶ damaged

Each transition is stored before anything is sent. Only shards of the job's newest generation count.
What was decided while a generation was the newest is carried out, unless the store refuses it: it
fences older generations by itself.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from torchloom.checkpoint import (
    BadManifest,
    Manifest,
    Shard,
    ShardMap,
    TrainerFiles,
    shard_name,
)
from torchloom.messages.plane import Committed, Event, Head
from torchloom.rules.checkpoints import (
    CheckpointPhase,
    Collected,
    WrittenShard,
    knob_position,
    shard_of,
)
from torchloom.rules.control.command import CommandEntry
from torchloom.weaver.checkpoints.requests import (
    RESTORED,
    AgentReply,
    CheckpointPruning,
    CheckpointRequests,
    CheckpointRows,
    writer_of,
)
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.events import RankEventReceived, RankRegistered
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import SAVING, JobRegistry, is_over
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import CheckpointRow, JobRow, RankProcessRow

_MOST = 1000  # early events that are kept; the oldest are dropped first
ROOT = "checkpoints"  # the fact of a job that holds where its checkpoints are
_PATIENCE = 60.0  # seconds after a job's end in which reports on shards may still arrive
_REFUSED = ("fenced", "already_committed")
_MINE = (
    *("checkpoint_shard", "checkpoint_failed", "checkpoint_damaged", "checkpoint_gone"),
    *(RESTORED, "checkpointing"),
)


def manifest_of(
    job: JobRow,
    row: CheckpointRow,
    collected: Collected,
    entries: Iterable[CommandEntry],
    now: float,
) -> str:
    """Return the manifest to commit. It is stored, since a repeated commit needs the same text."""
    facts = collected.facts
    parts = sorted((int(rank), part) for rank, part in collected.parts.items())
    manifest = Manifest(
        job_id=job.id,
        run_id=job.run_id,
        step=row.step,
        epoch=facts["epoch"],
        world_size=collected.world_size,
        strategy=facts["strategy"],
        backend=facts["backend"],
        shards=tuple(Shard(shard_name(rank), *part, rank) for rank, part in parts),
        optimizer_state=facts["optimizer_state"],
        rng_state=facts["rng_state"],
        generation=row.generation,
        attempt=row.attempt,
        created_at=datetime.fromtimestamp(now, UTC).isoformat(),
        knobs=knob_position(entries, row.step),
        versions=facts["versions"],
        metrics=facts["metrics"],
        trigger=facts["trigger"],
        trainer=trainer_files_of(collected),
        sharding=sharding_of(collected),
    )
    return manifest.to_json()


def trainer_files_of(collected: Collected) -> TrainerFiles | None:
    """Return what the program's trainer has saved; raise BadManifest if that is malformed."""
    found = collected.facts.get("trainer")
    return None if found is None else TrainerFiles.from_dict(found)


def sharding_of(collected: Collected) -> ShardMap | None:
    """Return where the parts of divided tensors are; raise BadManifest if that is malformed."""
    return ShardMap.joined(collected.places.values(), collected.world_size)


EarlyEvent = tuple[str, Event]  # by which agent


class EarlyEvents:
    """Events that wait until their rank has registered."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped
        self._kept: deque[EarlyEvent] = deque()

    def keep(self, agent: str, event: Event) -> None:
        """Keep an event for later."""
        self._kept.append((agent, event))
        if len(self._kept) > _MOST:
            self._kept.popleft()
            self._dropped["unknown_rank"] += 1

    def take(self, incarnation: str) -> list[EarlyEvent]:
        """Remove and return the events of a process."""
        if not self._kept:
            return []
        found = [one for one in self._kept if one[1].head.incarnation == incarnation]
        for one in found:
            self._kept.remove(one)
        return found


class CheckpointCollector:
    """Turns shards into checkpoints."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        roster: Roster,
        command_rows: CommandRows,
        rows: CheckpointRows,
        requests: CheckpointRequests,
        pruning: CheckpointPruning,
        dropped: Counter[str],
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._roster = roster
        self._command_rows = command_rows
        self._rows = rows
        self._requests = requests
        self._pruning = pruning
        self._dropped = dropped
        self._refused: set[tuple[str, int, int]] = set()
        self._early = EarlyEvents(dropped)

    def on_rank_event(self, received: RankEventReceived) -> None:
        """Handle an event of a rank about checkpoints, also when its job is over."""
        if received.event.kind in _MINE:
            self._handle(received.agent, received.event)

    def _handle(self, agent: str, event: Event) -> None:
        job, whose = self._jobs.find(event.head.job), self._process_of(event.head)
        if job is not None and event.head.generation < job.generation:
            self._refuse(job, agent, event)
        elif job is None or whose is None or event.head.generation > job.generation:
            self._early.keep(agent, event)
        elif (whose.job, whose.rank, whose.agent) != (job.id, event.head.rank, agent):
            self._dropped["unknown_rank"] += 1
        elif whose.generation <= event.head.generation:  # a surviving rank may report later
            self._take(job, event)

    def on_rank_registered(self, registered: RankRegistered) -> None:
        """Handle the events that a rank sent before it, or its generation, was registered."""
        if early := self._early.take(registered.rank.incarnation):
            for agent, event in early:
                self._handle(agent, event)
            self._rows.settle()

    def tick(self) -> None:
        """Fail what cannot become complete, and repeat requests without a reply."""
        for row in self._rows.open():
            job = self._jobs.get(row.job)
            if row.state == CheckpointPhase.WRITING and job is not None:
                self._check(job, row)
        self._requests.tick()

    def _take(self, job: JobRow, event: Event) -> None:
        facts, head = event.facts, event.head
        match event.kind:
            case "checkpoint_shard":
                shard = shard_of(facts, head.rank, head.generation)
                if shard is None:
                    self._dropped["malformed_shard"] += 1
                else:
                    self._shard(job, shard)
            case "checkpoint_failed":
                self._rank_failed(job, head, facts)
            case "checkpoint_damaged":
                self._damaged(job, head.rank, facts)
            case "checkpoint_gone":
                self._gone(job, facts)
            case "restored" if type(facts.get("step")) is int:
                self._mark(job, RESTORED, {"step": facts["step"], "generation": head.generation})
            case "checkpointing" if head.rank == 0:
                self._mark(job, SAVING, {**facts, "since": event.time})

    def _shard(self, job: JobRow, shard: WrittenShard) -> None:
        now = self._rows.now()
        row = self._rows.get(job.id, shard.key) or CheckpointRow(
            job.id, *shard.key, created_at=now, changed_at=now
        )
        if row.state not in (CheckpointPhase.WRITING, CheckpointPhase.FAILED):
            return  # a repeated report
        before = Collected.from_dict(row.shards)
        after = before.take(shard)
        if after is None or not _is_sound(after):
            self._dropped["malformed_shard"] += 1
        elif after != before:
            self._collected(job, row, after)

    def _rank_failed(self, job: JobRow, head: Head, facts: Mapping[str, Any]) -> None:
        """Handle that a rank could not write its shard."""
        why = str(facts.get("why") or "a rank could not write its part")
        rows = [row for row in self._rows.of(job.id) if row.generation == head.generation]
        row = next((row for row in rows if row.step == facts.get("step")), None)
        if row is None or row.state not in (CheckpointPhase.WRITING, CheckpointPhase.FAILED):
            return  # no other rank has written a shard; the rank's own event has the reason
        if facts.get("retrying") is not True:
            self._collected(job, row, Collected.from_dict(row.shards).fail(head.rank, why))
        elif row.state == CheckpointPhase.WRITING:
            self._rows.keep(replace(row, reason=f"rank {head.rank}: {why}"))

    def _collected(self, job: JobRow, row: CheckpointRow, collected: Collected) -> None:
        trainer = trainer_files_of(collected)
        words = {
            "world_size": collected.world_size,
            "bytes": collected.size + (trainer.size if trainer else 0),
            "trainer": trainer.kind if trainer else "",
            "path": trainer.path if trainer else "",
            "metrics": collected.facts.get("metrics", {}),
            "trigger": collected.facts.get("trigger", ""),
            "shards": collected.to_dict(),
            "changed_at": self._rows.now(),
        }
        before, row = (
            row.state,
            replace(row, **words, state=str(CheckpointPhase.WRITING), reason=""),
        )
        if collected.why:
            self._fail(replace(row, state=before), collected.why)
        elif collected.is_whole:
            self._decide(job, row)
        else:
            self._rows.keep(row)

    def _decide(self, job: JobRow, row: CheckpointRow) -> None:
        """Commit a checkpoint whose shards are all durable, and fail older incomplete ones.

        A rank writes one checkpoint after the other, so older ones get no more shards.
        """
        root = self._root(job.id)
        if not root:
            self._rows.keep(
                replace(row, reason="the job's launch process has not reported where they go")
            )
            return
        entries = self._command_rows.entries(job.id)
        collected = Collected.from_dict(row.shards)
        text = manifest_of(job, row, collected, entries, self._rows.now())
        row = replace(
            row, state=str(CheckpointPhase.COMMITTING), root=root, manifest=text, reason=""
        )
        with self._state.together():
            for other in self._rows.open():
                if (
                    other.job == job.id
                    and other.state == CheckpointPhase.WRITING
                    and other.key < row.key
                ):
                    self._fail(other, f"given up: step {row.step} was written after it")
            self._rows.put(row)
        self._requests.run(row)

    def _check(self, job: JobRow, row: CheckpointRow) -> None:
        """Fail a checkpoint that gets no more shards, or commit a complete one."""
        ended = job.ended_at if is_over(job) else None
        if row.generation < job.generation:
            self._fail(row, f"generation {job.generation} began before all ranks had written")
        elif Collected.from_dict(row.shards).is_whole and self._root(job.id):
            self._decide(job, row)
        elif ended is not None and abs(self._rows.now() - max(ended, row.changed_at)) > _PATIENCE:
            self._fail(row, row.reason or "the job ended before all ranks had written")

    async def on_reply(self, subject: str, data: bytes, reply: str) -> None:
        """Handle an agent's reply to a checkpoint request."""
        if (answer := self._requests.receive(subject, data)) is not None:
            handle = self._done if answer.is_final else self._later
            handle(answer.row, answer.reply)

    def _done(self, row: CheckpointRow, reply: AgentReply) -> None:
        if not isinstance(reply, Committed):
            self._pruning.removed(row, reply)
        elif not reply.code:
            self._committed(row, reply.place)
        else:
            kind = "checkpoint_refused" if reply.code in _REFUSED else "checkpoint_failed"
            self._fail(row, reply.why, kind)

    def _committed(self, row: CheckpointRow, place: str) -> None:
        now = self._rows.now()
        if Collected.from_dict(row.shards).facts.get("not_finite"):
            self._pruning.taint(row)
        done = replace(
            row,
            state=str(CheckpointPhase.COMMITTED),
            place=place,
            committed_at=now,
            changed_at=now,
            reason="",
            shards={},
            manifest="",
        )
        facts = {
            **writer_of(done),
            "bytes": done.bytes,
            "place": place,
            "seconds": round(max(0.0, now - done.created_at), 6),
            "world_size": done.world_size,
            "trigger": done.trigger,
            "metrics": done.metrics,
        }
        if done.trainer:
            facts |= {"trainer": done.trainer, "path": done.path}
        with self._state.together():
            self._replaced(done)
            self._rows.put(done, "checkpoint_committed", facts=facts)
        self._pruning.prune(done)

    def _replaced(self, row: CheckpointRow) -> None:
        """Mark an earlier checkpoint of the step as damaged: a new one could be committed."""
        for other in self._rows.committed(row.job):
            if other.step == row.step and other.key != row.key:
                why = f"damaged, and set aside when generation {row.generation} wrote it again"
                self._rows.put(replace(other, state=str(CheckpointPhase.DAMAGED), reason=why))

    def _later(self, row: CheckpointRow, reply: AgentReply) -> None:
        """Store once for each reason that the store is unavailable; the request is repeated."""
        if row.reason == reply.why or row.state == CheckpointPhase.REMOVING:
            return
        facts = {**writer_of(row), "retrying": True}
        changed = replace(row, reason=reply.why)
        self._rows.put(changed, "checkpoint_failed", reason=reply.why, facts=facts)

    def _fail(self, row: CheckpointRow, why: str, kind: str = "checkpoint_failed") -> None:
        is_news = row.state != CheckpointPhase.FAILED
        facts = (
            {**writer_of(row), "retrying": False} if kind == "checkpoint_failed" else writer_of(row)
        )
        failed = replace(row, state=str(CheckpointPhase.FAILED), reason=why, manifest="")
        failed = replace(failed, changed_at=self._rows.now())
        self._rows.put(failed, kind if is_news else "", reason=why, facts=facts)

    def _refuse(self, job: JobRow, agent: str, event: Event) -> None:
        """Refuse the shard of an older generation; one event of it is kept."""
        self._dropped["old_generation"] += 1
        step = event.facts.get("step")
        whose = (job.id, step if type(step) is int else -1, event.head.generation)
        theirs = {rank.agent for rank in self._roster.ranks(job.id)}
        if event.kind != "checkpoint_shard" or whose in self._refused or agent not in theirs:
            return
        self._refused.add(whose)
        why = f"written by generation {event.head.generation}; the job is in {job.generation}"
        row = CheckpointRow(job.id, whose[1], event.head.generation, 0)
        facts = {"generation": event.head.generation, "rank": event.head.rank}
        self._rows.note(row, "checkpoint_refused", reason=why, facts=facts)

    def _damaged(self, job: JobRow, rank: int, facts: Mapping[str, Any]) -> None:
        why = str(facts.get("why") or "it cannot be read")
        for row in self._rows.committed(job.id):
            if row.step == facts.get("step"):
                self._spoil(row, str(facts.get("name") or ""), why, rank=rank)

    def _gone(self, job: JobRow, facts: Mapping[str, Any]) -> None:
        """Remove what is left of a checkpoint whose files the program's trainer has removed."""
        for row in self._rows.committed(job.id):
            if row.trainer and row.step == facts.get("step"):
                why = f"{row.trainer} removed {row.path}"
                self._pruning.remove(row, row.trainer, why)

    def verified(self, row: CheckpointRow, author: str, name: str, why: str) -> CheckpointRow:
        """Store that a user verified a checkpoint; `why` is set where a file is damaged."""
        if why:
            return self._spoil(row, name, f"{name}: {why}", author=author)
        facts = {**writer_of(row), "place": row.place}
        self._rows.note(row, "checkpoint_verified", author=author, facts=facts)
        return row

    def _spoil(self, row: CheckpointRow, name: str, why: str, **words: Any) -> CheckpointRow:
        damaged = replace(row, state=str(CheckpointPhase.DAMAGED), reason=why)
        about = {**writer_of(row), "place": row.place, "name": name}
        self._rows.put(damaged, "checkpoint_damaged", reason=why, facts=about, **words)
        return damaged

    def _process_of(self, head: Head) -> RankProcessRow | None:
        """Return the rank of the process that sends this."""
        row = self._roster.of_incarnation(head.incarnation)
        if row is None:  # its job may have ended before this weaver began
            found = self._state.find(RankProcessRow, job=head.job, rank=head.rank)
            row = next((each for each in found if each.incarnation == head.incarnation), None)
        return row

    def _mark(self, job: JobRow, name: str, facts: Mapping[str, Any]) -> None:
        if job.facts.get(name) != facts:
            self._jobs.mark(job.id, {name: dict(facts)})

    def _root(self, job: str) -> str:
        known = self._jobs.get(job)
        root = known.facts.get(ROOT) if known else None
        return root if isinstance(root, str) else ""


def _is_sound(collected: Collected) -> bool:
    """Tell whether a manifest can hold what was reported."""
    try:
        trainer_files_of(collected)
        sharding_of(collected)
    except BadManifest:
        return False
    return True
