"""What a replica sees of the host's file system and devices."""

from dataclasses import dataclass
from enum import Enum


class MountType(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """How a mount is written in text: `type=bind`."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A path of the host, seen in the container."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A volume that the scheduler keeps, by name."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device of the host; permissions are the letters r, w and m (make nodes)."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount
