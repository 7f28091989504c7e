"""A launch that meets others: the head launches for all, the others serve it from their hosts."""

import signal
import subprocess
import sys
from types import FrameType

from torchloom.launch import joining
from torchloom.launch.contract import TOKEN_VARIABLE
from torchloom.launch.descendants import AGENT_VARIABLE
from torchloom.launch.joining import Meet
from torchloom.settings import environment, loom_home

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def serve(meet: Meet, argv: tuple[str, ...], prefix: str) -> int:
    """Bring an agent to the head and stay until the job ends; return its exit code."""
    secret = joining.token(meet, environment(), loom_home())
    app_id = joining.find_head(meet, secret)
    place = "" if meet.place is None else str(meet.place)
    words = [sys.executable, "-P", "-m", "torchloom.launch.node", str(meet.address)]
    env = {**environment(), AGENT_VARIABLE: app_id, TOKEN_VARIABLE: secret}
    node = subprocess.Popen(
        [*words, "--joined", place, prefix, "--", *argv], env=env, stdin=subprocess.PIPE
    )
    stopped_by: list[int] = []

    def leave(signum: int, _frame: FrameType | None) -> None:
        stopped_by.append(signum)
        if node.stdin:
            node.stdin.close()  # the agent lets go of the ranks here; the head decides the rest

    for signum in _FORWARDED:
        signal.signal(signum, leave)
    code = node.wait()
    return 128 + stopped_by[0] if stopped_by else code
