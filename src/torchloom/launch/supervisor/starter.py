"""Start the agent of a new run, detached, and come back when the run exists."""

import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.errors import Failure
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.records.folder import RunFolder, StateNotWritable, now
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.record_writer import rank_records
from torchloom.launch.records.request import GO, READY, TAKEN, Input, LaunchRequest
from torchloom.launch.supervisor.detached import start_process
from torchloom.launch.variables import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    JOB_VARIABLE,
    NODE_VARIABLE,
    TOKEN_VARIABLE,
)

if TYPE_CHECKING:
    from torchloom.launch.hosts.joint_launch import JointHead


_LONGEST_WORDS = 4096  # of a refusal


class AgentNotStarted(Failure):
    """The agent ended before it had taken the run over."""

    code = "agent_not_started"


class TakenRun(Failure):
    """There is a run of this id, or another process is about to be it."""

    code = "run_taken"


def start(
    request: LaunchRequest,
    app: Mapping[str, Any],
    give: Input = "nothing",
    window: bytes = b"",
    fill: Callable[[Path], None] = lambda _: None,
    head: "JointHead | None" = None,
    inherited: Mapping[str, str] | None = None,
) -> socket.socket:
    """Start the run; from the return on, every verb knows it. The caller closes the channel.

    `give` says what the only rank gets as standard input: nothing, ours, or a terminal that is
    served over the returned channel and has the size of `window` from the start. `fill` may put
    files into the run's folder first. As `head`, agents of other hosts call it. `inherited` are the
    variables that its processes begin with; none: ours.
    """
    folder = RunFolder.create(request, app, _record(request))
    ours, theirs = socket.socketpair()
    try:
        fill(folder.path)
        with theirs:
            own = settings.environment() if inherited is None else inherited
            _run_process(folder, theirs.fileno(), give, request, own, head)
        if head is not None:
            head.listener.close()  # only the launch process takes calls there
        said = ours.recv(len(READY), socket.MSG_WAITALL)
        if said == TAKEN:
            raise TakenRun(ours.recv(_LONGEST_WORDS, socket.MSG_WAITALL).decode())
        if said != READY:
            raise AgentNotStarted(f"the agent did not start: {_last_words(folder)}")
        ours.sendall(GO + window)
    except BaseException:
        ours.close()
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return ours


def _record(request: LaunchRequest) -> RunRecord:
    """Return the first record of a run, or of a run that is resumed."""
    if not request.attempt:
        return _first_record(request)
    from torchloom.launch.records import resumption

    return resumption.first_record(_first_record(request), resumption.ended(request.app_id))


def _first_record(request: LaunchRequest) -> RunRecord:
    return RunRecord(
        id=request.app_id,
        name=request.name,
        session=request.session,
        owner=settings.user_name(),
        host=host_name(),
        log_dir=request.log_dir,
        created_at=now(),
        ranks=rank_records(request),
        parent=settings.environment().get(JOB_VARIABLE, ""),
        policy=dict(request.policy),
        checkpoints=request.checkpoints,
        saves=request.saves,
        deadline=request.deadline,
        shell=ProcessIdentity.of_session(),
    )


def _run_process(
    folder: RunFolder,
    channel: int,
    give: Input,
    request: LaunchRequest,
    inherited: Mapping[str, str],
    head: "JointHead | None" = None,
) -> None:
    """Start the run's first process, which leaves at once for its detached children."""
    env = {k: v for k, v in inherited.items() if k != JOB_VARIABLE}
    env |= {AGENT_VARIABLE: folder.app_id, NODE_VARIABLE: host_name()}
    env[ATTEMPT_VARIABLE] = str(request.attempt)
    agent = "here" if request.carrier is None or head is not None else "carried"
    ends, meeting = [channel], -1
    if head is not None:
        meeting = head.listener.fileno()
        ends.append(meeting)
        env[TOKEN_VARIABLE] = head.token
    words = [str(folder.path), str(channel), give, agent, str(meeting), str(request.attempt)]
    place = RunFolder.named(request.app_id) if request.attempt else folder
    try:
        log = open(place.path / "agent.log", "ab")  # noqa: SIM115
    except OSError as error:
        raise StateNotWritable(folder.path, error) from error
    with log:
        start_process(words, env, ends, 0 if give == "stdin" else None, log.fileno())


def _last_words(folder: RunFolder) -> str:
    for path in (folder.path, folder.path.with_name(folder.app_id)):
        log = path / "agent.log"
        if log.exists() and (lines := log.read_text(errors="replace").split("\n")[-2:]):
            return " ".join(lines).strip() or "it printed nothing"
    return "it printed nothing"
