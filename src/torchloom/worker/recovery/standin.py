"""The group of a newcomer while its program sets up: right rank and size, without peers.

The others are long past the barriers of their set-up and would never answer. Barriers and DDP's
constructor pass at once; every other collective is noticed, since what it gives is worthless.
It is put in place before the user's first line, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import functools
import sys

from torchloom.worker import environment
from torchloom.worker.threadlet.import_hook import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

VARIABLE = "LOOM_STANDIN"

_PACKAGE = "torch.distributed"
_MODULE = "torch.distributed.distributed_c10d"
_BACKEND = "fake"
_MEETINGS = ("barrier", "monitored_barrier")
_COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split_group",
)


class _Standin:
    """What was put in the place of torch's functions, and what the set-up has used."""

    def __init__(self) -> None:
        self.is_on = False
        self.used = ""
        self.muted = 0
        self.torchs: dict[str, Any] = {}


_here = _Standin()


def is_wanted(env: Mapping[str, str]) -> bool:
    """Return whether this process is a newcomer."""
    return env.get(VARIABLE) == "1"


def install() -> None:
    """Have `init_process_group` give a stand-in, now or as soon as torch is imported."""
    if not _here.is_on:
        _here.is_on, _here.used = True, ""
        when_imported(_MODULE, _take_over)


def is_on() -> bool:
    """Return whether the default group is a stand-in, or will be."""
    return _here.is_on


def used() -> str:
    """Return the first collective that the set-up has used, by name."""
    return _here.used


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Use collectives that are not the program's; what they give is worthless all the same."""
    _here.muted += 1
    try:
        yield
    finally:
        _here.muted -= 1


def leave() -> None:
    """Restore torch as it was, with no group; drop what was built on the stand-in before."""
    if not _here.is_on:
        return
    _here.is_on = False
    if (module := sys.modules.get(_MODULE)) is None:
        return
    for name, own in _here.torchs.items():
        _put(module, name, own)
    _here.torchs = {}
    if module.is_initialized():
        module.destroy_process_group()


def _take_over(module: ModuleType) -> None:
    if not _here.is_on:  # left before torch was imported
        return
    there = {name: getattr(module, name, None) for name in (*_COLLECTIVES, *_MEETINGS)}
    _here.torchs = {name: own for name, own in there.items() if callable(own)}
    _here.torchs["init_process_group"] = module.init_process_group
    for name, own in _here.torchs.items():
        _put(module, name, _replacing(name, own, module))


def _put(module: ModuleType, name: str, function: Any) -> None:
    """Set a function where programs find it: the package has its own names for all of them."""
    setattr(module, name, function)
    package = sys.modules.get(_PACKAGE)
    if package is not None and hasattr(package, name):
        setattr(package, name, function)


def _replacing(name: str, own: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Return what stands for one of torch's functions, and is that one as soon as we have left."""

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not _here.is_on:
            return own(*args, **kwargs)
        if name == "init_process_group":
            return _begin(own, module, *args, **kwargs)
        return _passed(name, own, args, kwargs)

    return function


def _passed(name: str, own: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if name in _MEETINGS:
        return None
    if not _here.muted:
        _here.used = _here.used or name
    _here.muted += 1  # those of torch that are made of others count once
    try:
        return own(*args, **kwargs)
    except Exception:  # its result is worthless: the program is to reach its steps and report that
        return None
    finally:
        _here.muted -= 1


def _begin(
    own: Callable[..., Any],
    module: ModuleType,
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    *_: Any,
    **more: Any,
) -> None:
    """Make a group of this rank alone that reports the size of the whole."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank = rank if rank >= 0 else int(environment.variables()["RANK"])
    world_size = world_size if world_size > 0 else int(environment.variables()["WORLD_SIZE"])
    with one_prefix():
        own(_BACKEND, store=FakeStore(), rank=rank, world_size=world_size)
    _name(module, backend or "gloo")


def _name(module: ModuleType, backend: str) -> None:
    """Make the group report the backend that the program wants."""
    world = getattr(module, "_world", None)
    group = module.group.WORLD
    known = getattr(world, "pg_map", {}).get(group)
    if isinstance(known, tuple) and len(known) == 2:
        world.pg_map[group] = (backend.lower(), known[1])  # type: ignore[union-attr]


# Groups that follow one another.

_prefixes: list[_Prefix] = []  # that of the group made last


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
