"""Packages that add schedulers, named resources, trackers: `register` marks, `registry` finds them.

A plugin is a function below the namespace package `torchx_plugins`, or an entry point of a group
such as `torchx.schedulers`. Plugins are written for TorchX, so `import torchx` works in them.
"""

import enum
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torchloom import settings
from torchloom.errors import UserError
from torchloom.torchx import resource_tags
from torchloom.torchx.names import keep_importable, torchx_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

F = TypeVar("F", bound=Callable[..., Any])
Factory = Callable[..., Any]
Fractions = Callable[[Any], Mapping[float, str]] | Mapping[float, str]

WHOLE, HALF, QUARTER, EIGHTH, SIXTEENTH = 1.0, 0.5, 0.25, 0.125, 0.0625  # of a host
NAMED_RESOURCES_ATTR = "NAMED_RESOURCES"


class PluginType(str, enum.Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """What a plugin adds; the values are groups of entry points."""

    SCHEDULER = "torchx.schedulers"
    NAMED_RESOURCE = "torchx.named_resources"
    TRACKER = "torchx.tracker"
    EVENT_HANDLER = "torchx.event_handlers"


class PluginSource(enum.IntFlag):
    """Where plugins are looked for; the values are those of `TORCHX_PLUGINS_SOURCE`."""

    NONE = 0
    NAMESPACE_PKG = 1
    ENTRYPOINT = 2


class BadPluginSource(UserError, ValueError):
    """`TORCHX_PLUGINS_SOURCE` is no number from 0 to 3."""

    code = "bad_plugin_source"


@dataclass(frozen=True)
class RegistrationError:
    """What is wrong with a plugin or, without a name, with a whole module."""

    module: str
    error: str
    name: str | None = None
    plugin_type: str | None = None


class register:  # noqa: N801 - TorchX's name
    """Mark a function as a plugin, as in `@register.scheduler()`.

    Example:
        >>> from torchloom.torchx.plugins import register
        >>> @register.scheduler(name="mine")
        ... def create(session_name, **kwargs): ...
    """

    def __init__(self, type: PluginType, name: str | None = None) -> None:  # noqa: A002 - TorchX's
        self._type = type
        self._name = name

    def __call__(self, fn: F) -> F:
        _mark(fn, self._type, self._name or fn.__name__)
        return fn

    @classmethod
    def scheduler(cls, name: str | None = None) -> "register":
        """Mark a function that makes a scheduler."""
        return cls(PluginType.SCHEDULER, name)

    @classmethod
    def tracker(cls, name: str | None = None) -> "register":
        """Mark a function that makes a tracker."""
        return cls(PluginType.TRACKER, name)

    @classmethod
    def event_handler(cls, name: str | None = None) -> "register":
        """Mark a function that makes a handler of events."""
        return cls(PluginType.EVENT_HANDLER, name)

    @classmethod
    def named_resource(
        cls,
        name: str | None = None,
        aliases: list[str] | None = None,
        fractionals: Fractions | None = None,
    ) -> "_RegisterResource":
        """Mark a function that makes a resource.

        Args:
            name: Its name; default: that of the function.
            aliases: Further names.
            fractionals: Slices of the host: the ending of the name for each fraction, or a function
                that returns them for a resource. The marked function is called with a fraction.
        """
        return _RegisterResource(name, aliases, fractionals)


class _RegisterResource(register):
    """Mark a resource, its aliases and slices; all become functions of its module, too."""

    def __init__(
        self,
        name: str | None = None,
        aliases: list[str] | None = None,
        fractionals: Fractions | None = None,
    ) -> None:
        super().__init__(PluginType.NAMED_RESOURCE, name)
        self._aliases = aliases or []
        self._fractionals = fractionals

    def __call__(self, fn: F) -> F:
        module = sys.modules[fn.__module__]
        name = self._name or fn.__name__
        base: Any = _tagged(fn, name)
        _add(module, name, base, is_new=name != fn.__name__)
        for alias in self._aliases:
            other = _named_like(fn, alias, lambda *args, **kwargs: base(*args, **kwargs))
            other._plugin_base_name, other._plugin_is_alias = name, True
            _add(module, alias, other)
        for fraction, ending in self._slices(fn).items():
            part = _slice_of(fn, fraction, f"{name}_{ending}")
            part._plugin_base_name = name
            _add(module, f"{name}_{ending}", part)
        marked: F = base
        return marked

    def _slices(self, fn: Factory) -> Mapping[float, str]:
        if not self._fractionals:
            return {}
        return self._fractionals(fn()) if callable(self._fractionals) else self._fractionals


def powers_of_two_gpus(resource: Any) -> dict[float, str]:
    """Return the slices of a host by halves of its GPUs: of 8, `{1.0: "8", 0.5: "4", ...}`."""
    gpus = resource.gpu
    if gpus <= 0 or gpus & (gpus - 1):
        raise ValueError(f"slices need a power of two of GPUs; the resource has {gpus}")
    return {count / gpus: str(count) for count in _halves(gpus, 1)}


def halve_mem_down_to(*, minGiB: int) -> Callable[[Any], dict[float, str]]:  # noqa: N803 - TorchX's
    """Return a function that slices a host by halves of its memory, down to so many GiB."""

    def slices(resource: Any) -> dict[float, str]:
        whole, rest = divmod(resource.memMB, 1024)
        if whole <= 0 or rest:
            raise ValueError(f"slices need whole GiB of memory; the host has {resource.memMB} MB")
        odd = whole // (whole & -whole)
        if minGiB < odd:
            raise ValueError(f"{whole} GiB cannot be halved below {odd}; minGiB is {minGiB}")
        return {part / whole: str(part) for part in _halves(whole, minGiB)}

    return slices


class PluginRegistry:
    """All plugins by type and name; each type is looked for once, at the first question."""

    def __init__(
        self,
        *,
        plugin_sources: PluginSource = PluginSource.NAMESPACE_PKG | PluginSource.ENTRYPOINT,
    ) -> None:
        self._sources = plugin_sources
        self._found: dict[PluginType, dict[str, Factory]] = {}
        self._errors: list[RegistrationError] = []

    def get(self, plugin_type: PluginType) -> dict[str, Factory]:
        """Return the plugins of a type by name; an entry point wins over a marked function."""
        if plugin_type not in self._found:
            self._found[plugin_type] = self._look_for(plugin_type)
        return self._found[plugin_type]

    @overload
    def info(self) -> dict[PluginType, dict[str, Factory]]: ...

    @overload
    def info(self, plugin_type: PluginType) -> dict[str, Factory]: ...

    def info(self, plugin_type: PluginType | None = None) -> Any:
        """Return a copy of the plugins of a type, or of all types."""
        if plugin_type is not None:
            return dict(self.get(plugin_type))
        return {each: dict(self.get(each)) for each in PluginType}

    @property
    def errors(self) -> list[RegistrationError]:
        """What was wrong, as far as plugins were looked for."""
        return list(self._errors)

    def load_errors(self, plugin_type: PluginType | None = None) -> list[RegistrationError]:
        """Look for plugins of a type, or of all, and return what was wrong."""
        self.info() if plugin_type is None else self.get(plugin_type)
        if plugin_type is None:
            return self.errors
        place = _namespace(plugin_type)
        return [
            each
            for each in self._errors
            if each.plugin_type == plugin_type.name.lower()
            or f"{each.module}.".startswith(f"{place}.")
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all plugins, and what was wrong, as plain data."""
        found = self.info()
        listed: dict[str, Any] = {
            kind.name.lower(): list(_entries(plugins)) for kind, plugins in found.items()
        }
        for each in self._errors:
            if each.plugin_type is not None:
                row = {"name": each.name, "module": each.module, "error": each.error}
                listed[each.plugin_type].append(row)
        whole = [each for each in self._errors if each.plugin_type is None]
        listed["errors"] = [{"module": each.module, "error": each.error} for each in whole]
        return listed

    def __str__(self) -> str:
        """Return it as YAML."""
        import yaml

        return yaml.safe_dump(self.to_dict(), sort_keys=False).rstrip("\n")

    def clear(self) -> None:
        """Forget everything, here and in `registry`."""
        self._found.clear()
        self._errors.clear()
        registry.cache_clear()

    def _look_for(self, kind: PluginType) -> dict[str, Factory]:
        found: dict[str, Factory] = {}
        if PluginSource.NAMESPACE_PKG in self._sources:
            with torchx_names():
                for module in self._modules(_namespace(kind)):
                    self._collect(module, kind, found)
            if found:
                keep_importable()
        if PluginSource.ENTRYPOINT in self._sources:
            points = entry_point_factories(kind.value)
            for name in sorted(found.keys() & points.keys()):
                problem = f"an entry point of {kind.value} has the name, too; rename one of them"
                self._report(found[name].__module__, problem, name, kind)
            found |= points
        return found

    def _modules(self, name: str, path: list[str] | None = None) -> Iterator[ModuleType]:
        """Yield the modules below a package, also in folders without an `__init__`."""
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a package of another author may raise anything
            missing = getattr(error, "name", None) if path is None else None
            if not missing or not f"{name}.".startswith(f"{missing}."):
                self._report(name, f"{type(error).__name__}: {error}")
            return
        if path is not None:
            yield module
        below = list(getattr(module, "__path__", ()))
        names = {info.name for info in pkgutil.iter_modules(below)}
        folders = (folder for root in below for folder in Path(root).glob("*/"))
        names |= {folder.name for folder in folders if any(folder.glob("*.py"))}
        for each in sorted(names):
            if not each.startswith("_"):
                yield from self._modules(f"{name}.{each}", below)

    def _collect(self, module: ModuleType, kind: PluginType, found: dict[str, Factory]) -> None:
        for attribute in dir(module):
            plugin = getattr(module, attribute)
            actual = getattr(plugin, "_plugin_type", None)
            if not callable(plugin) or actual is None or plugin.__module__ != module.__name__:
                continue
            name = getattr(plugin, "_plugin_name", attribute)
            if actual != kind:
                problem = f"is a {actual.name.lower()}: move it to {_namespace(actual)}"
                self._report(module.__name__, problem, name, actual)
            elif not _is_same(found.setdefault(name, plugin), plugin, kind):
                problem = "another plugin has this name; the first one found counts"
                self._report(module.__name__, problem, name, kind)

    def _report(
        self, module: str, problem: str, name: str | None = None, kind: PluginType | None = None
    ) -> None:
        import logging

        logging.getLogger(__name__).warning("plugin %s of %s: %s", name or "", module, problem)
        of_kind = None if kind is None else kind.name.lower()
        self._errors.append(RegistrationError(module, problem, name, of_kind))


@cache
def registry() -> PluginRegistry:
    """Return the registry of this process; `TORCHX_PLUGINS_SOURCE` says where plugins may be."""
    word = settings.plugin_sources()
    if word not in ("0", "1", "2", "3"):
        meant = "0 (none), 1 (torchx_plugins), 2 (entry points) or 3 (both)"
        raise BadPluginSource(f"TORCHX_PLUGINS_SOURCE is {word!r}; set it to {meant}")
    return PluginRegistry(plugin_sources=PluginSource(int(word)))


def _mark(fn: Any, kind: PluginType, name: str) -> None:
    fn._plugin_type, fn._plugin_name = kind, name


def _add(module: ModuleType, name: str, factory: Factory, is_new: bool = True) -> None:
    """Put a resource into its module: as a function, and into the module's table."""
    table: dict[str, Factory] = vars(module).setdefault(NAMED_RESOURCES_ATTR, {})
    if name in table:
        raise ValueError(f"{module.__name__} has two named resources {name!r}; rename one")
    if is_new and hasattr(module, name):
        raise AttributeError(f"{module.__name__} has a {name!r} already; rename the resource")
    _mark(factory, PluginType.NAMED_RESOURCE, name)
    table[name] = factory
    if is_new:
        setattr(module, name, factory)


def _named_like(fn: Factory, name: str, factory: Factory) -> Any:
    factory.__module__, factory.__qualname__ = fn.__module__, name
    return factory


def _tagged(fn: Factory, name: str, is_part: bool = False) -> Any:
    @wraps(fn)
    def make(*args: Any, **kwargs: Any) -> Any:
        resource = fn(*args, **kwargs)
        resource.tags[resource_tags.RESOURCE_NAME] = name
        resource.tags[resource_tags.IS_FRACTIONAL] = is_part
        return resource

    return make


def _slice_of(fn: Factory, fraction: float, name: str) -> Any:
    whole = _tagged(fn, name, is_part=fraction != WHOLE)
    return _named_like(fn, name, lambda: whole(fraction))


def _halves(count: int, least: int) -> Iterator[int]:
    while count >= max(least, 1):
        yield count
        count //= 2


def _namespace(kind: PluginType) -> str:
    return kind.value.replace("torchx.", "torchx_plugins.", 1)


def _is_same(first: Factory, other: Factory, kind: PluginType) -> bool:
    """Tell whether two plugins of one name are the same; resources are compared by value."""
    if first is other or kind is not PluginType.NAMED_RESOURCE:
        return first is other
    try:
        return bool(first() == other())
    except Exception:  # whatever an author's function raises, they are not alike
        return False


def _entries(plugins: Mapping[str, Factory]) -> Iterator[dict[str, Any]]:
    for name, fn in plugins.items():
        if hasattr(fn, "_plugin_base_name"):
            continue
        of_it = {
            other: hasattr(each, "_plugin_is_alias")
            for other, each in plugins.items()
            if getattr(each, "_plugin_base_name", None) == name
        }
        lists = {
            "aliases": [other for other, is_alias in of_it.items() if is_alias],
            "fractionals": [other for other, is_alias in of_it.items() if not is_alias],
        }
        module = getattr(fn, "__module__", "unknown")
        yield {"name": name, "module": module} | {key: each for key, each in lists.items() if each}


def entry_point_factories(group: str) -> dict[str, Factory]:
    """Return the entry points of a group, each imported only when it is called."""
    from importlib.metadata import entry_points

    return {point.name: _on_use(point) for point in entry_points(group=group)}


def _on_use(point: "EntryPoint") -> Factory:
    def create(*args: Any, **kwargs: Any) -> Any:
        with torchx_names():
            try:
                load: Factory = point.load()
            except (ImportError, AttributeError) as error:
                kind = point.group.rpartition(".")[2].replace("_", " ").removesuffix("s")
                problem = f"is {point.value!r}, which cannot be used: {error}"
                raise UserError(f"{kind} {point.name!r} {problem}") from error
            made = load(*args, **kwargs)
        keep_importable()
        return made

    create.__module__ = point.value.partition(":")[0]
    return create
