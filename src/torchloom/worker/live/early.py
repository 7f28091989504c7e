"""What is put in place before the user's first line, so that a rank can be recovered live."""

from __future__ import annotations

import sys

from torchloom.worker.threadlet.arrival import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

_MODULE = "torch.distributed.distributed_c10d"
_waiting: list[Callable[[ModuleType], None]] = []


def install(env: Mapping[str, str]) -> None:
    """Note the group that the program makes; for a newcomer, have it made of a stand-in."""
    from torchloom.worker.live import leaving, standin

    leaving.watch()
    if standin.is_wanted(env):
        standin.install()


def when_distributed(then: Callable[[ModuleType], None]) -> None:
    """Call `then` with torch's module of groups as soon as it is there; several may wait for it."""
    if (module := sys.modules.get(_MODULE)) is not None:
        then(module)
        return
    _waiting.append(then)
    if len(_waiting) == 1:  # two who look for one module would send each other to look
        when_imported(_MODULE, _arrived)


def _arrived(module: ModuleType) -> None:
    for then in _waiting:
        then(module)
    _waiting.clear()
