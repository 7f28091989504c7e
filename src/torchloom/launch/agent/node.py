"""The agent of a job on a node where a launcher started it: `launch.agent.node HOST:PORT`.

The job's id and token are in the environment. This process is the guard: it stays in the
launcher's foreground, makes another agent when one dies, and ends when the job does. Where several
launches meet (`--joined`), it runs its own words, shows what its ranks print and goes with its
standard input.
"""

import os
import signal
import sys

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.agent.guard import AgentGuard
from torchloom.launch.agent.service import JobAgent, Post
from torchloom.launch.host.descendants import JobShare, become_subreaper
from torchloom.launch.host.identity import host_name
from torchloom.launch.host.sockets import SignalPipe
from torchloom.launch.logs.display import Display
from torchloom.launch.variables import AGENT_VARIABLE


def main(arguments: list[str]) -> int:
    """Guard an agent; return the job's exit code."""
    address, *rest = arguments
    app_id = settings.environment()[AGENT_VARIABLE]
    where = wire.LaunchAddress.parse(address)
    post = _joined(app_id, where, rest) if rest else Post(JobShare(app_id), where)
    become_subreaper()
    SignalPipe()  # ignores what a batch system sends to all of a job: it is meant for the ranks
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if post.leash is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return AgentGuard(post.share, lambda: _serve(post)).watch()


def _serve(post: Post) -> int:
    agent = JobAgent(post)
    agent.run()
    return agent.code


def _joined(app_id: str, address: wire.LaunchAddress, words: list[str]) -> Post:
    """Read `--joined PLACE SHOWING -- ARGV`; an empty place is not known."""
    _, place, shown, _, *argv = words
    seat = wire.nonce()
    return Post(
        JobShare(app_id, f"{host_name()}-{seat[:8]}"),
        address,
        leash=0,
        seat=seat,
        place=int(place) if place else None,
        argv=tuple(argv),
        cwd=os.getcwd(),
        show=Display.from_text(shown),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
