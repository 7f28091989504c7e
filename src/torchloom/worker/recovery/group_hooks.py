"""Hooks that are set before the program starts, so that a rank can be recovered live."""

from __future__ import annotations

import contextlib
import sys

from torchloom.worker.threadlet.import_hook import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_waiting: list[Callable[[ModuleType], None]] = []
_prefixes: list[_Prefix] = []  # that of the group made last


def install(env: Mapping[str, str]) -> None:
    """Note the group that the program makes; for a newcomer, have it made of a stand-in."""
    from torchloom.worker.recovery import leave, standin

    leave.watch()
    if standin.is_wanted(env):
        standin.install()


def when_distributed(then: Callable[[ModuleType], None]) -> None:
    """Call `then` with torch's module of groups as soon as it is there; several may wait for it."""
    if (module := sys.modules.get(_MODULE)) is not None:
        then(module)
        return
    _waiting.append(then)
    if len(_waiting) == 1:  # two finders for one module would call each other
        when_imported(_MODULE, _arrived)


def _arrived(module: ModuleType) -> None:
    for then in _waiting:
        then(module)
    _waiting.clear()


class _Prefix:
    """Torch's hook that begins the lines of a traceback with the rank; passed over once it is off.

    The program may have put a hook of its own above it, so it cannot always be taken away.
    """

    def __init__(self, torchs: Callable[..., Any], before: Callable[..., Any]) -> None:
        self.is_on = True
        self.before = before
        self._torchs = torchs

    def __call__(self, *error: Any) -> None:
        (self._torchs if self.is_on else self.before)(*error)


@contextlib.contextmanager
def one_prefix() -> Iterator[None]:
    """Make a group without stacking its prefix of tracebacks on that of the group before.

    Every `init_process_group` wraps `sys.excepthook`, and no `destroy_process_group` puts it back.
    """
    given, earlier = sys.excepthook, _prefixes[:]
    _switch(earlier, False)
    before = sys.excepthook = given.before if isinstance(given, _Prefix) else given
    try:
        yield
    except BaseException:
        sys.excepthook = given
        _switch(earlier, True)
        raise
    if sys.excepthook is not before:
        sys.excepthook = made = _Prefix(sys.excepthook, before)
        _prefixes[:] = [made]


def _switch(prefixes: list[_Prefix], is_on: bool) -> None:
    for one in prefixes:
        one.is_on = is_on
