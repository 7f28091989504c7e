"""The agent of a job on a node where a launcher started it: `torchloom.launch.node HOST:PORT`.

The job's id and token are in the environment. This process is the guard: it stays in the
launcher's foreground, makes another agent when one dies, and ends when the job does.
"""

import os
import signal
import sys

from torchloom import settings
from torchloom.launch import link
from torchloom.launch.agent import Agent, Post
from torchloom.launch.descendants import AGENT_VARIABLE
from torchloom.launch.guard import Guard
from torchloom.launch.signals import SignalPipe
from torchloom.launch.spawn import become_subreaper


def main(arguments: list[str]) -> int:
    """Guard an agent; return 0 when it ended well."""
    app_id = settings.environment()[AGENT_VARIABLE]
    post = Post(app_id, link.Address.parse(arguments[0]))
    become_subreaper()
    SignalPipe()  # ignores what a batch system sends to all of a job: it is meant for the ranks
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    return 0 if Guard(app_id, lambda: Agent(post).run()).watch() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
