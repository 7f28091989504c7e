"""The parent of a node's agent: makes another when it dies, and ends what the last one left."""

import os
import time
import traceback
from collections.abc import Callable
from types import ModuleType

from torchloom.launch.host.descendants import JobShare

_MOST_DEATHS = 10  # of agents within a minute; an agent that cannot live is not tried for ever
_MINUTE = 60.0
_ENDED = 64  # an agent that did its duty leaves with this and the job's exit code


class AgentGuard:
    """Watch an agent, and the launch process beside it where there is one.

    `agent` serves the job to its end and returns the job's exit code.
    """

    def __init__(
        self, share: JobShare, agent: Callable[[], int], beside: int | None = None
    ) -> None:
        self._share = share
        self._act = lambda: _ENDED + agent()
        self._beside = beside
        self._agent: int | None = None
        self._deaths: list[float] = []

    def watch(self, with_agent: bool = True) -> int:
        """Come back when all has ended; return the job's exit code, 1 if no agent knew it."""
        code = 1
        if with_agent:
            self._agent = fork(self._act)
        _load()
        while self._agent or self._beside:
            pid, status = os.waitpid(-1, 0)
            if pid == self._beside:
                self._beside = None
            elif pid == self._agent:
                left_with = os.waitstatus_to_exitcode(status)
                if left_with >= _ENDED:
                    code = left_with - _ENDED
                done = left_with >= _ENDED or self._is_enough()
                self._agent = None if done else fork(self._act)
        self._clear_up()
        return code

    def _clear_up(self) -> None:
        """End what agents and launch process have left; they normally leave nothing."""
        stores, kill_share = _load()
        kill_share(self._share)
        stores.clear(self._share)

    def _is_enough(self) -> bool:
        now = time.monotonic()
        self._deaths = [when for when in self._deaths if when > now - _MINUTE] + [now]
        return len(self._deaths) > _MOST_DEATHS


def _load() -> tuple[ModuleType, Callable[[JobShare], None]]:
    """Return what clears up: imported beside the agent, and before an upgrade can replace it."""
    from torchloom.launch.agent import stores
    from torchloom.launch.keeper.client import kill_share

    return stores, kill_share


def fork(act: Callable[[], int | None]) -> int:
    """Do something in a process of its own; what goes wrong there is on stderr."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = act() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
