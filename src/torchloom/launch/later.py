"""What a loop without threads is to do later: each has a name, a time, and can be taken back."""

import contextlib
import importlib
import time
from collections.abc import Callable, Hashable

LOADED_AFTER = 2.0  # seconds that a process has lived before it imports what it may need later
_NEEDED = (  # imported where they are used, so that a start need not wait for them
    "torchloom.errors",
    "torchloom.launch.keeper",
    "torchloom.launch.keeping",
    "torchloom.launch.lifetimes",
    "torchloom.launch.parcel",
    "torchloom.launch.python_command",
    "torchloom.launch.saved",
    "torchloom.launch.splice",
    "torchloom.launch.stores",
    "torchloom.launch.upline",
    "torchloom.bus.page",
    "torchloom.bus.regrouping",
    "torchloom.bus.subjects",
    "torchloom.checkpoint.local",
    "torchloom.checkpoint.manifest",
    "torchloom.checkpoint.storage",
)


def load_needed() -> None:
    """Import what this process may need later: by then another version may lie in its place.

    Where one is being put there right now, what cannot be imported is tried again when it is used.
    """
    for name in _NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Later:
    """Acts whose time is to come; whoever waits in between asks how long that is."""

    def __init__(self) -> None:
        self._acts: dict[Hashable, tuple[float, Callable[[], object]]] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._acts

    def put(self, name: Hashable, seconds: float, act: Callable[[], object]) -> None:
        """Do something in so many seconds; under a name that is taken, instead of that."""
        self._acts[name] = (time.monotonic() + seconds, act)

    def drop(self, name: Hashable) -> None:
        """Do it no more; what has been done, or was never put, is fine."""
        self._acts.pop(name, None)

    def waits(self) -> list[float]:
        """Return in how many seconds each is due."""
        return [max(0.0, when - time.monotonic()) for when, _ in self._acts.values()]

    def do(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for name in [name for name, (when, _) in self._acts.items() if when <= now]:
            if name in self._acts:  # an act before it may have taken it back
                self._acts.pop(name)[1]()
