"""Typed keys into `Resource.capabilities`, so that a key and its type are spelled once."""

from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from torchloom.specs.resources import Resource

V = TypeVar("V")


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
