"""Call a function after the program has imported a module, without importing it ourselves."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module: now if it is loaded, else right after its import."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _HookFinder(name, then))


class _HookFinder:
    """Finds the one module, with a hook; ignores every other."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _HookLoader(spec.loader, self._arrived)  # type: ignore[assignment]
        return spec

    def _arrived(self, module: ModuleType) -> None:
        # a new list: a thread that is going through the old one must not miss a finder
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        self._then(module)


class _HookLoader:
    """Loads the module with its own loader, then calls the hook."""

    def __init__(self, inner: Any, arrived: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._arrived = arrived

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._arrived(module)
