"""Resume a run that has ended under its own id: the incarnation before is kept.

The folder, its events and its logs are the run's. What one start had of its own (`status.json`,
`request.json`, `app.json`, `cancel.json`) moves into `attempt-N`, after the attempt it ended with.
Every step may be the last: until the new record stands, the run is what it was.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom.errors import UserError
from torchloom.launch.host import descendants
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.hosts.joint_launch import JOINED
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import LaunchRequest, RoleRequest
from torchloom.launch.variables import SPEC_VARIABLE
from torchloom.settings import environment
from torchloom.specs.api import AppState
from torchloom.specs.dataclass import dataclass

_ASKED = ("app.json", "request.json")
_CANCEL = "cancel.json"
_STATUS = "status.json"


class NotResumable(UserError):
    """The run cannot be resumed, or not now."""

    code = "not_resumable"


class NoCheckpoint(NotResumable):
    """A run would start over without having been asked to."""

    code = "no_checkpoint"

    def __init__(self, job: str) -> None:
        super().__init__(
            f"{job} has no checkpoint to resume from: resuming would start over; "
            "give --from-scratch (over HTTP `from_scratch`) to do that"
        )


class AlreadyComplete(NotResumable):
    """A run has done all its steps, and no later one was named."""

    code = "already_complete"

    def __init__(self, job: str) -> None:
        super().__init__(
            f"{job} is COMPLETED: nothing is left to resume; --until STEP (over HTTP `until`) "
            "extends it, --from STEP (`from_step`) repeats what follows a checkpoint"
        )


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a run that has ended is to be resumed."""

    ranks: int | None = None  # so many from now on
    step: int | None = None  # from its checkpoint of this step, instead of the newest
    until: int | None = None  # train up to this step, also beyond the program's own last
    from_scratch: bool = False  # it may start over, where it has no checkpoint
    distributed: Mapping[str, Any] | None = None  # another strategy, or another mesh

    def check(self, job: str, is_complete: bool, newest: int | None) -> None:
        """Refuse what cannot have been meant, given the step of the newest checkpoint, if any."""
        if is_complete and self.until is None and self.step is None:
            raise AlreadyComplete(job)
        if self.from_scratch and self.step is not None:
            raise NotResumable("--from-scratch and --from exclude each other; leave one out")
        if newest is None and not self.from_scratch:
            raise NoCheckpoint(job)
        if newest is not None and self.from_scratch:
            raise NotResumable(
                f"{job} has a checkpoint of step {newest}: leave --from-scratch out to resume "
                "from there; to train from the start, submit it again"
            )
        first = newest if self.step is None else self.step
        if self.until is not None and first is not None and self.until <= first:
            raise NotResumable(
                f"--until {self.until} leaves nothing to train: {job} resumes at step {first}"
            )


AS_IT_WAS = Continuation()


def newest_checkpoint(record: RunRecord) -> int | None:
    """Return the step of the newest committed checkpoint of a run; a store that does not answer is
    an error."""
    from torchloom.checkpoint import open_storage

    root = record.checkpoints
    if not root or not (root.startswith("s3://") or Path(root).is_dir()):
        return None
    return open_storage(root, environment()).latest()


def next_attempt(record: RunRecord) -> int:
    """Return an attempt that no start of a run has had."""
    return max((record.restarts, *(rank.attempt for rank in record.ranks))) + 1


def next_generation(record: RunRecord) -> int:
    """Return a generation that no start of a run has had."""
    return max(record.generation + 1, next_attempt(record))


def going_on(app_id: str, asked: Continuation = AS_IT_WAS) -> LaunchRequest:
    """Return the request that resumes a run which has ended, or raise why it cannot be."""
    record = ended(app_id)
    folder = RunFolder.named(app_id)
    try:
        request = folder.request()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotResumable(f"the request of {app_id} cannot be read: {error}") from error
    _check(request)
    if asked.ranks is not None:
        request = replace(request, roles=(resized(request, asked.ranks),))
    if asked.ranks is not None or asked.distributed:
        request = replace(request, roles=tuple(_rearranged(each, asked) for each in request.roles))
    return _continued(request, record, asked, request)


def anew(request: LaunchRequest, asked: Continuation = AS_IT_WAS) -> LaunchRequest:
    """Return a new request as one that continues the run of its id."""
    record = ended(request.app_id)
    try:
        before = RunFolder.named(request.app_id).request()
    except (OSError, ValueError, KeyError, TypeError):
        before = request
    return _continued(request, record, asked, before)


def _continued(
    request: LaunchRequest, record: RunRecord, asked: Continuation, before: LaunchRequest
) -> LaunchRequest:
    root = record.checkpoints or request.checkpoints
    return replace(
        request,
        attempt=next_attempt(record),
        generation=next_generation(record),
        checkpoints=root,
        resume_from=asked.step,
        until=before.until if asked.until is None else asked.until,
        own_end=before.own_end if asked.until is None else _own_end(before, record),
    )


def _own_end(before: LaunchRequest, record: RunRecord) -> int | None:
    """Return the step at which the program ended by itself, if it has come so far."""
    if before.until is None and record.state is AppState.SUCCEEDED:
        return newest_checkpoint(record)
    return before.own_end


def ended(app_id: str) -> RunRecord:
    """Return the record of a run that is over, or say that it is not."""
    record = catalog.record(app_id)
    if record is None:
        raise NotResumable(f"there is no run {app_id}; `loom ls` lists the runs")
    if not record.is_over():
        raise NotResumable(
            f"{app_id} is {record.state.name}: nothing to resume; "
            f"`loom show {app_id}` shows it, `loom stop {app_id}` ends it"
        )
    return record


def take_over(new: RunFolder, record: RunRecord) -> RunFolder:
    """Put a new start in the place of the one that has ended; from now on the run is that."""
    old = RunFolder.named(new.app_id)
    before = ended(old.app_id)
    kept = _kept(old, record)
    kept.mkdir(mode=0o700, exist_ok=True)
    (kept / _STATUS).write_text(json.dumps(before.to_dict(), indent=1))
    for name in _ASKED:
        _keep(old.path / name, kept / name)
        os.replace(new.path / name, old.path / name)
    with contextlib.suppress(FileNotFoundError):
        os.replace(old.path / _CANCEL, kept / _CANCEL)
    old.write_record(record)
    catalog.note_resumed(old.app_id)
    shutil.rmtree(new.path, ignore_errors=True)
    return old


def clear(app_id: str, attempt: int) -> None:
    """End what killed processes of an earlier start left here; they would disturb the next one.

    Another process that resumes the run at the same time is left alone: it will be refused.
    """
    from torchloom.launch.agent import stores
    from torchloom.launch.keeper.client import kill_share

    share = JobShare(app_id)
    earlier = descendants.agents_of(share) - descendants.agents_of(share, attempt)
    descendants.send(earlier - {os.getpid()}, signal.SIGKILL)
    kill_share(share)
    stores.clear(share)


def give_back(run: RunFolder, record: RunRecord) -> None:
    """Restore a run to what it was before an incarnation that was not agreed to."""
    kept = _kept(run, record)
    for name in (*_ASKED, _CANCEL):
        with contextlib.suppress(FileNotFoundError):
            os.replace(kept / name, run.path / name)
    before = RunRecord.from_dict(json.loads((kept / _STATUS).read_bytes()))
    run.write_record(before)
    shutil.rmtree(kept, ignore_errors=True)


def first_record(fresh: RunRecord, before: RunRecord) -> RunRecord:
    """Return the first record of an incarnation that resumes where another ended."""
    return replace(
        fresh,
        created_at=before.created_at,
        owner=before.owner or fresh.owner,
        parent=before.parent,
        restarts=next_attempt(before),
        generation=next_generation(before),
        checkpoints=before.checkpoints or fresh.checkpoints,
    )


def _kept(run: RunFolder, record: RunRecord) -> Path:
    return run.path / f"attempt-{record.restarts}"  # of the start before: one less, counted from 1


def _keep(path: Path, kept: Path) -> None:
    """Have a file under a second name, which stays when the first is replaced."""
    kept.unlink(missing_ok=True)
    try:
        os.link(path, kept)
    except OSError:  # a file system without links
        shutil.copyfile(path, kept)


def resized(request: LaunchRequest, ranks: int) -> RoleRequest:
    """Return the only role of a run with another number of ranks."""
    roles = request.roles
    if len(roles) != 1 or len(roles[0].replicas) != 1 or request.carrier is not None:
        raise NotResumable(
            f"{request.app_id} is more than one group of ranks on one host: "
            "it resumes with as many as it had; leave -n out"
        )
    return replace(roles[0], ranks=ranks, distributed=True, uneven=())


def _rearranged(role: RoleRequest, asked: Continuation) -> RoleRequest:
    """Return a role whose ranks get the job with the new number of workers, strategy or mesh."""
    from torchloom.specs.jobspec_shape import rearranged

    found = []
    for replica in role.replicas:
        text = replica.env.get(SPEC_VARIABLE)
        if text:
            job = rearranged(json.loads(text), asked.ranks, asked.distributed)
            replica = replace(replica, env={**replica.env, SPEC_VARIABLE: json.dumps(job)})
        elif asked.distributed:
            raise NotResumable(
                "the run has no job file, which could name another strategy or mesh: its program"
                " chooses them, by run.wrap(model, strategy=...)"
            )
        found.append(replica)
    return replace(role, replicas=tuple(found))


def _check(request: LaunchRequest) -> None:
    """Refuse what is known to fail: what it ran, or where, is gone."""
    if request.carrier is not None and request.carrier.launcher == JOINED:
        raise NotResumable(
            f"{request.app_id} was launched by one command a host; start these again with "
            f"{_variables(request)}"
        )
    for role in request.roles:
        cwd = role.cwd or request.cwd
        if not os.path.isdir(cwd):
            raise NotResumable(f"the folder it ran in no longer exists: {cwd}")
        for replica in role.replicas[:1]:
            _check_words(replica.argv, cwd, replica.env)


def _variables(request: LaunchRequest) -> str:
    return f"LOOM_RESUME, whose checkpoints are in {request.checkpoints}"


def _check_words(argv: tuple[str, ...], cwd: str, env: Mapping[str, Any]) -> None:
    from torchloom.launch.keeper.python_command import PythonCommand

    program = argv[0]
    if os.sep in program and not os.access(os.path.join(cwd, program), os.X_OK):
        raise NotResumable(f"the interpreter it ran with no longer exists: {program}")
    if os.sep not in program and not shutil.which(program, path=env.get("PATH")):
        raise NotResumable(f"{program} is no longer found on the PATH it ran with")
    command = PythonCommand.parse(argv)
    script = command.target if command and command.what == "file" else ""
    if script and not os.path.isfile(os.path.join(cwd, script)):
        raise NotResumable(f"the script it ran no longer exists: {os.path.join(cwd, script)}")
