"""A run where it was started, by FOLDER CHANNEL HOW AGENT MEETING ATTEMPT.

Three processes, all forks of one. The guard waits; the launch process carries out the recovery
rule and writes the record; the agent has the ranks of this host. If the agent dies, the guard makes
another; if the launch process dies, the agent ends its ranks and the guard writes the run down as
lost. All are detached: no terminal, no session and no command that started them can take them
along.
"""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from torchloom.errors import Failure
from torchloom.launch.agent.guard import AgentGuard, fork
from torchloom.launch.host import sockets
from torchloom.launch.host.descendants import JobShare, become_subreaper
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.host.sockets import ENDING, FORWARDED, SignalPipe, socket_path
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import LAUNCHER_LOST
from torchloom.launch.records.record_writer import RunRecordWriter, notify_weaver
from torchloom.launch.records.request import GO, READY, TAKEN

CLAIMS = "claims"  # a file of which each run has one byte locked, far beyond its end
_PLACES = (1 << 61) - 1  # so many that two ids hardly ever have one
_PATIENCE = 60.0  # seconds for one that came to nothing to clear up
_LOOK = 0.01


class RunTaken(Failure):
    """There is a run of this id, or another process is about to make one."""

    code = "run_taken"

    def __init__(self, app_id: str) -> None:
        super().__init__(f"a run {app_id} already exists; `loom show {app_id}` shows it")


class RunActive(Failure):
    """Another process has resumed the run, or it is still running."""

    code = "run_goes_on"

    def __init__(self, app_id: str) -> None:
        super().__init__(
            f"{app_id} runs, or is being resumed by another process; `loom show {app_id}` shows it"
        )


def claim(app_id: str) -> None:
    """Make this process the only one on this host that may be the run of an id, until it ends.

    The kernel gives it to the next when the process is gone. A run that its maker did not agree
    to is waited for: it goes within moments.
    """
    run, deadline = RunFolder.named(app_id), time.monotonic() + _PATIENCE
    file = os.open(socket_path(CLAIMS), os.O_RDWR | os.O_CREAT, 0o600)
    while not _lock(file, _place(app_id)):
        if run.is_agreed() or time.monotonic() > deadline:
            raise RunTaken(app_id)
        time.sleep(_LOOK)
    if run.exists():
        raise RunTaken(app_id)


def claim_again(app_id: str, attempt: int) -> None:
    """The same for a run that has ended and is resumed with an attempt. Of two, one is refused.

    Only the last processes of the incarnation before are waited for.
    """
    run, deadline = RunFolder.named(app_id), time.monotonic() + _PATIENCE
    file = os.open(socket_path(CLAIMS), os.O_RDWR | os.O_CREAT, 0o600)
    while not _lock(file, _place(app_id)):
        record = run.record()
        is_leaving = record.is_over() and any(one.is_alive() for one in record.owners())
        if not is_leaving or time.monotonic() > deadline:
            raise RunActive(app_id)
        time.sleep(_LOOK)
    record = run.record().truth()
    if not record.is_over() or record.restarts >= attempt:
        raise RunActive(app_id)


def _lock(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _place(app_id: str) -> int:
    return int.from_bytes(app_id.encode()) % _PLACES


def main(arguments: list[str]) -> None:
    """Detach, become the guard, and start the others under it."""
    folder, channel, how = Path(arguments[0]), int(arguments[1]), arguments[2]
    with_agent, meeting, attempt = arguments[3] == "here", int(arguments[4]), int(arguments[5])
    if os.fork():
        os._exit(0)  # the process that started us has no child to wait for
    os.chdir(os.sep)  # keep no file system busy
    become_subreaper()
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    guard = ProcessIdentity.mine()
    run = RunFolder(folder)
    _claim(run.app_id, attempt, channel)
    address = sockets.launch_address(run.app_id)
    listener = sockets.listen(address)
    ends = (socket.socket(fileno=channel), listener, _socket(meeting))
    launcher = fork(lambda: _launch(run, how, guard, *ends))
    ends[0].detach()
    listener.close()
    if ends[2] is not None:
        ends[2].close()
        os.close(meeting)
    if how != "terminal":
        os.close(channel)
    _guard(run.app_id, launcher, address, channel, how, with_agent)


def _claim(app_id: str, attempt: int, channel: int) -> None:
    """Be the only process of the run; the submitter is sent the reason when another one is."""
    try:
        if attempt:
            from torchloom.launch.records import resumption

            claim_again(app_id, attempt)
            resumption.clear(app_id, attempt)
        else:
            claim(app_id)
    except (RunTaken, RunActive) as taken:
        with socket.socket(fileno=channel) as teller, contextlib.suppress(OSError):
            teller.sendall(TAKEN + str(taken).encode())
        os._exit(1)


def _guard(
    app_id: str, launcher: int, address: Path, channel: int, how: str, with_agent: bool
) -> NoReturn:
    """Have an agent here while the launch process lives; write the end if that could not."""

    def agent() -> int:
        from torchloom.launch.agent.service import JobAgent, Post
        from torchloom.launch.wire import LaunchAddress

        terminal = socket.socket(fileno=os.dup(channel)) if how == "terminal" else None
        stdin = 0 if how == "stdin" else None
        launcher = LaunchAddress(path=str(address))
        JobAgent(Post(JobShare(app_id), launcher, stdin, terminal)).run()
        return 0

    AgentGuard(JobShare(app_id), agent, beside=launcher).watch(with_agent)
    address.unlink(missing_ok=True)
    folder = RunFolder.named(app_id)
    if folder.exists() and not (record := folder.record()).is_over():
        lost = replace(record.lost(), ended_at=now())
        folder.write_record(lost)
        folder.add_event("failed", reason=LAUNCHER_LOST)
        catalog.add_ended(lost)
        notify_weaver(app_id)
    os._exit(0)


def _launch(
    new: RunFolder,
    how: str,
    guard: ProcessIdentity,
    channel: socket.socket,
    listener: socket.socket,
    meeting: socket.socket | None,
) -> None:
    """Publish the run, wait for the submitter's agreement, run it."""
    from torchloom.launch.supervisor.service import RunSupervisor

    signals = SignalPipe(more=(*FORWARDED, *ENDING))
    writer = _publish(new, guard)
    if not _agreed(channel, writer):
        return
    if how != "leash":
        channel.close()
    leash = channel if how == "leash" else None
    RunSupervisor(writer.folder.request(), writer, signals, listener, leash, meeting).run()
    sockets.launch_address(new.app_id).unlink(missing_ok=True)


def _socket(fd: int) -> socket.socket | None:
    if fd < 0:
        return None
    found = socket.socket(fileno=os.dup(fd))
    found.setblocking(False)
    return found


def _publish(new: RunFolder, guard: ProcessIdentity) -> RunRecordWriter:
    record = replace(new.record(), guard=guard, launcher=ProcessIdentity.mine())
    if record.restarts:
        from torchloom.launch.records.resumption import take_over

        return RunRecordWriter(take_over(new, record), record)
    new.write_record(record)
    return RunRecordWriter(new.publish(), record)


def _agreed(channel: socket.socket, writer: RunRecordWriter) -> bool:
    """Tell whether the submitter took notice; without it the run is unmade, or what it was."""
    folder, attempt = writer.folder, writer.record.restarts
    answer = b""
    with contextlib.suppress(OSError):
        channel.sendall(READY)
        answer = channel.recv(len(GO))
    if answer == GO:
        folder.agree(attempt)
        if attempt:
            writer.resumed(ranks=len(writer.record.ranks))
    elif attempt:
        from torchloom.launch.records.resumption import give_back

        give_back(folder, writer.record)
    else:
        folder.remove()
    return answer == GO


if __name__ == "__main__":
    main(sys.argv[1:])
