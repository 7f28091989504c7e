"""Answers at the door that change something: a command with an author, or a device's event."""

import uuid
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, UserError
from torchloom.rules.command import Command, Entry, Kind, Status
from torchloom.rules.drmap import DeviceState
from torchloom.weaver import shapes
from torchloom.weaver.jobs import is_over
from torchloom.weaver.knobs import checked
from torchloom.weaver.naming import job_named
from torchloom.weaver.question import BadQuestion, Question
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import Job
from torchloom.weaver.wire import ID, wrapped

_PATIENCE, _MOST = 30.0, 3600.0  # seconds to wait for an outcome


class JobOver(UserError):
    """The job has ended: nothing of it can be changed any more."""

    code = "job_over"

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} has ended ({job.state}); `loom resume {job.id}` goes on")


class CommandRefused(UserError):
    """A rank, or the rules, did not agree."""

    code = "refused"


class CommandAborted(Failure):
    """The ranks did not come to an agreement."""

    code = "aborted"


class Acting:
    """Turn what is asked for into commands, and wait for what becomes of them."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def set(self, asked: Question) -> dict[str, Any]:
        """Change knobs, all in one step."""
        job = self._living(asked)
        ranks = [rank for rank in self._weaver.roster.ranks(job.id) if rank.state == "up"]
        values = checked(job, ranks, asked.mapping("values"))
        return await self._command(asked, job, Kind.KNOB, wrapped(values, asked.flag("hold")))

    async def pause(self, asked: Question) -> dict[str, Any]:
        return await self._command(asked, self._living(asked), Kind.PAUSE)

    async def resume(self, asked: Question) -> dict[str, Any]:
        return await self._command(asked, self._living(asked), Kind.RESUME)

    async def stop(self, asked: Question) -> dict[str, Any]:
        """Have the ranks end after a step; the launch process ends those that cannot."""
        kind = Kind.STOP if asked.number("at") is None else Kind.STOP_AT
        return await self._command(asked, self._living(asked), kind)

    async def checkpoint(self, asked: Question) -> dict[str, Any]:
        return await self._command(asked, self._living(asked), Kind.CHECKPOINT)

    async def device_event(self, asked: Question) -> dict[str, Any]:
        """Take in what somebody says of a device."""
        device, said = asked.needed("device"), asked.needed("state")
        try:
            state = DeviceState(said)
        except ValueError:
            known = ", ".join(DeviceState)
            raise BadQuestion(f"a device is {known}, not {said!r}") from None
        source = asked.text("source") or self._author(asked)
        self._weaver.responses.device(device, state, source, asked.text("reason"))
        found = self._weaver.devices.get(device)
        assert found is not None
        return shapes.device_shape(found, self._weaver.devices.processes(device))

    def _living(self, asked: Question) -> Job:
        job = job_named(self._weaver.jobs, asked.text("job"))
        if is_over(job):
            raise JobOver(job)
        return job

    async def _command(
        self, asked: Question, job: Job, kind: Kind, payload: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        name = asked.text("id") or uuid.uuid4().hex[:16]
        if not ID.fullmatch(name):
            raise BadQuestion(f"{name!r} is no id of a command: letters, digits, _ . - only")
        if self._weaver.ledger.job_of(name) not in (None, job.id):
            raise BadQuestion(f"a command of another job has the id {name!r}; choose another")
        command = Command(
            name,
            kind,
            payload or {},
            self._author(asked),
            asked.text("reason"),
            asked.number("at"),
        )
        patience = asked.seconds("wait", _PATIENCE, _MOST)
        entry = await self._weaver.commands.ask(job.id, command, patience)
        return self._answer(job, entry)

    def _answer(self, job: Job, entry: Entry) -> dict[str, Any]:
        if entry.status is Status.REFUSED:
            raise CommandRefused(f"{entry.command.kind} refused: {entry.why}")
        if entry.status is Status.ABORTED:
            raise CommandAborted(f"{entry.command.kind} came to nothing: {entry.why}")
        row = next(r for r in self._weaver.ledger.audit(job.id) if r.id == entry.id)
        return shapes.command_shape(row, self._weaver.ledger.acks([entry.id]))

    def _author(self, asked: Question) -> str:
        return asked.text("author") or settings.user_name()
