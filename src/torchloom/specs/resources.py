"""What one replica needs of a machine."""

from dataclasses import dataclass, field
from typing import Any

from torchloom.specs.metadata_keys import resource_tags


@dataclass
class Resource:
    """Cores, accelerators and memory of one replica, and what a scheduler may want besides."""

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
