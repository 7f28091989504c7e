"""Machine sizes by name: generic, of EC2, the user's own and those of installed packages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torchloom.errors import Ambiguous, UserError, shorten
from torchloom.specs.exceptions import UnknownNamedResource
from torchloom.specs.resources import NULL_RESOURCE, Resource, null_resource, resource_tags
from torchloom.specs.shape import coerce_resource

Factory = Callable[[], Any]

GROUP = "torchloom.named_resources"  # entry points; those of TorchX's plugins count, too


class NamedResources(Mapping[str, Resource]):
    """A mapping that is filled at the first lookup, and makes a new resource at each lookup.

    Names are found in any case, as long as only one fits.
    """

    def __init__(self, load: Callable[[], Mapping[str, Factory]]) -> None:
        self._load = load
        self._loaded: Mapping[str, Factory] | None = None

    @property
    def _factories(self) -> Mapping[str, Factory]:
        if self._loaded is None:
            self._loaded = {**self._load(), "NULL": null_resource, "MISSING": null_resource}
        return self._loaded

    def __getitem__(self, name: str) -> Resource:
        found = self._find(name)
        if len(found) > 1:
            raise Ambiguous("named resource", name, found)
        if not found:
            raise UnknownNamedResource(name, self._factories)
        return self._make(found[0])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._find(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __len__(self) -> int:
        return len(self._factories)

    def _find(self, name: str) -> list[str]:
        if name in self._factories:
            return [name]
        return [known for known in self._factories if known.lower() == name.lower()]

    def _make(self, name: str) -> Resource:
        made = coerce_resource(self._factories[name](), f"named resource {name!r}")
        if made is NULL_RESOURCE or made.get_resource_name() is not None:
            return made
        return replace(made, tags={**made.tags, resource_tags.RESOURCE_NAME: name})


def installed() -> Mapping[str, Factory]:
    """Return all factories; the user's win over our tables, packages over both."""
    from torchloom import settings
    from torchloom.specs.sizes import aws, generic

    custom = settings.custom_named_resources()
    own = _from_module(custom) if custom else {}
    return {**generic.NAMED_RESOURCES, **aws.NAMED_RESOURCES, **own, **_from_packages()}


def _from_module(name: str) -> Mapping[str, Factory]:
    from importlib import import_module

    from torchloom.torchx.names import torchx_names

    try:
        with torchx_names():
            table: Mapping[str, Factory] = import_module(name).NAMED_RESOURCES
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"TORCHX_CUSTOM_NAMED_RESOURCES names {shorten(name)!r}, which cannot be used: {error};"
            " it has to be a module with a mapping NAMED_RESOURCES"
        ) from error
    return table


def _from_packages() -> Mapping[str, Factory]:
    """Return what packages add, each imported only when its resource is asked for."""
    from torchloom.torchx import plugins

    of_torchx = plugins.registry().get(plugins.PluginType.NAMED_RESOURCE)
    return {**of_torchx, **plugins.entry_point_factories(GROUP)}


named_resources = NamedResources(installed)


def resource(
    cpu: int | None = None,
    gpu: int | None = None,
    memMB: int | None = None,  # noqa: N803 - TorchX's argument name
    h: str | None = None,
) -> Resource:
    """Return the named resource `h`, or one of these sizes (default: 2 cores, 1 GiB)."""
    if h:
        return named_resources[h]
    return Resource(cpu=cpu or 2, gpu=gpu or 0, memMB=memMB or 1024)


def get_named_resources(res: str) -> Resource:
    """Return the named resource."""
    return resource(h=res)
