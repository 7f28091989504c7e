"""What one replica needs of a machine."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from torchloom.torchx import resource_tags as resource_tags

TORCHX_CONTEXT_NAME = "TORCHX_CONTEXT_NAME"  # environment variable: who submitted
NA = "<<NA>>"  # a fact that was not supplied
V = TypeVar("V")


class app_metadata:
    """Keys in `AppDef.metadata`."""

    CONTEXT = "torchx/context"
    VERSION = "torchx/version"
    SCHEDULER = "torchx/scheduler"
    ROLES_PREFIX = "torchx/roles."


@dataclass
class Resource:
    """Cores, accelerators and memory of one replica, and further requirements for a scheduler."""

    cpu: int = 1
    gpu: int = 0
    memMB: int = 128
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    tags: dict[str, object] = field(default_factory=dict)

    def is_fractional(self) -> bool:
        """Tell whether this is a slice of a larger named resource."""
        return bool(self.tags.get(resource_tags.IS_FRACTIONAL, False))

    def get_resource_name(self) -> str | None:
        """Return the name it was looked up by, if it was."""
        name = self.tags.get(resource_tags.RESOURCE_NAME)
        return None if name is None else str(name)

    @staticmethod
    def copy(original: "Resource", **capabilities: Any) -> "Resource":
        """Return an independent copy with these capabilities added."""
        return Resource(
            original.cpu,
            original.gpu,
            original.memMB,
            {**original.capabilities, **capabilities},
            dict(original.devices),
            dict(original.tags),
        )


NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)  # nothing was asked for


def null_resource() -> Resource:
    """Return the shared `NULL_RESOURCE`: a dataclass default has to be made by a function."""
    return NULL_RESOURCE


@dataclass(frozen=True)
class CapabilityKey(Generic[V]):
    """The capability `namespace.name`, whose values have the given type."""

    namespace: str
    name: str
    type: type[V]

    @property
    def key(self) -> str:
        return f"{self.namespace}.{self.name}"

    def set(self, resource: Resource, value: V) -> None:
        resource.capabilities[self.key] = value

    @overload
    def get(self, resource: Resource) -> V | None: ...

    @overload
    def get(self, resource: Resource, default: V) -> V: ...

    def get(self, resource: Resource, default: V | None = None) -> V | None:
        """Return the value, or the default; TypeError if it is of another type (bool is no int)."""
        if self.key not in resource.capabilities:
            return default
        value = resource.capabilities[self.key]
        if isinstance(value, self.type) and (type(value) is not bool or self.type is not int):
            return value
        wanted, found = self.type.__name__, type(value).__name__
        raise TypeError(f"capability {self.key!r}: expected {wanted}, got {found} {value!r}")
