"""Take specs apart into plain data by the names of their fields, whoever's classes they are."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.mounts import MountType
from torchloom.specs.shape import APP, MOUNTS, RESOURCE, ROLE, WORKSPACE, Record, at

MOUNT_NAMES: Mapping[str, MountType] = {
    "BindMount": MountType.BIND,
    "VolumeMount": MountType.VOLUME,
    "DeviceMount": MountType.DEVICE,
}


def unfold_app(app: object, path: str = "") -> Any:
    """Return the app as nested mappings and lists; what is of the wrong kind is left as it is."""
    plain = _by_name(app, path, APP)
    if isinstance(plain, dict) and isinstance(plain.get("roles"), list | tuple):
        roles = enumerate(plain["roles"])
        plain["roles"] = [_role(role, f"{at(path, 'roles')}[{index}]") for index, role in roles]
    return plain


def unfold_resource(resource: object, path: str) -> Any:
    """Return the resource as a mapping."""
    return _by_name(resource, path, RESOURCE)


def _role(role: object, path: str) -> Any:
    plain = _by_name(role, path, ROLE, skip="overrides")
    if not isinstance(plain, dict):
        return plain
    unfold = {
        "resource": unfold_resource,
        "workspace": _workspace,
        "retry_policy": _member,
        "mounts": _mounts,
    }
    done = {key: unfold[key](plain[key], at(path, key)) for key in unfold if key in plain}
    return {**plain, **done}


def _workspace(workspace: object, path: str) -> Any:
    return _by_name(workspace, path, WORKSPACE)


def _member(value: object, path: str) -> object:
    return value.name if isinstance(value, Enum) else value


def _mounts(mounts: object, path: str) -> Any:
    if not isinstance(mounts, list | tuple):
        return mounts
    return [_mount(mount, f"{path}[{index}]") for index, mount in enumerate(mounts)]


def _mount(mount: object, path: str) -> Any:
    names = (base.__name__ for base in type(mount).__mro__)
    kind = next((MOUNT_NAMES[name] for name in names if name in MOUNT_NAMES), None)
    if kind is None:
        return mount
    return {"type": kind.value, **_by_name(mount, path, MOUNTS[kind])}


def _by_name(value: object, path: str, record: Record, skip: str = "") -> Any:
    """Return a dataclass as a mapping; a field we do not have must at least be empty."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {
        field.name: getattr(value, field.name) for field in fields(value) if field.name != skip
    }
    for name in found.keys() - record.fields.keys():
        if found[name]:
            shown = shorten(repr(found[name]))
            raise SpecError(at(path, name), f"there is no such field here, and it is {shown}")
    return {name: found[name] for name in found if name in record.fields}
