"""Requests that change something: commands to the ranks of a job, and reports on devices."""

import asyncio
import time
import uuid
from dataclasses import replace
from typing import Any

from torchloom import accounts
from torchloom.errors import Ambiguous, NotFound, shorten
from torchloom.launch.records import catalog
from torchloom.rules.control.command import Command, CommandEntry, CommandKind, NotAKnob, Status
from torchloom.rules.control.undo import NoUndo, condition_of, undo
from torchloom.rules.devices import DeviceState
from torchloom.weaver import views
from torchloom.weaver.api.refusals import (
    CommandAborted,
    CommandRefused,
    JobOver,
    JobReleased,
    NoBoundary,
    NothingToUndo,
    OtherReplicas,
)
from torchloom.weaver.api.request import (
    BadRequest,
    DeviceEventRequest,
    DeviceImpactRequest,
    DigestRequest,
    JobCommandRequest,
    SetRequest,
    UndoRequest,
    job_named,
)
from torchloom.weaver.commands.driver import ID, wrapped
from torchloom.weaver.commands.rows import NoKnobs, checked, knobs_of
from torchloom.weaver.health.responses import impact_of
from torchloom.weaver.jobs.registry import REPLICA_OF, SAVING, is_over, is_released
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import JobRow, RankProcessRow

_YOUNG = 3.0  # seconds in which the first step of a process may not be over
_LOOK = 0.05  # seconds between two checks for the knobs of a job that starts


class CommandApi:
    """Turns requests into commands, and waits for their outcomes."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    def living(self, asked: JobCommandRequest) -> JobRow:
        """Return the job of a command, which must have ranks."""
        job = job_named(self._weaver.jobs, asked.job)
        if is_over(job):
            raise JobOver(job)
        if is_released(job):
            raise JobReleased(job)
        return job

    async def again(self, asked: JobCommandRequest) -> dict[str, Any] | None:
        """Return the outcome of an earlier command with the same id; none if there is none.

        Its job may have ended since, and its request may be refused by now.
        """
        name, meant = asked.id, asked.job
        job = self._weaver.jobs.get(self._weaver.command_rows.job_of(name) or "") if name else None
        if job is None or (meant and job_named(self._weaver.jobs, meant).id != job.id):
            return None
        entry = next(one for one in self._weaver.command_rows.entries(job.id) if one.id == name)
        if not entry.status.is_final and not is_over(job):
            entry = await self._weaver.commands.ask(job.id, entry.command, asked.wait)
        return self._answer(asked, job, entry)

    async def set(self, asked: SetRequest) -> dict[str, Any]:
        """Change knobs, all in one step; a guard that fires undoes the change."""
        if done := await self.again(asked):
            return done
        job, values = await self._settable(asked)
        payload = wrapped(values, asked.hold, asked.undo)
        if asked.guard:
            await self._check_guard(job, asked.guard, asked.span)
            asked = replace(asked, id=self.name(asked, job))
            self._weaver.guards.add(job.id, asked.id, asked.guard, asked.span)
        return await self.command(asked, job, CommandKind.KNOB, payload)

    async def _settable(self, asked: SetRequest) -> tuple[JobRow, dict[str, Any]]:
        """Return the values as the job's knobs take them; wait for the knobs of one that starts."""
        deadline = time.monotonic() + asked.wait
        while True:
            job = self.living(asked)
            ranks = [rank for rank in self._weaver.roster.ranks(job.id) if rank.state == "up"]
            try:
                return job, checked(job, ranks, dict(asked.values))
            except (NoKnobs, NotAKnob, NotFound) as error:
                is_young = isinstance(error, NotAKnob) and _are_young(ranks)
                if time.monotonic() >= deadline and not self._has_boundary(job):
                    raise self._no_boundary(job, asked.wait) from None
                if time.monotonic() >= deadline or not (is_young or self._is_beginning(ranks)):
                    raise
            await asyncio.sleep(_LOOK)

    def _is_beginning(self, ranks: list[RankProcessRow]) -> bool:
        """Tell whether ranks are before their first step, in which their knobs are found."""
        return not ranks or any(self._is_before_its_first_step(rank) for rank in ranks)

    def _is_before_its_first_step(self, rank: RankProcessRow) -> bool:
        progress = self._weaver.heartbeats.progress(rank)
        if rank.boundary == "none" or progress is None:
            return rank.boundary == "none" or not knobs_of([rank])
        return progress.step < 1

    async def undo(self, asked: UndoRequest) -> dict[str, Any]:
        """Undo a change of knobs: the one that is named, or the last one in force."""
        if done := await self.again(asked):
            return done
        job = self.living(asked)
        found = undo(self._weaver.commands.state(job.id).audit, asked.command)
        if isinstance(found, NoUndo):
            raise NothingToUndo(f"nothing to undo in job {job.id}: {found.why}")
        asked = replace(asked, reason=asked.reason or f"undo of {found.command}")
        payload = wrapped(found.values, False, found.command)
        return await self.command(asked, job, CommandKind.KNOB, payload)

    async def pause(self, asked: JobCommandRequest) -> dict[str, Any]:
        return await self._once(asked, CommandKind.PAUSE)

    async def resume(self, asked: JobCommandRequest) -> dict[str, Any]:
        return await self._once(asked, CommandKind.RESUME)

    async def stop(self, asked: JobCommandRequest) -> dict[str, Any]:
        """Have the ranks end after a step; the launch process ends those that cannot."""
        kind = CommandKind.STOP if asked.at is None else CommandKind.STOP_AT
        return await self._once(asked, kind)

    async def _once(self, asked: JobCommandRequest, kind: CommandKind) -> dict[str, Any]:
        """Send a command, unless it was sent before."""
        return await self.again(asked) or await self.command(asked, self.living(asked), kind)

    async def checkpoint(self, asked: JobCommandRequest) -> dict[str, Any]:
        """Have a checkpoint made; wait until it is committed."""
        began = time.monotonic()
        answer = await self._once(asked, CommandKind.CHECKPOINT)
        step, generation = answer["effective_step"], answer["generation"]
        known = self._weaver.jobs.get(answer["job"])
        if (
            known is None
            or step is None
            or answer["state"] != Status.APPLIED
            or SAVING not in known.facts
        ):
            return {**answer, "checkpoint": None}  # a program that saves by itself reports nothing
        left = asked.wait - (time.monotonic() - began)
        row = await self._weaver.checkpoint_rows.settled(known.id, step, generation, max(0.0, left))
        return {**answer, "checkpoint": views.checkpoint_shape(row) if row else None}

    async def digest(self, asked: DigestRequest) -> dict[str, Any]:
        """Have the ranks start a step digest log of this name; without a name, end it."""
        log = asked.log
        if log and not (ID.fullmatch(log) and log[0].isalnum()):
            raise BadRequest(f"{log!r} is not the name of a log: letters, digits, _ . - only")
        return await self.command(asked, self.living(asked), CommandKind.DIGEST, {"log": log})

    async def device_event(self, asked: DeviceEventRequest) -> dict[str, Any]:
        """Store a report on a device; an unknown device is added only with `new`."""
        device, state = asked.device, _state(asked.state)
        if not asked.new:
            device = self._device(device)
        source = asked.source or asked.author
        self._weaver.responses.device(device, state, source, asked.reason)
        found = self._weaver.devices.get(device)
        assert found is not None
        return views.device_shape(found, self._weaver.devices.processes(device))

    async def device_outlook(self, asked: DeviceImpactRequest) -> dict[str, Any]:
        """Return the impact on jobs that a state of devices would have; nothing is changed."""
        state = _state(asked.state)
        names = sorted(self._device(name) for name in set(asked.devices or ()))
        found = [self._weaver.devices.get(name) for name in names]
        effects = {name: self._weaver.responses.outlook(name, state) for name in names}
        users = {name: self._weaver.devices.map.processes_on(name) for name in names}
        return {
            "devices": [views.device_shape(one, []) for one in found if one is not None],
            "jobs": impact_of(effects, users),
        }

    def _device(self, name: str) -> str:
        """Return the device with this uuid, or with one that begins so."""
        known = [device.uuid for device in self._weaver.devices.all()]
        found = [name] if name in known else [uuid for uuid in known if uuid.startswith(name)]
        if len(found) > 1:
            raise Ambiguous("device", name, found)
        if not found:
            remedy = "`loom devices` lists them, `loom devices register` makes one known"
            raise NotFound("device", name, known, remedy)
        return found[0]

    async def _check_guard(self, job: JobRow, words: str, span: int) -> None:
        condition = condition_of(words)
        if condition is None:
            form = "write 'loss>2.0', 'loss>1.5x' (of what it was before) or 'loss is nan'"
            raise BadRequest(f"{shorten(words)!r} is not a guard condition; {form}")
        if span < 1:
            raise BadRequest("a guard watches over one step at least")
        known = await self._weaver.aside(self._weaver.store.records.names, job.id)
        if condition.metric not in known:
            there = f"the job has logged {', '.join(known)}" if known else "it has logged nothing"
            raise NotFound("metric", condition.metric, known, there)

    async def command(
        self,
        asked: JobCommandRequest,
        job: JobRow,
        kind: CommandKind,
        payload: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Have the ranks of a job do something at one step; return the outcome."""
        if kind.is_aligned:
            self._check_replicas(job)
        command = Command(
            self.name(asked, job),
            kind,
            payload or {},
            asked.author,
            asked.reason,
            asked.at,
        )
        entry = await self._weaver.commands.ask(job.id, command, asked.wait)
        if entry.status is Status.ACCEPTED and asked.wait and not self._has_boundary(job):
            error = self._no_boundary(job, asked.wait)
            self._weaver.commands.withdraw(job.id, command.id, str(error))
            raise error
        if entry.status is Status.ACCEPTED and asked.wait and (part := self._part_of(job)):
            refused = CommandRefused(f"{kind} refused: {part}")
            self._weaver.commands.withdraw(job.id, command.id, str(refused))
            raise refused
        return self._answer(asked, job, entry)

    def _has_boundary(self, job: JobRow) -> bool:
        """Tell whether a rank of a job has reached a step boundary."""
        return any(rank.boundary != "none" for rank in self._weaver.roster.ranks(job.id))

    def _part_of(self, job: JobRow) -> str:
        """Return why no command begins, if a launcher inside the job has ranks that do not report.

        The ranks of the job's own launch may still come: those are waited for.
        """
        ranks = [rank for rank in self._weaver.roster.ranks(job.id) if rank.state == "up"]
        world = max((rank.world_size for rank in ranks), default=0)
        run = accounts.within(job.account, catalog.record, job.id)
        if run is None or len(run.ranks) >= world or len(ranks) >= world:
            return ""
        return (
            f"partly attached: the program trains with {world} ranks, of which {len(ranks)} report,"
            " and a change would make their weights differ; start them all with"
            f" `loom launch -n {world} ...`"
        )

    def _no_boundary(self, job: JobRow, waited: float) -> NoBoundary:
        runs = accounts.within(job.account, catalog.everything)
        inner = [run.id for run in runs if run.parent == job.id and not run.is_over()]
        return NoBoundary(job, waited, inner)

    def _check_replicas(self, job: JobRow) -> None:
        """Refuse what would change one replica group of a training and not the others."""
        project = job.facts.get(REPLICA_OF)
        if project is None:
            return
        ours = {rank.replica for rank in self._weaver.roster.ranks(job.id)}
        others = [
            other.id
            for other in self._weaver.jobs.active()
            if other.id != job.id and other.facts.get(REPLICA_OF) == project
            if not ours & {rank.replica for rank in self._weaver.roster.ranks(other.id)}
        ]
        if others:
            raise OtherReplicas(job, str(project), others)

    def name(self, asked: JobCommandRequest, job: JobRow) -> str:
        """Return the id of a command: the given one, if it is valid, or a new one."""
        name = asked.id
        if not name:
            return uuid.uuid4().hex[:16]
        if not ID.fullmatch(name):
            raise BadRequest(f"{name!r} is not the id of a command: letters, digits, _ . - only")
        if self._weaver.command_rows.job_of(name) not in (None, job.id):
            raise BadRequest(f"a command of another job has the id {name!r}; choose another")
        return name

    def _answer(self, asked: JobCommandRequest, job: JobRow, entry: CommandEntry) -> dict[str, Any]:
        if entry.status is Status.REFUSED:
            raise CommandRefused(f"{entry.command.kind} refused: {entry.why}")
        if entry.status is Status.ABORTED:
            raise CommandAborted(f"{entry.command.kind} had no effect: {entry.why}")
        row = next(r for r in self._weaver.command_rows.audit(job.id) if r.id == entry.id)
        guards = self._weaver.guards.of(job.id) if asked.guard else {}
        return views.command_shape(
            row, self._weaver.command_rows.acks([entry.id]), guards.get(entry.id)
        )


def _are_young(ranks: list[RankProcessRow]) -> bool:
    """Tell whether a rank registered so recently that its first step may still run."""
    return any(abs(time.time() - rank.registered_at) < _YOUNG for rank in ranks)


def _state(name: str) -> DeviceState:
    try:
        return DeviceState(name)
    except ValueError:
        known = ", ".join(DeviceState)
        raise BadRequest(f"a device is {known}, not {name!r}") from None
