"""The parent of a node's agent: makes another when it dies, and ends what the last one left."""

import os
import time
import traceback
from collections.abc import Callable

from torchloom.launch.keeping import kill_job

_MOST_DEATHS = 10  # of agents within a minute; an agent that cannot live is not tried for ever
_MINUTE = 60.0


class Guard:
    """Watch an agent, and the launch process beside it where there is one."""

    def __init__(self, app_id: str, agent: Callable[[], None], beside: int | None = None) -> None:
        self._app_id = app_id
        self._act = agent
        self._beside = beside
        self._agent: int | None = None
        self._deaths: list[float] = []

    def watch(self, with_agent: bool = True) -> bool:
        """Come back when all has ended; tell whether the agent ended well."""
        well = True
        if with_agent:
            self._agent = fork(self._act)
        while self._agent or self._beside:
            pid, status = os.waitpid(-1, 0)
            if pid == self._beside:
                self._beside = None
            elif pid == self._agent:
                well = status == 0
                self._agent = None if well or self._is_enough() else fork(self._act)
        kill_job(self._app_id)
        return well

    def _is_enough(self) -> bool:
        now = time.monotonic()
        self._deaths = [when for when in self._deaths if when > now - _MINUTE] + [now]
        return len(self._deaths) > _MOST_DEATHS


def fork(act: Callable[[], None]) -> int:
    """Do something in a process of its own; what goes wrong there is on stderr."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
