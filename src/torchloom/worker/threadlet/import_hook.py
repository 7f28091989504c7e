"""Call a function after the program has imported a module, without importing it ourselves."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}  # by module


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module: now if it is loaded, else right after its import."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
        return
    if not _waiting:
        sys.meta_path.insert(0, _finder)
    _waiting.setdefault(name, []).append(then)


class _HookFinder:
    """Finds the modules that are waited for, with a hook; ignores every other."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _HookLoader(spec.loader, name)  # type: ignore[assignment]
        return spec


class _HookLoader:
    """Loads the module with its own loader, then calls what waits for it."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        _arrived(self._name, module)


def _arrived(name: str, module: ModuleType) -> None:
    thens = _waiting.pop(name, [])
    if not _waiting:
        # a new list: a thread that is going through the old one must not miss a finder
        sys.meta_path = [finder for finder in sys.meta_path if finder is not _finder]
    for then in thens:
        then(module)


_finder: Any = _HookFinder()
