"""The agent of one app on this host: `python -m torchloom.launch.agent FOLDER CHANNEL [how]`.

Two processes. The guard is a subreaper that starts the agent and waits for its end: if the agent
dies, whatever it leaves behind becomes the guard's child, is killed, and the run is written down as
lost. The agent owns the app's processes and carries out the recovery rule. Both are detached: no
terminal, no session and no command that started them can take them along.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from torchloom import settings
from torchloom.launch import descendants
from torchloom.launch.folder import RunFolder, now
from torchloom.launch.handshake import GO, READY
from torchloom.launch.identity import ProcessId
from torchloom.launch.ledger import Ledger
from torchloom.launch.record import AGENT_LOST
from torchloom.launch.signals import SignalPipe
from torchloom.launch.spawn import become_subreaper
from torchloom.launch.supervisor import Supervisor


def main(arguments: list[str]) -> None:
    """Detach, become the guard, and run the agent under it."""
    path, channel, how = Path(arguments[0]), int(arguments[1]), arguments[2]
    if os.fork():
        os._exit(0)  # whoever started us has no child to wait for
    os.chdir(os.sep)  # keep no file system busy
    become_subreaper()
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    guard = ProcessId.mine()
    agent = os.fork()
    if agent == 0:
        _agent(RunFolder(path), socket.socket(fileno=channel), how, guard)
    os.close(channel)
    _guard(RunFolder(path), agent)


def _guard(new: RunFolder, agent: int) -> None:
    """Wait for the agent's end; end what it did not."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    while True:
        pid, _ = os.waitpid(-1, 0)
        if pid == agent:
            break
    app_id = new.app_id
    descendants.kill_all(app_id, os.getpid())
    folder = RunFolder.named(app_id)
    if folder.exists() and not (record := folder.record()).is_over():
        folder.write_record(replace(record.lost(), ended_at=now()))
        folder.add_event("failed", reason=AGENT_LOST)
    os._exit(0)


def _agent(new: RunFolder, channel: socket.socket, how: str, guard: ProcessId) -> None:
    """Show the run to the world, wait for the submitter's word, run it; never returns."""
    code = 1
    try:
        become_subreaper()
        signals = SignalPipe()
        ledger = _publish(new, guard)
        if _agreed(channel, ledger.folder):
            _supervise(ledger, signals, channel, how)
        code = 0
    except BaseException:  # the guard ends the run; what happened is in agent.log
        traceback.print_exc()
    finally:
        os._exit(code)


def _publish(new: RunFolder, guard: ProcessId) -> Ledger:
    record = replace(new.record(), guard=guard, agent=ProcessId.mine())
    new.write_record(record)
    return Ledger(new.publish(), record)


def _agreed(channel: socket.socket, folder: RunFolder) -> bool:
    """Tell whether the submitter took notice; without it the run is unmade."""
    answer = b""
    with contextlib.suppress(OSError):
        channel.sendall(READY)
        answer = channel.recv(len(GO))
    if answer != GO:
        folder.remove()
    return answer == GO


def _supervise(ledger: Ledger, signals: SignalPipe, channel: socket.socket, how: str) -> None:
    """Run the app; `how` says what its only rank can read, and so what the channel is for."""
    if how not in ("terminal", "leash"):
        channel.close()
    Supervisor(
        ledger.folder.request(),
        ledger,
        signals,
        settings.environment(),
        stdin=0 if how == "stdin" else None,
        terminal=channel if how == "terminal" else None,
        leash=channel if how == "leash" else None,
    ).run()


if __name__ == "__main__":
    main(sys.argv[1:])
