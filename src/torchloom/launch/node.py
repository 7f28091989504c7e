"""The agent of a job on a node where a launcher started it: `torchloom.launch.node HOST:PORT`.

The job's id and token are in the environment. This process is the guard: it stays in the
launcher's foreground, makes another agent when one dies, and ends when the job does. Where several
launches meet (`--joined`), it runs its own words, shows what its ranks print and goes with its
standard input.
"""

import os
import signal
import sys

from torchloom import settings
from torchloom.launch import link
from torchloom.launch.agent import Agent, Post
from torchloom.launch.descendants import Share
from torchloom.launch.guard import Guard
from torchloom.launch.identity import host_name
from torchloom.launch.showing import Showing
from torchloom.launch.signals import SignalPipe
from torchloom.launch.spawn import become_subreaper
from torchloom.launch.variables import AGENT_VARIABLE


def main(arguments: list[str]) -> int:
    """Guard an agent; return the job's exit code."""
    address, *rest = arguments
    app_id = settings.environment()[AGENT_VARIABLE]
    where = link.Address.parse(address)
    post = _joined(app_id, where, rest) if rest else Post(Share(app_id), where)
    become_subreaper()
    SignalPipe()  # ignores what a batch system sends to all of a job: it is meant for the ranks
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if post.leash is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return Guard(post.share, lambda: _serve(post)).watch()


def _serve(post: Post) -> int:
    agent = Agent(post)
    agent.run()
    return agent.code


def _joined(app_id: str, address: link.Address, words: list[str]) -> Post:
    """Read `--joined PLACE SHOWING -- ARGV`; an empty place is not known."""
    _, place, shown, _, *argv = words
    seat = link.nonce()
    return Post(
        Share(app_id, f"{host_name()}-{seat[:8]}"),
        address,
        leash=0,
        seat=seat,
        place=int(place) if place else None,
        argv=tuple(argv),
        cwd=os.getcwd(),
        show=Showing.from_text(shown),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
