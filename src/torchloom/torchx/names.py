"""Let component files written for TorchX run as they are: `import torchx` means torchloom."""

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VERSION = "0.8.0"  # of the contract that torchloom keeps

_SERVED = {  # module of TorchX: where torchloom has its names
    "": "",
    "version": "",
    "components": "components",
    "components.component_test_base": "components.component_test_base",
    "components.dist": "components.dist",
    "components.structured_arg": "components.dist",
    "components.utils": "components.utils",
    "runner": "runner",
    "runner.api": "runner.api",
    "runner.config": "runner.config",
    "plugins": "torchx.plugins",
    "schedulers": "schedulers",
    "schedulers.api": "schedulers.api",
    "schedulers.ids": "schedulers.local_request",
    "specs": "specs",
    "specs.api": "specs.api",
    "specs.builders": "specs.builders",
    "specs.capabilities": "specs.resources",
    "specs.file_linter": "specs.file_linter",
    "specs.finder": "components.finder",
    "specs.metadata_keys": "specs.resources",
    "specs.named_resources_aws": "specs.sizes.aws",
    "specs.named_resources_generic": "specs.sizes.generic",
    "specs.overlays": "specs.overlays",
    "tracker": "torchx.tracker",
    "tracker.api": "torchx.tracker",
    "tracker.backend": "torchx",
    "tracker.backend.fsspec": "torchx.fsspec_tracker",
}
MODULES = {
    f"torchx.{theirs}".rstrip("."): f"torchloom.{ours}".rstrip(".")
    for theirs, ours in _SERVED.items()
}

_lock = threading.RLock()


@contextmanager
def torchx_names() -> Iterator[None]:
    """Make `import torchx...` find torchloom's modules; afterwards all is as it was before.

    A real torchx that is imported already is put aside and comes back untouched.
    """
    with _lock:
        kept = _taken_out()
        finder = _TorchxFinder()
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _taken_out()
            sys.modules.update(kept)


def keep_importable() -> None:
    """Serve TorchX's names from now on wherever TorchX itself is not installed.

    Plugins may import them when they are used, long after they were loaded.
    """
    if not any(isinstance(finder, _Fallback) for finder in sys.meta_path):
        sys.meta_path.append(_Fallback())


def get_torchx_image(torchx_version: str = VERSION) -> str:
    """Return the image that components use when none is named."""
    image: str = importlib.import_module("torchloom.components.defaults").IMAGE
    return image


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == "torchx" or name.startswith("torchx.")]
    return {name: sys.modules.pop(name) for name in names}


class _TorchxFinder:
    """Answers for every name below torchx, so that an installed one is never mixed in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MODULES:
            loader: Any = _Facade(MODULES[fullname])
            return ModuleSpec(fullname, loader, is_package=True)
        if fullname.startswith("torchx."):
            raise ModuleNotFoundError(
                f"torchloom has no counterpart of {fullname!r}; a component can use"
                f" {', '.join(sorted(MODULES))}",
                name=fullname,
            )
        return None


class _Fallback(_TorchxFinder):
    """Answers last: only if TorchX is not installed, its names are ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = getattr(sys.modules.get("torchx"), "__spec__", None)
        is_ours = spec is None or isinstance(spec.loader, _Facade)
        return super().find_spec(fullname, path, target) if is_ours else None


class _Facade:
    """A module of TorchX's name whose attributes are looked up in torchloom's module.

    It stands in front of the real one because importing would write the other name into it.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the empty module."""

    def exec_module(self, module: ModuleType) -> None:
        target = importlib.import_module(self._target)
        if module.__name__ in {"torchx", "torchx.version"}:
            image = get_torchx_image()
            facts: dict[str, Any] = {"IMAGE": image, "TORCHX_IMAGE": image}
            vars(module).update(facts, __version__=VERSION, get_torchx_image=get_torchx_image)
            return

        def look_up(name: str) -> Any:
            if name == "__all__" and not hasattr(target, "__all__"):
                return [word for word in dir(target) if not word.startswith("_")]
            if name.startswith("__") and name != "__all__":
                raise AttributeError(name)
            return getattr(target, name)

        module.__file__ = target.__file__
        module.__doc__ = target.__doc__
        vars(module)["__getattr__"] = look_up
