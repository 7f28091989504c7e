"""A launch that meets others: the head launches for all, the others serve it from their hosts."""

import contextlib
import signal
import subprocess
import sys
from types import FrameType

from torchloom.launch.hosts import joint_launch
from torchloom.launch.hosts.joint_launch import JointHead, JointLaunch
from torchloom.launch.logs.display import Display
from torchloom.launch.variables import AGENT_VARIABLE, TOKEN_VARIABLE
from torchloom.settings import environment, loom_home

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def find_head(meet: JointLaunch) -> JointHead | str:
    """Return what a head is given when this launch is it, else the id of the head's app."""
    secret = joint_launch.token(meet, environment(), loom_home())
    found = joint_launch.settle(meet, secret)
    return found if isinstance(found, str) else JointHead(found, secret)


def serve(meet: JointLaunch, app_id: str, argv: tuple[str, ...], show: Display) -> int:
    """Bring an agent to the head and stay until the job ends; return its exit code."""
    secret = joint_launch.token(meet, environment(), loom_home())
    place = "" if meet.place is None else str(meet.place)
    words = [sys.executable, "-P", "-m", "torchloom.launch.agent.node", str(meet.address)]
    stopped_by: list[int] = []
    with subprocess.Popen(
        [*words, "--joined", place, show.to_text(), "--", *argv],
        env={**environment(), AGENT_VARIABLE: app_id, TOKEN_VARIABLE: secret},
        stdin=subprocess.PIPE,
        bufsize=0,
    ) as node:

        def leave(signum: int, _frame: FrameType | None) -> None:
            stopped_by.append(signum)
            if node.stdin:
                node.stdin.close()  # the agent lets go of the ranks here; the head decides the rest

        def hand_on(signum: int, _frame: FrameType | None) -> None:
            if node.stdin and not node.stdin.closed:
                with contextlib.suppress(OSError):
                    node.stdin.write(bytes([signum]))  # the agent hands it on to the ranks here

        for signum in _ENDING:
            signal.signal(signum, leave)
        for signum in _HANDED_ON:
            signal.signal(signum, hand_on)
        code = node.wait()
    return 128 + stopped_by[0] if stopped_by else code
