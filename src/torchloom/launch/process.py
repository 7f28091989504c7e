"""A run where it was started, by FOLDER CHANNEL HOW AGENT MEETING ATTEMPT.

Three processes, all forks of one. The guard waits; the launch process carries out the recovery
rule and writes the record; the agent has the ranks of this host. If the agent dies, the guard makes
another; if the launch process dies, the agent ends its ranks and the guard writes the run down as
lost. All are detached: no terminal, no session and no command that started them can take them
along.
"""

import contextlib
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from torchloom.launch import catalog, link, sockets
from torchloom.launch.claim import RunGoesOn, RunTaken, claim, claim_again
from torchloom.launch.descendants import Share
from torchloom.launch.folder import RunFolder, now
from torchloom.launch.guard import Guard, fork
from torchloom.launch.handshake import GO, READY, TAKEN
from torchloom.launch.identity import ProcessId
from torchloom.launch.ledger import Ledger
from torchloom.launch.poke import poke
from torchloom.launch.record import LAUNCHER_LOST
from torchloom.launch.signals import ENDING, FORWARDED, SignalPipe
from torchloom.launch.spawn import become_subreaper


def main(arguments: list[str]) -> None:
    """Detach, become the guard, and start the others under it."""
    folder, channel, how = Path(arguments[0]), int(arguments[1]), arguments[2]
    with_agent, meeting, attempt = arguments[3] == "here", int(arguments[4]), int(arguments[5])
    if os.fork():
        os._exit(0)  # whoever started us has no child to wait for
    os.chdir(os.sep)  # keep no file system busy
    become_subreaper()
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    guard = ProcessId.mine()
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
    """Be the run, alone; whoever wanted it is told when another one is."""
    try:
        if attempt:
            from torchloom.launch import lifetimes

            claim_again(app_id, attempt)
            lifetimes.clear(app_id, attempt)
        else:
            claim(app_id)
    except (RunTaken, RunGoesOn) as taken:
        with socket.socket(fileno=channel) as teller, contextlib.suppress(OSError):
            teller.sendall(TAKEN + str(taken).encode())
        os._exit(1)


def _guard(
    app_id: str, launcher: int, address: Path, channel: int, how: str, with_agent: bool
) -> NoReturn:
    """Have an agent here while the launch process lives; write the end if that could not."""

    def agent() -> int:
        from torchloom.launch.agent import Agent, Post

        terminal = socket.socket(fileno=os.dup(channel)) if how == "terminal" else None
        stdin = 0 if how == "stdin" else None
        Agent(Post(Share(app_id), link.Address(path=str(address)), stdin, terminal)).run()
        return 0

    Guard(Share(app_id), agent, beside=launcher).watch(with_agent)
    address.unlink(missing_ok=True)
    folder = RunFolder.named(app_id)
    if folder.exists() and not (record := folder.record()).is_over():
        lost = replace(record.lost(), ended_at=now())
        folder.write_record(lost)
        folder.add_event("failed", reason=LAUNCHER_LOST)
        catalog.add_ended(lost)
        poke(app_id)
    os._exit(0)


def _launch(
    new: RunFolder,
    how: str,
    guard: ProcessId,
    channel: socket.socket,
    listener: socket.socket,
    meeting: socket.socket | None,
) -> None:
    """Show the run to the world, wait for the submitter's word, run it."""
    from torchloom.launch.supervisor import Supervisor

    signals = SignalPipe(more=(*FORWARDED, *ENDING))
    ledger = _publish(new, guard)
    if not _agreed(channel, ledger):
        return
    if how != "leash":
        channel.close()
    leash = channel if how == "leash" else None
    Supervisor(ledger.folder.request(), ledger, signals, listener, leash, meeting).run()
    sockets.launch_address(new.app_id).unlink(missing_ok=True)


def _socket(fd: int) -> socket.socket | None:
    if fd < 0:
        return None
    found = socket.socket(fileno=os.dup(fd))
    found.setblocking(False)
    return found


def _publish(new: RunFolder, guard: ProcessId) -> Ledger:
    record = replace(new.record(), guard=guard, launcher=ProcessId.mine())
    if record.restarts:
        from torchloom.launch.lifetimes import take_over

        return Ledger(take_over(new, record), record)
    new.write_record(record)
    return Ledger(new.publish(), record)


def _agreed(channel: socket.socket, ledger: Ledger) -> bool:
    """Tell whether the submitter took notice; without it the run is unmade, or what it was."""
    folder, attempt = ledger.folder, ledger.record.restarts
    answer = b""
    with contextlib.suppress(OSError):
        channel.sendall(READY)
        answer = channel.recv(len(GO))
    if answer == GO:
        folder.agree(attempt)
        if attempt:
            ledger.resumed(ranks=len(ledger.record.ranks))
    elif attempt:
        from torchloom.launch.lifetimes import give_back

        give_back(folder, ledger.record)
    else:
        folder.remove()
    return answer == GO


if __name__ == "__main__":
    main(sys.argv[1:])
